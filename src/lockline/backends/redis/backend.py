"""One client of Redis: the backend's calls, each one script."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from ...core.backend import Finding
from ...core.claim import Claim, Gone, Grant, Line, Unanswered, Waiting
from ...core.waiting import Hints
from ...errors import BackendUnavailable
from ...guarantees import Guarantees
from ...runtime import Runtime, Worker
from ..resp.commands import ServerError, pack
from ..resp.errors import NoAnswer, Refused, unavailable
from . import doctor
from .batches import Batches
from .channel import Answer, Call, Channel, Failed
from .commands import OVERHEAD, Kept, Prepared, Wish, key_of, words
from .connection import AsyncioConnections, BlockingConnections, Connections
from .inspection import Inspection
from .renewals import Renewals, Renewed
from .replicas import Replicas
from .scripts import ENTER, EVICT, LEAVE, NO_CHANNEL, STAND
from .subscription import AsyncioSubscriptions, BlockingSubscriptions
from .target import Target
from .topology import topology_of

GUARANTEES: Final = Guarantees(
    exclusion="server",
    fifo=True,
    push=True,
    token_survives=frozenset({"release", "expiry", "restart", "failover", "wipe"}),
    tolerates=(
        "Clients may crash, pause and lose their network. A server that restarts without its data, or fails over to a "
        "replica that had not seen a grant, or whose clock is set forward by more than a lease has left, may let a second "
        "holder in: only a fence covers that. Tokens go on rising "
        "as long as the server's clock steps back by no more than 10 seconds; where the line's memory is lost (wipe, "
        "restart without data, failover), by no more than the outage took."
    ),
)

SOONEST_LOOK: Final = 0.02
APART: Final = 0.01
"""Seconds between the looks of neighbours in the line, so that the first can do what there is to do for all."""
FURTHEST_APART: Final = 1.0
KEEPERS_CONNECTIONS: Final = 2
"""Kept for renewals, so that they stand in no line behind the threads of the caller: one, and one more for when that hangs."""
DOUBTS_KEPT: Final = 10_000


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
        self._port: Connections
        self._wait_port: Connections
        self._keepers_port: Connections
        self._ears: BlockingSubscriptions | AsyncioSubscriptions
        self.reader: BlockingSubscriptions | None
        if runtime.flavour == "asyncio":
            self._port, self._wait_port = AsyncioConnections(target), AsyncioConnections(target)
            # One connection for all, on which nobody waits for anybody.
            self._keepers_port = self._port
            self._ears = AsyncioSubscriptions(target, prefix, self._heard, self._deliver, self._look_all)
            self.reader = None
        else:
            self._port, self._wait_port = (
                BlockingConnections(target, max_connections),
                BlockingConnections(target, max_connections),
            )
            self._keepers_port = BlockingConnections(target, KEEPERS_CONNECTIONS)
            self.reader = self._ears = BlockingSubscriptions(target, prefix, self._heard, self._deliver, self._look_all)
        self._begin()

    def _begin(self) -> None:
        self.channel = Channel(self._port, topology_of(self.target, self._port), self._runtime)
        self._known = self.channel.topology.known
        renewing = Channel(self._keepers_port, self.channel.topology, self._runtime)
        self._renewals = Renewals(renewing, self._ears.channel)
        self._batches = Batches(self.channel)
        self._inspection = Inspection(self.channel, self.prefix)
        self._replicas = Replicas(self._wait_port, self.wait_replicas, self.target.patience, self._runtime)
        self._ask = self._port.ask
        self._lines: Kept[str, Prepared] = Kept()
        self._asked: Kept[Wish, bytes] = Kept()
        self._expected: set[str] = set()
        """Claims that entered and may still get their turn by a message."""
        self._tokens: dict[str, int] = {}
        self._looks: dict[str, float] = {}
        """When each waiting claim has to look again by itself."""
        self._deaf: dict[str, bytes] = {}
        """Claims that hold and cannot be told of an eviction yet."""
        self._long_deaf: set[str] = set()
        """Those of them that were so at the last `news` already; short holds shall not cost a subscription."""
        self._doubtful: dict[str, None] = {}
        """Claims one of whose requests was not answered: it may still be under way when they leave.

        Most leave. What stays is of claims that nobody could withdraw in their lifetime: the newest are enough.
        """
        self._listener: Worker | None = None

    def forked(self) -> None:
        self._port.forked()
        self._wait_port.forked()
        self._keepers_port.forked()
        self._ears.forked()
        self._begin()

    def now(self) -> float:
        """The moment, on the clock of deadlines."""
        return self._runtime.now()

    def _line(self, name: str) -> Prepared:
        line = Prepared(key_of(name, self.prefix))
        return self._lines.keep(name, line, line.size)

    def _key(self, name: str) -> bytes:
        return (self._lines.get(name) or self._line(name)).key

    # -- one claim ---------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        name, claim_id, owner, kind, weight, capacity, ttl, _, meta = claim
        line = self._lines.get(name) or self._line(name)
        key = line.key
        address = self._known(key)
        channel = NO_CHANNEL if address is None else self._ears.channel(address)
        wish = (ttl, weight, capacity, channel, kind, owner, meta, wait)
        rest = self._asked.get(wish) or self._wish(wish)
        if wait:
            self._expected.add(claim_id)
        try:
            failed: Failed | None = None
            reply: Any = None
            if address is not None:
                try:
                    request = b"%b$%d\r\n%b\r\n%b" % (line.enter, len(claim_id), claim_id.encode(), rest)
                    reply = await self._ask(address, request, until)
                    if type(reply) is ServerError:
                        failed = Failed(address, reply)
                except NoAnswer as no_answer:
                    failed = Failed(address, no_answer)
            if failed is not None or address is None:
                call = Call(ENTER, (key,), (claim_id, *words(wish)))
                reply, repeated, _ = await self.channel.insist(call, until, failed, insists=wait)
                if repeated:
                    self._doubt(claim_id)
        except BaseException as problem:
            if not getattr(problem, "unsent", False):
                self._doubt(claim_id)
            self._done_waiting(claim_id)
            raise
        if type(reply) is int:
            self._expected.discard(claim_id)
            if channel == NO_CHANNEL:
                self._deaf[claim_id] = key
            if self.wait_replicas:
                await self._replicated(claim, key, until)
            return Grant(reply)
        if reply is None:
            self._expected.discard(claim_id)
            return None
        # On a channel that nobody listens to yet it looks at once, and brings along the one that it will hear.
        return self._waits(claim_id, reply, deaf=channel == NO_CHANNEL)

    def _wish(self, wish: Wish) -> bytes:
        """What claims of one kind have in common, ready for the wire."""
        text = pack(words(wish)).partition(b"\r\n")[2]
        return self._asked.keep(wish, text, 2 * len(text) + OVERHEAD)

    def _doubt(self, claim_id: str) -> None:
        self._doubtful[claim_id] = None
        while len(self._doubtful) > DOUBTS_KEPT:
            self._doubtful.pop(next(iter(self._doubtful), ""), None)

    def _waits(self, claim_id: str, reply: Sequence[int], *, deaf: bool = False) -> Waiting:
        """It looks again when the first one ahead may have expired, and not in the same moment as its neighbours."""
        ahead, change = reply
        wait = change / 1000 + min(ahead * APART, FURTHEST_APART)
        self._looks[claim_id] = look_by = 0.0 if deaf else self._runtime.now() + max(wait, SOONEST_LOOK)
        return Waiting(ahead, look_by)

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        claim_id, key = claim.id, self._key(claim.name)
        reply = self._tokens.pop(claim_id, None)
        if reply is None:
            reply = await self._stand(claim, key, until)
            if type(reply) is list:
                return self._waits(claim_id, reply)
        self._done_waiting(claim_id)
        if reply is None:
            return Gone()
        if self.wait_replicas:
            await self._replicated(claim, key, until)
        return Grant(reply)

    async def _stand(self, claim: Claim, key: bytes, until: float) -> Any:
        """Look where the claim stands; on a channel that we do listen to, from now on."""
        try:
            address = self._known(key) or await self.channel.topology.find(key, until)
            channel = await self._ears.listen(address, until)
        except NoAnswer as problem:
            if "address" in locals():
                self.channel.topology.doubt(address)
            raise unavailable(problem) from problem
        return (await self.channel.run(Call(STAND, (key,), (claim.id, channel, "0")), until)).value

    def _done_waiting(self, claim_id: str) -> None:
        self._expected.discard(claim_id)
        self._tokens.pop(claim_id, None)
        self._looks.pop(claim_id, None)

    async def _replicated(self, claim: Claim, key: bytes, until: float) -> None:
        # A turn that comes in the last moment shall not fail for want of time to ask.
        until = max(until, self._runtime.now() + 0.5)
        try:
            address = await self.channel.topology.find(key, until)
        except NoAnswer as problem:
            raise unavailable(problem) from problem
        await self._replicas.have(key, claim.id, self._ears.channel(address), address, until)

    async def leave(self, claim: Claim, until: float) -> bool:
        claim_id = claim[1]
        line = self._leaving(claim)
        address = self._known(line.key)
        failed: Failed | None = None
        doubtful = claim_id in self._doubtful
        if address is not None and not doubtful:
            try:
                reply = await self._ask(address, line.request_to_leave(claim_id), until)
                if type(reply) is int:
                    return reply == 1
                failed = Failed(address, reply)
            except NoAnswer as no_answer:
                failed = Failed(address, no_answer)
        answer = await self.channel.insist(_call_to_leave(line, claim_id, doubtful), until, failed)
        self._doubtful.pop(claim_id, None)
        return _was_there(answer)

    def _leaving(self, claim: Claim) -> Prepared:
        """Nobody waits for this claim any more, whatever becomes of the request; its line."""
        name, claim_id = claim[0], claim[1]
        if claim_id in self._expected or claim_id in self._looks or self._tokens:
            self._done_waiting(claim_id)
        if self._deaf:
            self._deaf.pop(claim_id, None)
        return self._lines.get(name) or self._line(name)

    # -- many claims -------------------------------------------------------------------------------

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        calls = [_call_to_leave(self._leaving(claim), claim.id, claim.id in self._doubtful) for claim in claims]
        outcomes = await self._batches.run(calls, until, insists=False)
        problems = [outcome for outcome in outcomes if isinstance(outcome, BackendUnavailable)]
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, Answer):
                self._doubtful.pop(claim.id, None)
        silences = [problem for problem in problems if not isinstance(problem, Refused)]
        if silences:
            silences[0].unsent = len(silences) == len(calls) and all(silence.unsent for silence in silences)
        if problems:
            raise (silences or problems)[0]
        return [_was_there(outcome) for outcome in outcomes if isinstance(outcome, Answer)]

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        lines = self._lines
        keys = [line.key if (line := lines.get(claim.name)) else key_of(claim.name, self.prefix) for claim in claims]
        outcomes = await self._renewals.renew(claims, keys, until)
        fates: list[Gone | Unanswered | None] = []
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, BackendUnavailable):
                fates.append(Unanswered(outcome))
                continue
            fates.append(outcome if isinstance(outcome, Gone) else None)
            if isinstance(outcome, Renewed) and claim.id in self._looks:
                self._learn_from_renewal(claim.id, outcome)
        return fates

    def _learn_from_renewal(self, claim_id: str, fate: Renewed) -> None:
        """A waiting claim was renewed: perhaps it holds and the message was lost, perhaps it should look earlier."""
        look = self._runtime.now() + fate.look_in + SOONEST_LOOK
        if not fate.look_in or look < self._looks.get(claim_id, 0.0):
            self._hints.heard(claim_id)

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        return await self._inspection.look(name, self._key(name), until)

    async def list(self, prefix: str, until: float) -> list[str]:
        return await self._inspection.names(prefix, until)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        args = (secrets.token_hex(8), "" if token is None else str(token))
        answer = await self.channel.run(Call(EVICT, (self._key(name),), args), until, insists=False)
        return int(answer.value)

    async def examine(self, until: float) -> list[Finding]:  # type: ignore[valid-type]
        return await doctor.examine(self, until)

    # -- messages ----------------------------------------------------------------------------------

    def report_to(self, hints: Hints) -> None:
        self._hints = hints

    def _heard(self, message: str) -> str:
        """Take note of a message; whoever read it hands it on to the claim."""
        claim_id, _, token = message.partition(" ")
        if token and claim_id in self._expected:
            self._tokens[claim_id] = int(token)
            # Given up meanwhile, by its own thread: nobody would ever fetch it.
            if claim_id not in self._expected:
                self._tokens.pop(claim_id, None)
        return claim_id

    def _deliver(self, claim_id: str) -> None:
        self._hints.heard(claim_id)

    def _look_all(self) -> None:
        self._hints.heard_all()

    async def attend(self) -> None:
        self._ears.drain()
        if self._deaf and (self._listener is None or not self._listener.alive()):
            deaf = set(self._deaf)
            if self._long_deaf & deaf:
                # Beside the keeper: it has deadlines to watch and must not wait for a connection.
                try:
                    self._listener = self._runtime.spawn(self._give_ears, "lockline-listen")
                except RuntimeError:
                    pass  # no thread to be had now
            self._long_deaf = deaf

    async def _give_ears(self) -> None:
        """Let claims that have held for a while be told of an eviction: their renewal brings the channel along."""
        for claim_id, key in list(self._deaf.items()):
            address = self._known(key)
            if claim_id not in self._long_deaf or address is None:
                continue
            try:
                await self._ears.listen(address, self._runtime.now() + self.target.patience)
            except Exception:
                # Not now; a renewal finds an eviction too, only later.
                return
            self._deaf.pop(claim_id, None)
            self._hints.heard(claim_id)

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.join(self._runtime.now() + 1.0)
        await self._ears.close()
        await self._wait_port.close()
        await self._keepers_port.close()
        await self._port.close()


def _call_to_leave(line: Prepared, claim_id: str, doubtful: bool) -> Call:
    return Call(LEAVE, (line.key,), (claim_id, "1" if doubtful else "0"))


def _was_there(answer: Answer) -> bool:
    """Also if it is not there after a try that was not answered: that one may well have removed it."""
    return bool(answer.value) or answer.repeated
