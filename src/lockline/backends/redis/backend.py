"""One client of Redis: the backend's calls, each one script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from ...core.backend import Finding
from ...core.claim import DETACHED, Claim, Gone, Grant, Line, Record, RenewResults, Unanswered, Waiting
from ...core.lasting import renew_for
from ...core.waiting import Hints
from ...errors import BackendUnavailable
from ...runtime import Runtime
from ..attending import Attending
from ..resp.commands import ServerError, pack
from ..resp.connection_blocking import BlockingLink
from ..resp.errors import NoAnswer, Refused, unavailable
from ..resp.link_asyncio import AsyncioLink
from ..resp.shared_blocking import SharingLink
from ..resp.target import Address
from . import doctor, hand_over, keeping
from .batches import Batches
from .channel import Answer, Call, Channel, Failed
from .claims import APART, FURTHEST_APART, SOONEST_LOOK, Doubts, LivesOn, OwnClaim, Renewals, call_to_leave, was_there
from .commands import OVERHEAD, Kept, PreparedLine, Route, Wish, key_of, words
from .connection import Connections, KeepersLink
from .guarantees import GUARANTEES
from .inspection import Inspection
from .joined import A_CROWD, Step, join
from .replicas import Replicas
from .scripts import ENTER, NO_CHANNEL, PLACE
from .subscription import AsyncioSubscriptions, BlockingSubscriptions
from .target import Target
from .topology import topology_of

T = TypeVar("T")

KEEPERS_CONNECTIONS: Final = 2
"""Kept for renewals, so that they stand in no line behind the threads of the caller: one, and one more for when that hangs."""


class RedisBackend:
    """Lines on Redis."""

    guarantees = GUARANTEES

    def __init__(
        self, target: Target, runtime: Runtime, *, wait_replicas: int, max_connections: int, prefix: str
    ) -> None:
        self.url = target.url
        self.prefix = prefix
        self.target = target
        self.wait_replicas = wait_replicas
        self._runtime = runtime
        self._subscriptions: BlockingSubscriptions | AsyncioSubscriptions
        self.reader: BlockingSubscriptions | None = None
        if runtime.flavour == "asyncio":
            self._connections = self._for_keeper = Connections(target, partial(AsyncioLink, join=join))
            # One connection for all, on which nobody waits for anybody; but WAIT holds up whatever comes behind it.
            self._for_waits = Connections(target, AsyncioLink)
            self._subscriptions = AsyncioSubscriptions(target, prefix, self._take_note)
        else:
            self._connections = Connections(target, partial(SharingLink, most=max_connections, join=join))
            keepers = partial(KeepersLink, most=KEEPERS_CONNECTIONS, beside=self._connections)
            self._for_keeper = Connections(target, keepers)
            self._for_waits = Connections(target, partial(BlockingLink, most=max_connections))
            self._subscriptions = self.reader = BlockingSubscriptions(target, prefix, self._take_note)
        self._begin()

    def _begin(self) -> None:
        self._topology = topology_of(self.target, self._connections, self._runtime)
        self.channel = Channel(self._connections, self._topology, self._runtime)
        self._batches = Batches(self.channel)
        keepers = Channel(self._for_keeper, self._topology, self._runtime)
        self._renewals = Renewals(keepers, self._listens_on)
        self._inspection = Inspection(self.channel, self.prefix)
        self._replicas = Replicas(self._for_waits, self.wait_replicas, self.target.patience, self._runtime)
        self._lines: Kept[str, PreparedLine] = Kept()
        self._wishes: Kept[Wish, bytes] = Kept()
        self._claims: dict[str, OwnClaim] = {}
        self._doubts = Doubts()
        self._expected = keeping.Expected()
        self._attending = Attending(self._runtime)

    def forked(self) -> None:
        for connections in (self._for_waits, self._for_keeper, self._connections):
            connections.forked()
        self._subscriptions.forked()
        self._begin()

    def report_to(self, hints: Hints) -> None:
        self._hints = self._subscriptions.hints = hints

    def _line(self, name: str) -> PreparedLine:
        line = PreparedLine(key_of(name, self.prefix))
        return self._lines.keep(name, line, line.size)

    def _key(self, name: str) -> bytes:
        return (self._lines.get(name) or self._line(name)).key

    def _route(self, line: PreparedLine) -> Route:
        """The line's server as far as is known and the way to it, remembered as long as nothing new is known."""
        epoch = self._topology.epoch
        address = self._topology.known(line.key)
        link = None if address is None else self._connections.to(address)
        # In one instruction: whoever is cut short, or another thread, finds all of it or none.
        line.route = route = Route(epoch, address, link)
        return route

    def _listens_on(self, address: Address) -> str:
        """The channel on which this server reaches us."""
        subscription = self._subscriptions.open.get(address)
        return NO_CHANNEL if subscription is None else subscription.channel

    # -- one claim ---------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        name, claim_id, owner, kind, weight, capacity, ttl, _, meta, _, _ = claim
        line = self._lines.get(name) or self._line(name)
        key = line.key
        route = line.route
        _, address, link = route if route.epoch is self._topology.epoch else self._route(line)
        subscription = self._subscriptions.open.get(address)  # type: ignore[arg-type]
        channel = NO_CHANNEL if subscription is None else subscription.channel
        wish = (ttl, weight, capacity, channel, kind, owner, meta, wait)
        rest = self._wishes.get(wish) or self._prepare(wish)
        if wait:
            # Before the request: the message that brings its turn may be here before the answer.
            self._claims.setdefault(claim_id, OwnClaim())
        try:
            failed: Failed | None = None
            reply: Any = None
            if address is not None and link is not None:
                try:
                    if line.crowd and wait and weight == capacity:
                        reply = await link.ask_along(Step(line, claim_id, rest=rest), until)
                    else:
                        request = b"%b$%d\r\n%b\r\n%b" % (line.enter, len(claim_id), claim_id.encode(), rest)
                        reply = await link.ask(request, until)
                    if type(reply) is ServerError:
                        failed = Failed(address, reply)
                except NoAnswer as no_answer:
                    failed = Failed(address, no_answer)
            if failed is not None or address is None:
                call = Call(ENTER, (key,), (claim_id, *words(wish)))
                reply, repeated, _ = await self.channel.insist(call, until, failed, insists=wait)
                if repeated:
                    self._doubts.add(claim_id)
        except BaseException as problem:
            if not getattr(problem, "unsent", False):
                self._doubts.add(claim_id)
            self._claims.pop(claim_id, None)
            raise
        if type(reply) is int:
            if channel == NO_CHANNEL:
                own = self._claims[claim_id] = OwnClaim()
                own.state, own.key = "holds", key
            elif wait:
                self._claims.pop(claim_id, None)
            if self.wait_replicas:
                await self._replicate(claim, key, until)
            return Grant(reply)
        if reply is None:
            return None
        # On a channel that nobody listens to yet it looks at once, and brings along the one that it will hear.
        return self._waits(claim_id, reply, unheard=channel == NO_CHANNEL)

    def _note_unheard(self, claim_id: str, key: bytes) -> OwnClaim:
        """It holds, and cannot be told of an eviction."""
        own = self._claims[claim_id] = OwnClaim()
        own.state, own.key = "holds", key
        return own

    def _prepare(self, wish: Wish) -> bytes:
        """What claims of one kind have in common, ready for the wire."""
        text = pack(words(wish)).partition(b"\r\n")[2]
        return self._wishes.keep(wish, text, 2 * len(text) + OVERHEAD)

    def _waits(self, claim_id: str, reply: Sequence[Any], *, unheard: bool = False) -> Waiting:
        """It looks again when the first one ahead may have expired, and not in the same moment as its neighbours."""
        ahead, change, ticket, behind = reply
        wait = change / 1000 + min(ahead * APART, FURTHEST_APART)
        look_by = 0.0 if unheard else self._runtime.now() + max(wait, SOONEST_LOOK)
        told = behind.decode() if behind else ""
        own = self._claims.get(claim_id)
        if own is not None:
            own.look_by = look_by
            own.behind = told = told or own.behind
        # A grant that has to be on replicas before it counts is not ours to give.
        return Waiting(ahead, look_by, True, ticket, "" if self.wait_replicas else told)

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        own = self._claims.get(claim.id)
        reply: Any = None if own is None else own.token
        if reply is None:
            reply = await self._ask_place(claim, self._key(claim.name), until)
            if type(reply) is list:
                return self._waits(claim.id, reply)
        self._claims.pop(claim.id, None)
        if reply is None:
            return Gone()
        if self.wait_replicas:
            await self._replicate(claim, self._key(claim.name), until)
        return Grant(reply)

    async def _ask_place(self, claim: Claim, key: bytes, until: float) -> Any:
        """Ask where the claim stands; on a channel that we do listen to, from now on."""
        channel = await self._reach(key, until, self._subscriptions.listen)
        return (await self.channel.run(Call(PLACE, (key,), (claim.id, channel, "0")), until)).value

    async def _reach(self, key: bytes, until: float, listen: Callable[[Address, float], Awaitable[T]]) -> T:
        """Listen, in whichever way, where the line is."""
        address: Address | None = None
        try:
            address = self._topology.known(key) or await self._topology.find(key, until)
            return await listen(address, until)
        except NoAnswer as problem:
            if address is not None:
                self._topology.doubt(address)
            raise unavailable(problem) from problem

    async def _replicate(self, claim: Claim, key: bytes, until: float) -> None:
        # A turn that comes in the last moment shall not fail for want of time to ask.
        until = max(until, self._runtime.now() + 0.5)
        try:
            address = await self._topology.find(key, until)
        except NoAnswer as problem:
            raise unavailable(problem) from problem
        await self._replicas.have(key, claim.id, self._listens_on(address), address, until)

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        name, claim_id = claim[0], claim[1]
        # Whatever becomes of the request: nobody waits for this claim any more, and the heir holds.
        self._claims.pop(claim_id, None)
        line = self._lines.get(name) or self._line(name)
        if heir and (own := self._claims.pop(heir, None)) is not None and not own.look_by:
            # It came before we listened, and has its turn before it could look.
            self._note_unheard(heir, line.key)
        route = line.route
        _, address, link = route if route.epoch is self._topology.epoch else self._route(line)
        failed: Failed | None = None
        doubtful = claim_id in self._doubts
        if address is not None and link is not None and not doubtful:
            try:
                if heir:
                    # In order: the heir's own leave shall not overtake this one, and make the server look for whom to tell.
                    line.crowd = A_CROWD
                    reply = await link.ask_in_order(Step(line, claim_id, heir), until)
                elif line.crowd:
                    line.crowd -= 1
                    reply = await link.ask_along(Step(line, claim_id), until)
                else:
                    reply = await link.ask(line.request_to_leave(claim_id), until)
                if type(reply) is int:
                    return reply == 1
                failed = Failed(address, reply)
            except NoAnswer as no_answer:
                failed = Failed(address, no_answer)
        answer = await self.channel.insist(call_to_leave(line.key, claim_id, doubtful, heir), until, failed)
        self._doubts.pop(claim_id, None)
        return was_there(answer)

    # -- many claims -------------------------------------------------------------------------------

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        for claim in claims:
            self._claims.pop(claim.id, None)
        calls = [call_to_leave(self._key(claim.name), claim.id, claim.id in self._doubts) for claim in claims]
        outcomes = await self._batches.run(calls, until, insists=False)
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, Answer):
                self._doubts.pop(claim.id, None)
        problems = [outcome for outcome in outcomes if isinstance(outcome, BackendUnavailable)]
        silences = [problem for problem in problems if not isinstance(problem, Refused)]
        if silences:
            silences[0].unsent = len(silences) == len(calls) and all(silence.unsent for silence in silences)
        if problems:
            raise (silences or problems)[0]
        return [was_there(outcome) for outcome in outcomes if isinstance(outcome, Answer)]

    async def renew(self, claims: Sequence[Claim], until: float, *, exactly: bool = False) -> RenewResults:
        lines = self._lines
        keys = [line.key if (line := lines.get(claim.name)) else key_of(claim.name, self.prefix) for claim in claims]
        outcomes = await self._renewals.renew(claims, keys, until, exactly=exactly)
        fates: list[Gone | Unanswered | None] = []
        for claim, key, outcome in zip(claims, keys, outcomes, strict=True):
            if isinstance(outcome, LivesOn):
                fates.append(None)
                self._learn(claim.id, key, outcome)
            else:
                fates.append(outcome if isinstance(outcome, Gone) else Unanswered(outcome))
        return fates

    def _learn(self, claim_id: str, key: bytes, renewed: LivesOn) -> None:
        """If the claim waits: perhaps it holds and the message was lost, perhaps it should look earlier."""
        own = self._claims.get(claim_id)
        if own is None and not renewed.told:
            # It holds, and the server may know of no channel that we still listen to: the next visit of the keeper's brings one.
            self._note_unheard(claim_id, key).attended = True
        if own is None or own.state != "waits":
            return
        if not renewed.look_in or self._runtime.now() + renewed.look_in + SOONEST_LOOK < own.look_by:
            self._hints.heard(claim_id)

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        return await self._inspection.look(name, self._key(name), until)

    async def look_many(self, names: Sequence[str], until: float) -> Sequence[Line]:
        return await self._inspection.look_many([(name, self._key(name)) for name in names], until)

    async def list(self, prefix: str, until: float) -> list[str]:
        return await self._inspection.names(prefix, until)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        return await self._inspection.evict(self._key(name), token, until)

    async def kept(self, name: str, what: str, until: float, token: int = 0, ttl: float = 0.0) -> Record:
        return await keeping.look(self.channel, self._key(name), what, token, ttl, until)

    async def keep(self, name: str, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
        return await keeping.keep(self.channel, self._key(name), what, value, token, ttl, until)

    def expect_kept(self, name: str, what: str) -> None:
        self._expected.expect(self._key(name), what)

    def told_of_kept(self, name: str, what: str) -> Record | None:
        return self._expected.take(self._key(name), what)

    async def hand_over(self, old: str, claim: Claim, until: float) -> Grant | Waiting | Gone:
        key, kept = self._key(claim.name), claim.id.startswith(DETACHED)
        address = self._topology.known(key)
        channel = NO_CHANNEL if kept or address is None else self._listens_on(address)
        fate = await hand_over.ask(self.channel, self._doubts, key, old, claim, channel, until)
        if not isinstance(fate, Grant):
            return fate
        self._claims.pop(old, None)
        if channel == NO_CHANNEL and not kept:
            self._note_unheard(claim.id, key)
        if self.wait_replicas:
            await self._replicate(claim, key, until)
        return fate

    async def last(self, claim: Claim, ttl: float, until: float) -> bool:
        return await renew_for(partial(self.renew, exactly=True), claim, ttl, until)

    async def examine(self, until: float) -> list[Finding]:  # type: ignore[valid-type]
        return await doctor.examine(self, until)

    # -- messages ----------------------------------------------------------------------------------

    def _take_note(self, message: str) -> str:
        """The claim that a message speaks of, if it is news to that; whoever read it hands it on."""
        if message.startswith("="):
            self._expected.take_note(message)
            return ""
        claim_id, _, token = message.partition(" ")
        own = self._claims.get(claim_id)
        if own is not None:
            # What was said last counts: its turn may be over before it has fetched it.
            own.token = int(token) if token else None
        elif token:
            # It knows: its own client has let it in, and the release that names it was overtaken by another.
            return ""
        return claim_id

    async def watch(self, name: str, watcher: str, until: float) -> bool:
        key = self._key(name)
        return await self._reach(key, until, partial(self._subscriptions.watch, key, watcher))

    async def unwatch(self, watcher: str) -> None:
        self._subscriptions.unwatch(watcher)

    async def attend(self) -> None:
        self._subscriptions.drain()
        self._attending.look(list(self._claims.values()), self._listen_for_holders)

    async def _listen_for_holders(self) -> None:
        """Let claims that have held for a while be told of an eviction: their renewal brings the channel along."""
        for claim_id, own in list(self._claims.items()):
            address = self._topology.known(own.key)
            if own.state != "holds" or not own.attended or address is None:
                continue
            try:
                await self._subscriptions.listen(address, self._runtime.now() + self.target.patience)
            except Exception:
                # Not now; a renewal finds an eviction too, only later.
                return
            self._claims.pop(claim_id, None)
            self._hints.remind(claim_id)

    async def close(self) -> None:
        await self._attending.close()
        await self._subscriptions.close()
        for connections in (self._for_waits, self._for_keeper, self._connections):
            connections.close()
        # A loop ends what was closed in its next round; one that is closed before that leaves it open.
        await self._runtime.sleep(0)
