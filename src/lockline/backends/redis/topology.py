"""Which server has the line: always the one, the one that the sentinels name, or the one that owns the key's slot."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from redis.crc import key_slot

from ...runtime import Runtime, clock
from ..resp.commands import ServerError, flat, pack
from ..resp.errors import NoAnswer, Refused, refusal, said_no
from ..resp.target import Address
from .connection import Connections
from .target import Target

T = TypeVar("T")

A_QUESTION: Final = 1.0
"""Seconds that one of those who may know is given, because the next one may know as well; and for which others wait for who asks."""

FRESH_S: Final = 0.05
"""For so long after an answer a server that does not serve is no reason to ask again: mostly the request was sent before that."""

UNNAMED: Final = "?"
"""What stands for the host of a node that has no hostname, in a cluster that prefers them (`cluster-preferred-endpoint-type`)."""


class Topology(Protocol):
    """Where to send what."""

    epoch: object
    """Another one each time that more is known, or less: what was known before need not be asked for again until then."""

    def known(self, key: bytes) -> Address | None:
        """The server of this key as far as is known without asking."""

    async def find(self, key: bytes, until: float) -> Address:
        """The server of this key; NoAnswer or BackendUnavailable when nobody can say."""

    def doubt(self, address: Address) -> None:
        """This server did not serve: look again before the next request, and ask others than those who named it."""

    def moved(self, key: bytes, address: Address) -> None:
        """A server said that another one has this key."""

    def named(self, address: Address) -> Address | None:
        """The same with its host, where a server told of another without it; None if nobody knows it."""

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        """The positions of the keys that one script call may hold."""

    async def primaries(self, until: float) -> list[Address]:
        """Every server that may have lines."""


class OneServer:
    """The server that was named."""

    epoch: object = None

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

    def named(self, address: Address) -> Address | None:
        return address

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        return [range(len(list(keys)))]

    async def primaries(self, until: float) -> list[Address]:
        return [self._address]


class TopologyQuestion:
    """One that is under way, for all who want to know."""

    def __init__(self, runtime: Runtime) -> None:
        self.asked = runtime.now()
        self.over = runtime.signal()
        self.problem: Exception | None = None
        """Why nobody could say."""
        self.answered = float("-inf")
        """When it was."""

    async def ends(self, until: float) -> bool:
        """Whether it ends soon; one that does not has to do with one who is silent, or was cut off from its end."""
        return await self.over.wait(min(until, self.asked + A_QUESTION))


class AskingOnce:
    """Asks once for all who want to know at the same time: each answer of a cluster tells of every slot."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._latest: TopologyQuestion | None = None

    def is_fresh(self) -> bool:
        """Whether what is known was told just now."""
        return self._latest is not None and self._runtime.now() < self._latest.answered + FRESH_S

    async def once(self, learn: Callable[[float], Awaitable[None]], until: float) -> None:
        """Learn it, or wait for one who does; what is known after that need not be enough."""
        latest = self._latest
        if latest is not None and not latest.over.is_set():
            while not await latest.ends(until):
                # The first whose patience is over asks anew, for the others too: a thousand questions at once would take longer still.
                newer = self._latest
                if newer is None or newer is latest or self._runtime.now() >= until:
                    break
                latest = newer
            else:
                if latest.problem is not None:
                    raise latest.problem.with_traceback(None)
                return
        self._latest = question = TopologyQuestion(self._runtime)
        try:
            await learn(until)
            question.answered = self._runtime.now()
        except (NoAnswer, Refused) as problem:
            # Not if only this one's time was over: the others may have more.
            question.problem = problem if self._runtime.now() < until else None
            raise
        finally:
            question.over.set()


class Sentinels:
    """The primary that the sentinels name now; asked again whenever it did not serve."""

    def __init__(self, target: Target, connections: Connections, runtime: Runtime) -> None:
        self._asking = AskingOnce(runtime)
        self._watchers = list(target.addresses)
        self._service = target.service
        self._connections = connections
        self._primary: Address | None = None
        self._told_by: Address | None = None
        self.epoch = object()

    def known(self, key: bytes) -> Address | None:
        return self._primary

    async def find(self, key: bytes, until: float) -> Address:
        while (known := self._primary) is None:
            await self._asking.once(self._learn, until)
        return known

    async def _learn(self, until: float) -> None:
        watcher, primary = await _first_who_can_say(self._watchers, self._ask, until, "no sentinel names a primary")
        self._watchers = list(dict.fromkeys([watcher, *self._watchers]))
        self._told_by, self._primary, self.epoch = watcher, primary, object()

    async def _ask(self, watcher: Address, until: float) -> Address:
        question = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service))
        (answer,) = await self._connections.ask_all(watcher, [question], until, sentinel=True)
        if isinstance(answer, ServerError):
            raise said_no(answer, watcher)
        if answer is None:
            raise NoAnswer(watcher, f"does not watch {self._service!r}", sent=False)
        return _text(answer[0]), int(answer[1])

    def doubt(self, address: Address) -> None:
        if address == self._primary:
            self._primary, self.epoch = None, object()
            self._watchers = _at_the_end(self._watchers, self._told_by)

    def moved(self, key: bytes, address: Address) -> None:
        raise refusal("MOVED the servers behind these sentinels form a cluster", address)

    def named(self, address: Address) -> Address | None:
        return address

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        return [range(len(list(keys)))]

    async def primaries(self, until: float) -> list[Address]:
        return [await self.find(b"", until)]


