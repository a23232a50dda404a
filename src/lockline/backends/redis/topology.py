"""Which server has the line: always the one, the one that the sentinels name, or the one that owns the key's slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from redis.crc import key_slot

from ...core import clock
from ...errors import BackendUnavailable
from .port import Port, ServerError, pack
from .problems import Address, NoAnswer, refusal, spelled
from .target import Target


class Topology(Protocol):
    """Where to send what."""

    def known(self, key: bytes) -> Address | None:
        """The server of this key as far as is known without asking."""

    async def find(self, key: bytes, until: float) -> Address:
        """The server of this key; NoAnswer or BackendUnavailable when nobody can say."""

    def doubt(self, address: Address) -> None:
        """This server did not serve: look again before the next request."""

    def moved(self, key: bytes, address: Address) -> None:
        """A server said that another one has this key."""

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        """The positions of the keys that one script call may hold."""

    async def primaries(self, until: float) -> list[Address]:
        """Every server that may have lines."""


class OneServer:
    """The server that was named."""

    def __init__(self, target: Target) -> None:
        self._address = target.addresses[0]

    def known(self, key: bytes) -> Address | None:
        return self._address

    async def find(self, key: bytes, until: float) -> Address:
        return self._address

    def doubt(self, address: Address) -> None:
        pass

    def moved(self, key: bytes, address: Address) -> None:
        raise refusal("MOVED another node of a cluster has this key", self._address)

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        return [range(len(list(keys)))]

    async def primaries(self, until: float) -> list[Address]:
        return [self._address]


class Sentinels:
    """The primary that the sentinels name now; asked again whenever it did not serve."""

    def __init__(self, target: Target, port: Port) -> None:
        self._watchers = list(target.addresses)
        self._service = target.service
        self._port = port
        self._primary: Address | None = None

    def known(self, key: bytes) -> Address | None:
        return self._primary

    async def find(self, key: bytes, until: float) -> Address:
        if self._primary is None:
            self._primary = await self._ask(until)
        return self._primary

    async def _ask(self, until: float) -> Address:
        problems = []
        question = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service))
        for watcher in list(self._watchers):
            # Nobody gets all the time there is: the next one may know.
            patience = min(until, clock.now() + 1.0)
            try:
                (answer,) = await self._port.ask_all(watcher, [question], patience, sentinel=True)
            except NoAnswer as problem:
                problems.append(str(problem))
                continue
            if isinstance(answer, list):
                self._watchers.remove(watcher)
                self._watchers.insert(0, watcher)
                return _text(answer[0]), int(answer[1])
            problems.append(f"{spelled(watcher)}: {answer or f'does not watch {self._service!r}'}")
        raise NoAnswer(self._watchers[0], f"no sentinel names a primary ({'; '.join(problems)})", sent=False)

    def doubt(self, address: Address) -> None:
        if address == self._primary:
            self._primary = None

    def moved(self, key: bytes, address: Address) -> None:
        raise refusal("MOVED the servers behind these sentinels form a cluster", address)

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        return [range(len(list(keys)))]

    async def primaries(self, until: float) -> list[Address]:
        return [await self.find(b"", until)]


class Cluster:
    """The owner of each slot, learned from any node, and corrected by those that know better."""

    def __init__(self, target: Target, port: Port) -> None:
        self._seeds = list(target.addresses)
        self._port = port
        self._owners: dict[int, Address] = {}
        self._doubted = True

    def known(self, key: bytes) -> Address | None:
        return None if self._doubted else self._owners.get(key_slot(key))

    async def find(self, key: bytes, until: float) -> Address:
        if self._doubted or key_slot(key) not in self._owners:
            await self._learn(until)
        owner = self._owners.get(key_slot(key))
        if owner is None:
            raise NoAnswer(self._seeds[0], f"no node owns slot {key_slot(key)}", sent=False)
        return owner

    async def _learn(self, until: float) -> None:
        problems = []
        question = pack(("CLUSTER", "SLOTS"))
        for node in list(dict.fromkeys([*self._owners.values(), *self._seeds])):
            patience = min(until, clock.now() + 1.0)
            try:
                answer: Any = await self._port.ask(node, question, patience)
            except NoAnswer as problem:
                problems.append(str(problem))
                continue
            if isinstance(answer, ServerError):
                raise refusal(answer, node)
            if not answer:
                problems.append(f"{spelled(node)}: owns and knows no slots")
                continue
            owners = {}
            for first, last, primary, *_ in answer:
                # An empty host means: the one that you asked.
                address = (_text(primary[0]) or node[0], int(primary[1]))
                owners.update(dict.fromkeys(range(first, last + 1), address))
            self._owners = owners
            self._doubted = False
            return
        raise NoAnswer(self._seeds[0], f"no node tells the slots ({'; '.join(problems)})", sent=False)

    def doubt(self, address: Address) -> None:
        self._doubted = True

    def moved(self, key: bytes, address: Address) -> None:
        self._owners[key_slot(key)] = address

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        slots: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            slots.setdefault(key_slot(key), []).append(at)
        return slots.values()

    async def primaries(self, until: float) -> list[Address]:
        if self._doubted:
            await self._learn(until)
        if not self._owners:
            raise BackendUnavailable("the cluster's nodes tell of no slots")
        return list(dict.fromkeys(self._owners.values()))


def topology_of(target: Target, port: Port) -> Topology:
    """The topology for a target."""
    if target.kind == "sentinel":
        return Sentinels(target, port)
    if target.kind == "cluster":
        return Cluster(target, port)
    return OneServer(target)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
