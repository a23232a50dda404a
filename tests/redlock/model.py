"""A node in plain Python, step for step what the Lua does: for the simulation, and for holding the Lua to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockline.backends.redlock.commands import NodeRequest
from lockline.backends.redlock.scripts import ABOVE, BEYOND, JUMP, LARGEST, LEAP, REMEMBERED, TRIMMED, VOUCHED


class Lease:
    """One lease at one node."""

    __slots__ = ("attempt", "expires", "info", "number")

    def __init__(self, attempt: str, number: int, info: str, expires: float) -> None:
        self.attempt = attempt
        self.number = number
        self.info = info
        self.expires = expires

    def text(self) -> bytes:
        return f"{self.attempt} {self.number} {self.info}".encode()


class Memory:
    """What a node remembers, and what its disk may bring back after a restart."""

    def __init__(self) -> None:
        self.gate: str | None = None
        self.record: dict[str, Any] = {}
        self.counters: dict[str, int] = {}
        self.leases: dict[str, Lease] = {}
        self.tombstones: dict[str, float] = {}

    def copy(self) -> Memory:
        """As it is now; many times as fast as copy.deepcopy."""
        made = Memory()
        made.gate, made.record, made.counters = self.gate, dict(self.record), dict(self.counters)
        made.leases = {
            name: Lease(lease.attempt, lease.number, lease.info, lease.expires) for name, lease in self.leases.items()
        }
        made.tombstones = dict(self.tombstones)
        return made


class ModelNode:
    """One node. `clock` gives milliseconds, and may lie; numbers rise without it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.runs = 0
        self.memory = Memory()
        self.expired: Callable[[str, str], None] | None = None
        """Told when a ttl has ended something: ("lease", name), ("tombstone", attempt) or ("refusing", "")."""

    # -- life --------------------------------------------------------------------------------------

    def snapshot(self) -> Memory:
        """A copy of the data directory."""
        return self.memory.copy()

    def restart(self, memory: Memory | None) -> None:
        """Come back with this memory, or with none."""
        self.runs += 1
        self.memory = memory or Memory()

    @property
    def run(self) -> str:
        return f"run{self.runs}"

    def _purge(self) -> None:
        now = self.clock()
        memory = self.memory
        for name in [name for name, lease in memory.leases.items() if lease.expires <= now]:
            del memory.leases[name]
            if self.expired is not None:
                self.expired("lease", name)
        for attempt in [attempt for attempt, ends in memory.tombstones.items() if ends <= now]:
            del memory.tombstones[attempt]
            if self.expired is not None:
                self.expired("tombstone", attempt)

    # -- requests ----------------------------------------------------------------------------------

    def apply(self, request: NodeRequest, cluster: str) -> list[Any]:
        """One step."""
        self._purge()
        return getattr(self, f"_{request.op}")(cluster, *request.args)  # type: ignore[no-any-return]

    def _shut(self, cluster: str) -> list[Any] | None:
        gate = self.memory.gate
        if gate == cluster:
            return None
        if gate is None:
            return [b"shut", b"empty"]
        state, _, rest = gate.partition(" ")
        whose, _, till = rest.partition(" ")
        if state == "refusing" and whose == cluster:
            left = int(till) - int(self.clock())
            if left > 0:
                return [b"shut", b"refusing", str(left).encode()]
            self.memory.gate = cluster
            if self.expired is not None:
                self.expired("refusing", "")
            return None
        return [b"shut", b"other", gate.encode()]

    def _lift(self, name: str, to: int) -> None:
        counters = self.memory.counters
        if "" in counters and to <= LARGEST and to > counters.get(name, counters[""]):
            self._count(name, to)

    def _count(self, name: str, number: int) -> None:
        counters = self.memory.counters
        new = name not in counters
        counters[name] = number
        over = len(counters) - REMEMBERED
        if new and over > 0:
            others = sorted((other for other in counters if other), key=lambda other: (counters[other], other.encode()))
            for oldest in others[: min(over, TRIMMED)]:
                counters[""] = max(counters[""], counters.pop(oldest))

    def microseconds(self) -> int:
        """The node's clock, as far as numbers know of it: to see that a hint is not from another age, and after a loss of memory."""
        return int(self.clock() * 1000)

    def _acquire(self, cluster: str, name: str, attempt: str, ttl: int, hint: int, info: str) -> list[Any]:
        memory = self.memory
        if why := self._shut(cluster):
            return why
        if attempt in memory.tombstones:
            return [b"buried"]
        lease = memory.leases.get(name)
        if lease is not None:
            left = int(lease.expires - self.clock())
            if lease.attempt != attempt:
                return [b"no", lease.text(), left]
            lease.expires = max(lease.expires, self.clock() + ttl)
            return [b"yes", str(lease.number).encode()]
        counters = memory.counters
        if "" not in counters:
            return [b"shut", b"forgot"]
        number = max(counters.get(name, counters[""]) + 1, min(hint, self.microseconds() + LEAP))
        if number > LARGEST:
            return [b"shut", b"full"]
        self._count(name, number)
        memory.leases[name] = Lease(attempt, number, info, self.clock() + ttl)
        return [b"yes", str(number).encode()]

    def _promote(self, cluster: str, name: str, attempt: str, number: int) -> list[Any]:
        if why := self._shut(cluster):
            return why
        lease = self.memory.leases.get(name)
        if lease is None or lease.attempt != attempt or lease.number > number:
            return [b"no", lease.text() if lease else b""]
        lease.number = number
        self._lift(name, number)
        return [b"yes", str(number).encode()]

    def _extend(self, cluster: str, name: str, attempt: str, number: int, ttl: int) -> list[Any]:
        if why := self._shut(cluster):
            return why
        lease = self.memory.leases.get(name)
        if lease is None or lease.attempt != attempt or lease.number != number:
            return [b"no", lease.text() if lease else b""]
        lease.expires = max(lease.expires, self.clock() + ttl)
        return [b"yes", str(number).encode()]

    def _release(self, cluster: str, name: str, attempt: str, high: int, burial: int) -> list[Any]:
        memory = self.memory
        lease = memory.leases.get(name)
        there = lease is not None and lease.attempt == attempt
        if there:
            del memory.leases[name]
        elif memory.gate is not None and burial > 0:
            memory.tombstones[attempt] = self.clock() + burial
        if memory.gate == cluster:
            self._lift(name, high)
        elif not there and (why := self._shut(cluster)):
            return why
        return [b"yes" if there else b"no", b""]

    def _greet(self, cluster: str, durable: str) -> list[Any]:
        memory = self.memory
        record = memory.record
        if not record:
            return [b"empty", self.run.encode()]
        if "" not in memory.counters or memory.gate is None:
            memory.gate = None
            return [b"forgot", self.run.encode(), record["cluster"].encode()]
        if record["run"] != self.run:
            record["run"] = self.run
            if self._whole(durable):
                self._climb()
            else:
                self._jump()
        # Opens a gate whose time of refusing is over.
        self._shut(record["cluster"])
        record["durable"], record["vouched"] = durable, self.clock()
        return [b"known", self.run.encode(), record["cluster"].encode()]

    def _whole(self, durable: str) -> bool:
        """Whether it has forgotten nothing, as far as a word that is not too old can tell."""
        record = self.memory.record
        return record["durable"] == "1" and durable == "1" and 0 <= self.clock() - record["vouched"] <= VOUCHED

    def _climb(self) -> None:
        counters = self.memory.counters
        self.memory.counters = {"": min(max(*counters.values(), 0, self.microseconds() + ABOVE), LARGEST)}

    def _vouch(self, cluster: str, durable: str) -> list[Any]:
        record = self.memory.record
        if record.get("cluster") != cluster:
            return [b"no", b""]
        if record["durable"] != durable or abs(self.clock() - record["vouched"]) >= 1000:
            record["durable"], record["vouched"] = durable, self.clock()
        return [b"yes", durable.encode()]

    def _beyond(self, highest: int) -> int:
        """A floor above every number that this node can have forgotten."""
        lifted = self.microseconds() + BEYOND
        return lifted if highest < lifted else highest + JUMP

    def _jump(self) -> None:
        memory = self.memory
        memory.counters = {"": min(self._beyond(max(memory.counters.values())), LARGEST)}
        if memory.gate == memory.record["cluster"] or (memory.gate or "").startswith("refusing "):
            until = int(self.clock() + memory.record["longest"] * 1.02 + 10)
            memory.gate = f"refusing {memory.record['cluster']} {until}"

    def _install(self, cluster: str, longest: int, floor: int, durable: str = "0") -> list[Any]:
        memory = self.memory
        number = max([floor, *memory.counters.values()])
        memory.counters = {"": number}
        memory.record = {"cluster": cluster, "longest": longest, "run": self.run, "durable": durable}
        memory.record["vouched"] = self.clock()
        memory.gate = cluster
        return [b"yes", str(number).encode()]

    def _highest(self, cluster: str) -> list[Any]:
        if why := self._shut(cluster):
            return why
        if "" not in self.memory.counters:
            return [b"shut", b"forgot"]
        return [b"yes", str(max(self.memory.counters.values())).encode()]

    def _retire(self, cluster: str) -> list[Any]:
        if self.memory.gate != f"retired {cluster}":
            if why := self._shut(cluster):
                return why
            self.memory.gate = f"retired {cluster}"
        return [b"yes", str(max(self.memory.counters.values())).encode()]