class SlotOwners:
    """The owner of each slot, as one node told it and others have corrected it."""

    def __init__(self, ranges: Iterable[tuple[int, int, Address]] = ()) -> None:
        self._ranges = sorted(ranges)
        self._firsts = [first for first, _, _ in self._ranges]
        self.moved: dict[int, Address] = {}

    def get(self, slot: int) -> Address | None:
        """The owner of this slot, if it has one."""
        if slot in self.moved:
            return self.moved[slot]
        at = bisect_right(self._firsts, slot) - 1
        return self._ranges[at][2] if at >= 0 and slot <= self._ranges[at][1] else None

    def owners(self) -> list[Address]:
        """Each of them once."""
        return list(dict.fromkeys([*(address for _, _, address in self._ranges), *self.moved.values()]))


class Cluster:
    """The owner of each slot, learned from any node, and corrected by those that know better."""

    def __init__(self, target: Target, connections: Connections, runtime: Runtime) -> None:
        self._asking = AskingOnce(runtime)
        self._seeds = list(target.addresses)
        self._nodes = self._seeds
        self._connections = connections
        self._slots = SlotOwners()
        self._doubted = True
        self._told_by: Address | None = None
        self.epoch = object()

    def known(self, key: bytes) -> Address | None:
        return None if self._doubted else self._slots.get(key_slot(key))

    async def find(self, key: bytes, until: float) -> Address:
        if not self._doubted and self._slots.get(key_slot(key)) is None:
            self._doubted = True
        while self._doubted:
            await self._asking.once(self._learn, until)
        owner = self._slots.get(key_slot(key))
        if owner is None:
            raise NoAnswer(self._seeds[0], f"no node owns slot {key_slot(key)}", sent=False)
        return owner

    async def _learn(self, until: float) -> None:
        node, slots = await _first_who_can_say(self._nodes, self._ask, until, "no node tells the slots")
        there = {*slots.owners(), *self._seeds}
        self._nodes = [each for each in dict.fromkeys([node, *self._nodes, *there]) if each in there]
        self._told_by, self._slots, self._doubted, self.epoch = node, slots, False, object()

    async def _ask(self, node: Address, until: float) -> SlotOwners:
        answer: Any = await self._connections.ask(node, pack(("CLUSTER", "SLOTS")), until)
        if isinstance(answer, ServerError):
            raise said_no(answer, node)
        if not answer:
            raise NoAnswer(node, "owns and knows no slots", sent=False)
        return SlotOwners((first, last, (_host(primary, node), int(primary[1]))) for first, last, primary, *_ in answer)

    def doubt(self, address: Address) -> None:
        if self._asking.is_fresh():
            # Of many whose connection was cut, one asks, and the others hear of it here.
            return
        self._doubted, self.epoch = True, object()
        self._nodes = _at_the_end(self._nodes, self._told_by, address)

    def moved(self, key: bytes, address: Address) -> None:
        if address[0] == UNNAMED:
            # Which one that is, the map of all slots tells.
            self._doubted = True
        else:
            self._slots.moved[key_slot(key)] = address
        self.epoch = object()

    def named(self, address: Address) -> Address | None:
        """The one server that is known to have this port, if the host is not told."""
        known = [owner for owner in self._slots.owners() if owner[1] == address[1]]
        return address if address[0] != UNNAMED else known[0] if len(known) == 1 else None

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        slots: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            slots.setdefault(key_slot(key), []).append(at)
        return slots.values()

    async def primaries(self, until: float) -> list[Address]:
        while self._doubted:
            await self._asking.once(self._learn, until)
        return self._slots.owners()


def topology_of(target: Target, connections: Connections, runtime: Runtime) -> Topology:
    """The topology for a target."""
    if target.kind == "sentinel":
        return Sentinels(target, connections, runtime)
    if target.kind == "cluster":
        return Cluster(target, connections, runtime)
    return OneServer(target)


async def _first_who_can_say(
    asked: Sequence[Address], ask: Callable[[Address, float], Awaitable[T]], until: float, failure: str
) -> tuple[Address, T]:
    """Who could say, and what; Refused only when all refuse for good, because one alone may be set up wrongly."""
    problems: list[Exception] = []
    for address in asked:
        try:
            # Nobody gets all the time there is: the next one may know.
            return address, await ask(address, min(until, clock.now() + A_QUESTION))
        except (NoAnswer, Refused) as problem:
            problems.append(problem)
    if all(isinstance(problem, Refused) for problem in problems):
        raise problems[0]
    told = [str(problem) for problem in problems if not (isinstance(problem, NoAnswer) and problem.late)]
    refused = all(isinstance(problem, NoAnswer) and problem.refused for problem in problems)
    why = "; ".join(told) or "no time left to ask"
    raise NoAnswer(asked[0], f"{failure} ({why})", sent=False, late=not told, refused=refused)


def _at_the_end(addresses: Sequence[Address], *these: Address | None) -> list[Address]:
    """The same addresses, these last: whoever named a server that does not serve may be out of date."""
    return sorted(addresses, key=lambda address: these.index(address) + 1 if address in these else 0)


def _host(told: Sequence[Any], asked: Address) -> str:
    """Where a node is: nothing means the host that was asked; of one without the name that it should have, its address stands beside."""
    host = _text(told[0])
    if host == UNNAMED:
        more = flat(told[3]) if len(told) > 3 else []
        host = _text(dict(zip(more[::2], more[1::2], strict=True)).get(b"ip"))
    return host or asked[0]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
