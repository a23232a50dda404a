"""`redlock://`: a majority of independent servers, with fencing tokens.

There is no line on the servers, so waiting is this client's own: the first of its waiters for a name tries, the others stand
behind it; across clients it is a race. A waiter tries again when a release is published, when the leases in its way have run
out, and otherwise seldom.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from ...core.backend import Finding
from ...core.claim import Claim, Gone, Grant, Line, RenewResults, Unanswered, Waiting
from ...core.lasting import renew_for
from ...core.waiting import Hints
from ...errors import BackendUnavailable, ConfigError, QuorumNotReached
from ...guarantees import Guarantees
from ...runtime import Runtime
from ...runtime.clock import DRIFT
from . import commands, inspection, rules
from .answers import unreached
from .channel import Fanout, connect_timeout
from .claims import LOOK_EVERY, Attempt, OwnLines, RedlockClaim
from .doctor import examine
from .protocol import Protocol
from .scripts import FREED, VICTIM
from .subscription import Hearer
from .subscription_asyncio import AsyncioHints
from .subscription_blocking import BlockingHints
from .target import Node, RedlockTarget

T = TypeVar("T")

GUARANTEES = Guarantees(
    exclusion="majority",
    fifo=False,
    push=True,
    token_survives=frozenset({"release", "expiry", "restart", "failover", "wipe"}),
    tolerates=(
        "A minority of the servers may die, freeze, restart or lose their data; tokens stay unique and rise without any clock. "
        "That two leases never overlap rests on clocks that run at about the same rate, as in every lease."
    ),
)

SHORT_WAIT = 0.01
"""Who waits no longer than that is not worth showing."""
TOGETHER = 100
"""Leases that are released in one conversation, at most: their answers have to come within one node's timeout."""
A_MOMENT = 0.02
"""How long a holder that has waited tells people that it no longer does, and the pause before an undecided question is asked again."""
TRIES = 5
"""How often a `try_acquire` that met another attempt half-way tries again before it says no."""


