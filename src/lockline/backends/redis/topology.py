"""Which server has the line: always the one, the one that the sentinels name, or the one that owns the key's slot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from redis.crc import key_slot

from ...errors import BackendUnavailable
from ...runtime import clock
from ..resp.commands import ServerError, pack
from ..resp.errors import NoAnswer, Refused, refusal, said_no
from ..resp.target import Address
from .connection import Connections
from .target import Target

T = TypeVar("T")


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

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        return [range(len(list(keys)))]

    async def primaries(self, until: float) -> list[Address]:
        return [self._address]


class Sentinels:
    """The primary that the sentinels name now; asked again whenever it did not serve."""

    def __init__(self, target: Target, connections: Connections) -> None:
        self._watchers = list(target.addresses)
        self._service = target.service
        self._connections = connections
        self._primary: Address | None = None
        self._told_by: Address | None = None
        self.epoch = object()

    def known(self, key: bytes) -> Address | None:
        return self._primary

    async def find(self, key: bytes, until: float) -> Address:
        known = self._primary
        if known is not None:
            return known
        watcher, primary = await _first_who_can_say(self._watchers, self._ask, until, "no sentinel names a primary")
        self._watchers = list(dict.fromkeys([watcher, *self._watchers]))
        self._told_by, self._primary, self.epoch = watcher, primary, object()
        return primary

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

    def groups(self, keys: Iterable[bytes]) -> Iterable[Sequence[int]]:
        return [range(len(list(keys)))]

    async def primaries(self, until: float) -> list[Address]:
        return [await self.find(b"", until)]


class Cluster:
    """The owner of each slot, learned from any node, and corrected by those that know better."""

    def __init__(self, target: Target, connections: Connections) -> None:
        self._seeds = list(target.addresses)
        self._nodes = self._seeds
        self._connections = connections
        self._owners: dict[int, Address] = {}
        self._doubted = True
        self._told_by: Address | None = None
        self.epoch = object()

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
        node, owners = await _first_who_can_say(self._nodes, self._ask, until, "no node tells the slots")
        there = {*owners.values(), *self._seeds}
        self._nodes = [each for each in dict.fromkeys([node, *self._nodes, *there]) if each in there]
        self._told_by, self._owners, self._doubted, self.epoch = node, owners, False, object()

    async def _ask(self, node: Address, until: float) -> dict[int, Address]:
        answer: Any = await self._connections.ask(node, pack(("CLUSTER", "SLOTS")), until)
        if isinstance(answer, ServerError):
            raise said_no(answer, node)
        if not answer:
            raise NoAnswer(node, "owns and knows no slots", sent=False)
        owners: dict[int, Address] = {}
        for first, last, primary, *_ in answer:
            # An empty host means: the one that you asked.
            address = (_text(primary[0]) or node[0], int(primary[1]))
            owners.update(dict.fromkeys(range(first, last + 1), address))
        return owners

    def doubt(self, address: Address) -> None:
        self._doubted, self.epoch = True, object()
        self._nodes = _at_the_end(self._nodes, self._told_by, address)

    def moved(self, key: bytes, address: Address) -> None:
        self._owners[key_slot(key)] = address
        self.epoch = object()

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


def topology_of(target: Target, connections: Connections) -> Topology:
    """The topology for a target."""
    if target.kind == "sentinel":
        return Sentinels(target, connections)
    if target.kind == "cluster":
        return Cluster(target, connections)
    return OneServer(target)


async def _first_who_can_say(
    asked: Sequence[Address], ask: Callable[[Address, float], Awaitable[T]], until: float, failure: str
) -> tuple[Address, T]:
    """Who could say, and what; Refused only when all refuse for good, because one alone may be set up wrongly."""
    problems: list[Exception] = []
    for address in asked:
        try:
            # Nobody gets all the time there is: the next one may know.
            return address, await ask(address, min(until, clock.now() + 1.0))
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


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
