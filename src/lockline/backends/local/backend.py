"""The embedded default: any number of processes on one machine, no server."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...core.backend import Findings
from ...core.claim import DETACHED, Claim, Gone, Grant, Line, Record, Waiting
from ...core.waiting import Hints, begun
from ...errors import BackendUnavailable, LocklineError
from ...guarantees import Guarantees
from ...runtime import Runtime, Signal
from ...runtime.fairness import Breather
from ...runtime.limits import let_through
from . import inspection, keeping
from .commands import ClaimRow, SqliteSteps, ToldClient
from .doctor import findings
from .errors import Busy
from .hand_over import hand_over
from .keeper_signal import KeeperSignal
from .subscription import PeerListener, Peers

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

GUARANTEES = Guarantees(
    exclusion="machine",
    fifo=True,
    push=True,
    token_survives=frozenset({"release", "expiry", "restart"}),
    tolerates=(
        "Any process may crash, freeze or be killed at any moment, the wall clock may step and the power may fail; "
        "deleting the file while it is in use forgets who holds."
    ),
)

NEXT_LOOKS_EVERY = 0.5
OTHERS_LOOK_EVERY = 2.0
"""How often a waiter looks although nobody woke it: the net under the pushes."""
LAST_STEP = 0.5
"""How long a client that is closed tries to clear away what is left of it."""
BATCH = 500
"""How many claims leave in one transaction, which keeps everybody else out for some milliseconds."""


class LocalBackend:
    """One client of the file."""

    guarantees = GUARANTEES

    def __init__(self, file: Path, runtime: Runtime, url: str) -> None:
        self.url = url
        self._file = file
        self._runtime = runtime
        self._steps = SqliteSteps(file, runtime.now)
        self._breather = Breather(runtime)
        self._threads = runtime.flavour == "blocking"
        """Who waits reads for himself; in asyncio the loop reads for all."""
        # Beside the file itself, by whatever links it was named: those who use the same file have to meet.
        self._peers = Peers(
            lambda: PeerListener(self._steps.make(), keeper=self._threads, missed=lambda: self._hints.missed())
        )
        self.reader = self._peers if self._threads else None
        self._begin()

    def _begin(self) -> None:
        self._listening = False
        self._reading: asyncio.AbstractEventLoop | None = None
        self._witness: int | None = None

    def entrust(self, pid: int) -> int:
        self._witness = pid
        return self._peers.open().socket.fileno()

    def signal(self) -> Signal:
        """What the keeper waits on."""
        if not self._threads:
            return self._runtime.signal()
        return KeeperSignal(self._peers, lambda claim_id: self._hints.heard(claim_id), self._runtime.now)

    def forked(self) -> None:
        self._peers.forked()
        self._steps.forked()
        self._begin()

    def __del__(self) -> None:
        # Dropped without close(): by the socket files, which then stay, others see that what it left is nobody's.
        steps, peers = getattr(self, "_steps", None), getattr(self, "_peers", None)
        if steps is None or peers is None:
            return
        if steps.stands():
            peers.drop()
        else:
            peers.close()
        steps.close()

    # -- one step at a time ------------------------------------------------------------------------

    async def _step(self, work: Callable[[], T], until: float) -> T:
        """Run one atomic step; while another process is in its own, wait the moment that takes."""
        pause = 0.00002
        while True:
            try:
                return work()
            except Busy:
                pass
            except BackendUnavailable as problem:
                # A step that failed was undone: nothing of it is in the file.
                problem.unsent = True
                raise
            except OSError as problem:
                let_through(problem)
                raise _unsent(f"{self._file}: {problem.strerror or problem}") from problem
            if self._runtime.now() >= until:
                raise _unsent(
                    f"{self._file} stayed busy: a process that uses it is frozen in the middle of a step, "
                    "or another program locks it (fuser shows who has it open)"
                )
            await self._runtime.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 1.5, 0.002)

    async def _wake(self, told: Iterable[ToldClient], until: float) -> None:
        """Wake whoever was let in; who turns out dead is cleared away, and the next one is woken."""
        waiting = list(told)
        while waiting:
            client, claim_id = waiting.pop()
            if client == self._peers.me:
                self._hints.heard(claim_id)
            elif not self._peers.tell(client, claim_id):
                waiting += await self._clear_away(client, until)

    async def _clear_away(self, client: str, until: float) -> list[ToldClient]:
        """Remove what a dead client left, its sockets last: without those it would pass for alive. Whom to wake now."""
        told = await self._step(lambda: self._steps.remove_client(client), until)
        self._peers.remove_sockets(client)
        return told

    # -- hints -------------------------------------------------------------------------------------

    async def _listen(self, until: float) -> None:
        """Be ready to be woken, and clear away who died."""
        listener = await self._step(self._peers.open, until)
        if self._listening:
            return
        self._listening = True
        if not self._threads:
            import asyncio

            self._reading = asyncio.get_running_loop()
            self._reading.add_reader(listener.fileno(), self._read)
        for client in self._peers.dead():
            await self._wake(await self._clear_away(client, until), until)

    def report_to(self, hints: Hints) -> None:
        self._hints = hints

    def _read(self) -> None:
        for claim_id in self._peers.receive(0):
            self._hints.heard(claim_id)

    async def watch(self, name: str, watcher: str, until: float) -> bool:
        if not self._listening:
            await self._listen(until)
        for _ in range(2):
            pushed = (await self._step(self._peers.open, until)).watch_file(watcher)
            # Whoever is in its step may have written already what nobody can see yet: let that one end. And a step makes the
            # log, if there was none to be watched.
            await self._step(lambda: self._steps.step(lambda db: None), until)
            if pushed:
                self._hints.heard(begun(watcher))
                return True
        return False

    async def unwatch(self, watcher: str) -> None:
        listener = self._peers.listener
        if listener is not None:
            listener.unwatch_file(watcher)

    async def attend(self) -> None:
        if self._threads:
            self._read()

    # -- the protocol ------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        await self._breather.breathe()
        if not self._listening:
            await self._listen(until)
        pid = self._witness or os.getpid()
        while True:
            answer, in_the_way = await self._step(lambda: self._steps.enter(claim, wait, self._peers.me, pid), until)
            if type(answer) is Grant:
                return answer
            if answer is not None or not await self._clear_away_the_dead(in_the_way, until):
                return answer

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        while True:
            answer, in_the_way = await self._step(lambda: self._steps.standing(claim), until)
            if not isinstance(answer, Waiting):
                self._peers.unwatch(claim.id)
                return answer
            if await self._clear_away_the_dead(in_the_way, until) or not self._watch(claim, in_the_way):
                continue
            now = self._runtime.now()
            i_am_next = answer.ahead == len(in_the_way)
            look_again = now + (NEXT_LOOKS_EVERY if i_am_next else OTHERS_LOOK_EVERY)
            return answer._replace(look_by=min([look_again, *(row.expires for row in in_the_way)]))

    async def _clear_away_the_dead(self, rows: list[ClaimRow], until: float) -> bool:
        """Whether somebody in the way turned out to be dead."""
        dead = {row.client for row in rows if not self._peers.alive(row.client)}
        for client in dead:
            await self._wake(await self._clear_away(client, until), until)
        return bool(dead)

    def _watch(self, claim: Claim, rows: list[ClaimRow]) -> bool:
        """Hear of the end of those in the way; False when one ended just now."""
        others = {row.pid for row in rows if row.reached_at != self._peers.me}
        watching = [self._peers.watch(pid, claim.id) for pid in others]
        # A pid that is not there may be of another pid namespace: then the socket alone tells, at each look.
        return all(watching) or all(self._peers.alive(row.client) for row in rows)

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        self._peers.unwatch(claim.id)
        there, told = await self._step(lambda: self._steps.leave(claim), until)
        self._steps.forget(claim.id)
        if heir:
            # It knows; a word about a claim that holds would have it renewed.
            self._peers.unwatch(heir)
            told = [one for one in told if one.claim_id != heir]
        if told:
            await self._wake(told, until)
        return there

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        left: list[bool] = []
        for start in range(0, len(claims), BATCH):
            batch = claims[start : start + BATCH]
            for claim in batch:
                self._peers.unwatch(claim.id)
            there, told = await self._step(lambda batch=batch: self._steps.leave_all(batch), until)  # type: ignore[misc]
            for claim in batch:
                self._steps.forget(claim.id)
            left += there
            await self._wake(told, until)
        return left

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | None]:
        fates, told = await self._step(lambda: self._steps.renew(claims), until)
        await self._wake(told, until)
        return fates

    async def look(self, name: str, until: float) -> Line:
        await self._breather.breathe()
        return await self._step(lambda: inspection.look(self._steps, name), until)

    async def look_many(self, names: Sequence[str], until: float) -> Sequence[Line]:
        await self._breather.breathe()
        return await self._step(lambda: inspection.look_many(self._steps, names), until)

    async def list(self, prefix: str, until: float) -> list[str]:
        await self._breather.breathe()
        return await self._step(lambda: inspection.names(self._steps, prefix), until)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        victims, told = await self._step(lambda: inspection.evict(self._steps, name, token), until)
        await self._wake(told, until)
        for victim in victims:
            if victim.client == self._peers.me:
                self._hints.heard(victim.claim_id)
            else:
                self._peers.tell_keeper(victim.client, victim.claim_id)
        return len(victims)

    async def kept(self, name: str, what: str, until: float, token: int = 0, ttl: float = 0.0) -> Record:
        await self._breather.breathe()
        if token:
            return await self._step(lambda: keeping.arrive(self._steps, name, what, token, ttl), until)
        return await self._step(lambda: keeping.look(self._steps, name, what), until)

    async def keep(self, name: str, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
        return await self._step(lambda: keeping.keep(self._steps, name, what, value, token, ttl), until)

    async def hand_over(self, old: str, claim: Claim, until: float) -> Grant | Waiting | Gone:
        if not self._listening:
            await self._listen(until)
        pid = self._witness or os.getpid()
        fate = await self._step(lambda: hand_over(self._steps, old, claim, self._peers.me, pid), until)
        if type(fate) is Grant:
            self._steps.forget(old)
            if claim.id.startswith(DETACHED):
                # Whoever comes for it may be anybody.
                self._steps.forget(claim.id)
        return fate

    async def last(self, claim: Claim, ttl: float, until: float) -> bool:
        there = await self._step(lambda: keeping.let_last(self._steps, claim, ttl), until)
        self._steps.forget(claim.id)
        return there

    async def examine(self, until: float) -> Findings:
        return findings(self._file, await self.list("", until), NEXT_LOOKS_EVERY)

    # -- the end -----------------------------------------------------------------------------------

    async def close(self) -> None:
        listener = self._peers.listener
        if self._reading is not None and listener is not None:
            self._reading.remove_reader(listener.fileno())
            self._reading = None
        if await self._withdraw_rest():
            self._peers.close()
        else:
            self._peers.drop()
        self._steps.close()

    async def _withdraw_rest(self) -> bool:
        """Withdraw what somebody who was cut short may have left; if that fails, others see by our socket that we are gone."""
        if not self._steps.stands():
            return True
        try:
            until = self._runtime.now() + LAST_STEP
            await self._wake(await self._step(lambda: self._steps.remove_client(self._peers.me), until), until)
        except LocklineError:
            return False
        return True


def _unsent(text: str) -> BackendUnavailable:
    problem = BackendUnavailable(text)
    problem.unsent = True
    return problem