class RedlockBackend:
    """One client of a cluster."""

    guarantees = GUARANTEES

    def __init__(
        self,
        target: RedlockTarget,
        runtime: Runtime,
        channel: Fanout,
        hints: Callable[[Sequence[Node], float, Hearer, Hearer], BlockingHints | AsyncioHints],
    ) -> None:
        self.url = target.url
        self.channel = channel
        self.protocol = Protocol(channel, target.drift, DRIFT)
        self._runtime = runtime
        self._prefix = target.prefix
        self._subscriptions = hints(target.nodes, target.node_timeout, self._freed, self._evicted)
        self.reader = self._subscriptions if isinstance(self._subscriptions, BlockingHints) else None
        self._random = random.Random()
        self._begin()

    def _begin(self) -> None:
        self._stood: dict[str, RedlockClaim] = {}
        self.lines = OwnLines(self._runtime)
        self._attended = 0
        self._victim_channel = ""

    def forked(self) -> None:
        self.channel.forked()
        self._subscriptions.forked()
        self._begin()

    # -- hints -------------------------------------------------------------------------------------

    def _freed(self, name: str) -> None:
        first = self.lines.first(name)
        if (stood := self._stood.get(first)) is not None:
            # Others heard it too: come at different moments, or nobody gets a majority.
            stood.next_try = self._runtime.now() + self._random.random() * stood.spread
            self._hints.heard(first)

    def _evicted(self, attempt: str) -> None:
        self._hints.heard(commands.claim_of(attempt))

    def report_to(self, hints: Hints) -> None:
        self._hints = hints

    # -- enter and place ---------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        if claim.kind not in ("lock", "rlock"):
            what = "semaphores" if claim.kind == "permit" else "read-write locks"
            raise ConfigError(
                f"redlock:// gives locks and re-entrant locks, not {what}: a majority of leases can exclude, but not count "
                "or queue; use redis://, etcd:// or zk:// for semaphores and read-write locks"
            )
        stood = self._stood.get(claim.id)
        if stood is None:
            stood = self._stood[claim.id] = RedlockClaim(claim)
        elif stood.attempt is not None and stood.attempt.token is not None:
            return Grant(stood.attempt.token, stood.attempt.sent)
        elif self.lines.ahead(self._prefix + claim.name, claim.id) is not None:
            return self._waits(stood)
        for more in range(TRIES - 1, -1, -1):
            try:
                if wait:
                    grant = await self.protocol.insist(self._try, stood, until, self._hold_back)
                else:
                    grant = await self._try(stood, until)
            except BackendUnavailable as problem:
                if problem.unsent and not wait:
                    # An earlier try may have been sent.
                    problem.unsent = stood.tries == 1
                if problem.unsent:
                    # Nobody will withdraw what was never sent.
                    self._stood.pop(claim.id, None)
                raise
            if grant is not None:
                return grant
            assert stood.attempt is not None
            if wait or self._taken(stood.attempt.blockers()):
                break
            # Two tries met half-way and both failed: it is nobody's yet, so "no room" would be untrue.
            if not more or self._runtime.now() + stood.spread >= until:
                break
            await self._runtime.sleep(self._random.random() * stood.spread)
            stood.spread *= 2
        if not wait:
            del self._stood[claim.id]
            return None
        self.lines.stand(self._prefix + claim.name, claim.id)
        stood.show_at = self._runtime.now() + SHORT_WAIT
        # Whoever is the first of its line, now or later, subscribes and then tries once more: it may have been freed in between.
        stood.next_try = 0.0
        return self._waits(stood)

    def _waits(self, stood: RedlockClaim) -> Waiting:
        # None: withdrawn in this moment, by who closes the client; the next look tells.
        at = self.lines.ahead(self._prefix + stood.claim.name, stood.claim.id) or 0
        return Waiting(at, stood.show_at if at else min(stood.next_try, stood.show_at), stands=False)

    async def _try(self, stood: RedlockClaim, until: float) -> Grant | None:
        """One attempt under an id that was never used before; QuorumNotReached if too few servers could take part."""
        claim = stood.claim
        stood.tries += 1
        attempt = Attempt(
            self._prefix + claim.name,
            rules.attempt_id(claim.id, stood.tries),
            claim.ttl,
            inspection.info_of(claim, self._runtime.wall()),
        )
        attempt.kept_for = claim.kept_for
        stood.attempt = attempt
        if await self.protocol.acquire(attempt, until):
            assert attempt.token is not None
            return Grant(attempt.token, attempt.sent)
        if attempt.out_of_reach:
            replies = {**attempt.refusals, **{node: [b"yes"] for node in list(attempt.numbers)}}
            raise unreached(self.channel, f"{claim.name!r} could not be asked for at a majority of servers", replies)
        return None

    def _hold_back(self, stood: RedlockClaim) -> float:
        return stood.hold_back(self._runtime.now(), self._random)

    def _taken(self, blockers: list[tuple[str, float]]) -> bool:
        """Whether one other attempt holds so many nodes that it has won, or may have."""
        holders = [holder for holder, _ in blockers]
        nodes = len(self.channel.labels)
        return any(holders.count(holder) > nodes - rules.majority(nodes) for holder in set(holders))

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        stood = self._stood.get(claim.id)
        if stood is None:
            return Gone()
        if stood.attempt is not None and stood.attempt.token is not None:
            return Grant(stood.attempt.token, stood.attempt.sent)
        name = self._prefix + claim.name
        if self.lines.ahead(name, claim.id) is None:
            return Gone()
        if self.lines.first(name) == claim.id and self._runtime.now() >= stood.next_try:
            if not stood.subscribed:
                stood.subscribed = True
                await self._subscriptions.subscribe(FREED + name, until)
            # What is heard of while it tries makes it sooner than what the try itself finds out.
            stood.next_try = float("inf")
            stood.silence = None
            try:
                grant = await self._try(stood, until)
            except QuorumNotReached as problem:
                stood.silence = problem
                stood.next_try = min(stood.next_try, self._runtime.now() + self._hold_back(stood))
                raise
            except BaseException:
                stood.next_try = 0.0
                raise
            if grant is not None:
                self._no_longer_waits(claim)
                if stood.shown:
                    # It holds, whatever becomes of this: what people see ends by itself.
                    with contextlib.suppress(BackendUnavailable):
                        await inspection.hide(self.channel, name, claim.id, self._runtime.now() + A_MOMENT)
                return grant
            stood.next_try = min(stood.next_try, self._next_try(stood))
        elif stood.silence is not None and self.lines.first(name) == claim.id:
            # Not to be asked again yet; and what was not answered is still all that is known.
            raise stood.silence.with_traceback(None)
        now = self._runtime.now()
        if now >= stood.show_at:
            stood.show_at, stood.shown = now + claim.ttl / 2, True
            await inspection.show(
                self.channel, name, claim.id, self.protocol.milliseconds(claim.ttl), inspection.info_of(claim), until
            )
        return self._waits(stood)

    def _next_try(self, stood: RedlockClaim) -> float:
        """When enough of the leases in the way will have run out, or it is time to look anyway."""
        now = self._runtime.now()
        jitter = self._random.random()
        assert stood.attempt is not None
        blockers = stood.attempt.blockers()
        if not self._taken(blockers):
            # Nobody has it; those who met half-way try again soon, and not together.
            return now + stood.come_apart(now, self._random)
        stood.come_closer(now)
        times = sorted(left for _, left in blockers)
        spare = len(self.channel.labels) - rules.majority(len(self.channel.labels))
        enough = times[max(0, len(times) - spare - 1)]
        return now + min(enough + 0.002 + jitter * stood.spread, LOOK_EVERY * (0.5 + jitter))

    def _no_longer_waits(self, claim: Claim) -> None:
        name = self._prefix + claim.name
        stood = self._stood.get(claim.id)
        if stood is not None and stood.subscribed:
            stood.subscribed = False
            self._subscriptions.unsubscribe(FREED + name)
        heir = self.lines.step_out(name, claim.id)
        if heir is not None:
            self._hints.heard(heir)

    # -- leave and renew ---------------------------------------------------------------------------

    async def leave(self, claim: Claim, until: float) -> bool:
        stood = self._stood.get(claim.id)
        if stood is None:
            return False
        # The same one in every round: a renewal that is still under way may find it gone, and forget it.
        return await self.protocol.insist(self._leave, stood, until)

    async def _leave(self, stood: RedlockClaim, until: float) -> bool:
        """One round; QuorumNotReached if too few servers took part."""
        claim, attempt = stood.claim, stood.attempt
        self._no_longer_waits(claim)
        there = False
        if stood.shown and (attempt is None or attempt.token is None):
            await inspection.hide(self.channel, self._prefix + claim.name, claim.id, until)
        if attempt is not None and attempt.sent and (attempt.token is not None or not attempt.undone):
            there = await self.protocol.release(attempt, until)
        self._stood.pop(claim.id, None)
        return there

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        there = [False] * len(claims)
        held: list[tuple[int, Attempt]] = []
        for at, claim in enumerate(claims):
            stood = self._stood.get(claim.id)
            if stood is None:
                continue
            self._no_longer_waits(claim)
            attempt = stood.attempt
            if stood.shown or attempt is None or attempt.token is None:
                # It waits, or was cut short: there is more to undo than a lease.
                there[at] = await self._leave(stood, until)
            else:
                held.append((at, attempt))
        for begin in range(0, len(held), TOGETHER):
            batch = held[begin : begin + TOGETHER]
            verdicts = await self.protocol.release_all([attempt for _, attempt in batch], until)
            for (at, _), was_there in zip(batch, verdicts, strict=True):
                there[at] = was_there
                self._stood.pop(claims[at].id, None)
        return there

    async def renew(self, claims: Sequence[Claim], until: float, *, exactly: bool = False) -> RenewResults:
        fates: list[Gone | Unanswered | None] = [None] * len(claims)
        held: list[tuple[int, Attempt, float]] = []
        for at, claim in enumerate(claims):
            stood = self._stood.get(claim.id)
            if stood is None:
                fates[at] = Gone()
            elif stood.attempt is not None and stood.attempt.token is not None:
                self.protocol.check(claim.ttl)
                held.append((at, stood.attempt, claim.ttl))
        if held:
            holds = [(attempt, ttl) for _, attempt, ttl in held]
            verdicts = await self.protocol.extend(holds, until, exactly=exactly)
            for (at, _, _), alive in zip(held, verdicts, strict=True):
                if isinstance(alive, QuorumNotReached):
                    fates[at] = Unanswered(alive)
                elif not alive:
                    fates[at] = Gone()
                    self._stood.pop(claims[at].id, None)
            if lost := [attempt for at, attempt, _ in held if fates[at] == Gone()]:
                await self.protocol.abandon(lost, until)
        return fates

    # -- questions ---------------------------------------------------------------------------------

    async def last(self, claim: Claim, ttl: float, until: float) -> bool:
        return await renew_for(partial(self.renew, exactly=True), claim, ttl, until)

    async def look(self, name: str, until: float) -> Line:
        return (await self._ask(lambda: inspection.look(self.channel, self._prefix + name, until), until)).line(name)

    async def list(self, prefix: str, until: float) -> list[str]:
        names = await self._ask(lambda: inspection.names(self.channel, self._prefix + prefix, until), until)
        return [name[len(self._prefix) :] for name in names]

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        key = self._prefix + name

        async def who() -> inspection.RedlockHolder | None:
            holder = (await inspection.look(self.channel, key, until)).holder
            if token is not None and holder is not None and not holder.certain:
                what = f"too few servers could be asked which token the holder of {name!r} has"
                raise QuorumNotReached(what, nodes={})
            return holder

        # Evicted is the attempt that was seen, and no other: one with another token is another attempt.
        holder = await self._ask(who, until)
        if holder is None or token not in (None, holder.number):
            return 0
        evict = partial(inspection.evict, self.channel, key, holder, self.protocol.milliseconds(holder.ttl), until, [])
        return int(await self._ask(evict, until))

    async def _ask(self, question: Callable[[], Awaitable[T]], until: float) -> T:
        """What a majority says; where servers were silent, asked again for a moment: they may be slow, or about to be connected again."""
        patience = min(until, self._runtime.now() + connect_timeout(self.channel.node_timeout))
        told: QuorumNotReached | None = None
        while True:
            try:
                return await question()
            except QuorumNotReached as problem:
                # The first one had time enough; the last may have had none.
                told = told or problem
                if problem.unsent or self._runtime.now() >= patience:
                    raise told from None
            self.channel.hurry()
            await self._runtime.sleep(A_MOMENT)

    async def attend(self) -> None:
        if not self._victim_channel:
            # A short hold needs no subscription for evictions; one that lasts gets it here, off the caller's path.
            self._attended += 1
            held = [claim_id for claim_id, stood in list(self._stood.items()) if stood.attempt]
            if self._attended > 1 and held:
                self._victim_channel = VICTIM + commands.client_of(held[0])
                # In the background: nothing may hold up the keeper.
                try:
                    self._runtime.spawn(self._listen_for_evictions, "lockline-hints")
                except RuntimeError:
                    self._victim_channel = ""  # no thread to be had now
        self._subscriptions.drain()

    async def _listen_for_evictions(self) -> None:
        await self._subscriptions.subscribe(self._victim_channel, self._runtime.now() + 1.0)
        # What was evicted before anybody listened is found out by asking once.
        for claim_id in list(self._stood):
            self._hints.remind(claim_id)

    async def examine(self, until: float) -> list[Finding]:  # type: ignore[valid-type]
        return await examine(self.channel, until)

    async def close(self) -> None:
        await self._subscriptions.close()
        await self.channel.close()
        # As on redis: a loop ends what was closed in its next round.
        await self._runtime.sleep(0)
