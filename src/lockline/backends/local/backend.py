"""The embedded default: any number of processes on one machine, no server."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...core.backend import Finding, Findings
from ...core.claim import Claim, Gone, Grant, Line, Waiting
from ...core.runtime import Runtime
from ...errors import BackendUnavailable, ClientClosed
from ...guarantees import Guarantees
from .files import file_system
from .peers import Peers
from .store import Busy, Row, Store, Told

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


class LocalBackend:
    """One client of the file."""

    guarantees = GUARANTEES

    def __init__(self, file: Path, runtime: Runtime, url: str) -> None:
        self.url = url
        self._file = file
        self._runtime = runtime
        self._store = Store(file, runtime.now)
        self._begin()

    def _begin(self) -> None:
        self._mutex = self._runtime.mutex()
        self._peers = Peers(self._file.with_name(self._file.name + "-peers"))
        self._mailbox = self._runtime.mailbox(self._receive, self._peers.nudge)
        self._news: list[str] = []
        self._interrupted = False
        self._closed = False
        self._listening = False
        self._reading: asyncio.AbstractEventLoop | None = None
        self._witness: int | None = None

    def entrust(self, pid: int) -> int:
        with self._mutex:
            self._witness = pid
            return self._peers.open().fileno()

    def forked(self) -> None:
        self._peers.drop()
        self._store.abandon()
        self._begin()

    # -- one step at a time ------------------------------------------------------------------------

    async def _step(self, work: Callable[[], T], until: float) -> T:
        """Run one atomic step; while another process is in its own, wait the moment that takes."""
        pause = 0.00002
        while True:
            try:
                with self._mutex:
                    if self._closed:
                        raise ClientClosed("this client is closed; connect a new one")
                    return work()
            except Busy:
                pass
            if self._runtime.now() >= until:
                raise BackendUnavailable(
                    f"{self._file} stayed busy: a process that uses it is frozen in the middle of a step, "
                    "or another program locks it (fuser shows who has it open)"
                )
            await self._runtime.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 1.5, 0.002)

    async def _wake(self, told: Iterable[Told], until: float) -> None:
        """Wake whoever was let in; who turns out dead is buried, and the next one is woken."""
        waiting = list(told)
        while waiting:
            client, claim_id = waiting.pop()
            if client == self._peers.me:
                self._told(claim_id)
            elif not self._peers.tell(client, [claim_id]):
                waiting += await self._bury(client, until)

    async def _bury(self, client: str, until: float) -> list[Told]:
        told = await self._step(lambda: self._store.bury(client), until)
        self._peers.bury(client)
        return told

    # -- hints -------------------------------------------------------------------------------------

    async def _listen(self, until: float) -> None:
        """Be ready to be woken. In asyncio the loop reads; in threads whoever waits does."""
        with self._mutex:
            if self._listening:
                return
            self._peers.open()
            self._listening = True
        if self._runtime.flavour == "asyncio":
            import asyncio

            self._reading = asyncio.get_running_loop()
            self._reading.add_reader(self._peers.fileno(), self._read)
        for client in self._peers.dead():
            await self._wake(await self._bury(client, until), until)

    def _read(self) -> None:
        for claim_id in self._receive(0):
            self._told(claim_id)

    def _receive(self, seconds: float) -> list[str]:
        return self._sort(self._peers.receive(seconds))

    def _sort(self, told: list[str]) -> list[str]:
        """Keep what concerns no waiting claim for the keeper."""
        return [claim_id for claim_id in told if claim_id]

    def _told(self, claim_id: str) -> None:
        if not self._mailbox.deliver(claim_id):
            self._news.append(claim_id)

    async def news(self) -> Collection[str]:
        if self._runtime.flavour != "asyncio":
            for claim_id in self._sort(self._peers.drain()):
                self._told(claim_id)
        news, self._news = self._news, []
        return news

    # -- the protocol ------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        if not self._listening:
            await self._listen(until)
        pid = self._witness or os.getpid()
        while True:
            answer, in_the_way = await self._step(lambda: self._store.enter(claim, wait, self._peers.me, pid), until)
            if type(answer) is Grant:
                return answer
            if answer is not None or not await self._bury_the_dead(in_the_way, until):
                return answer

    async def turn(self, claim: Claim, until: float) -> Grant | Gone | None:
        # Before the first look: a hint that comes after it has a place to lie.
        self._mailbox.open(claim.id)
        while not self._interrupted:
            answer, in_the_way = await self._step(lambda: self._store.standing(claim), until)
            if not isinstance(answer, Waiting):
                self._done(claim)
                return answer
            if await self._bury_the_dead(in_the_way, until) or not self._watch(claim, in_the_way):
                continue
            now = self._runtime.now()
            if now >= until:
                return None
            i_am_next = answer.ahead == len(in_the_way)
            look_again = now + (NEXT_LOOKS_EVERY if i_am_next else OTHERS_LOOK_EVERY)
            expiry = min((row.expires for row in in_the_way), default=now)
            await self._mailbox.wait(claim.id, min(until, look_again, expiry))
        return None

    async def _bury_the_dead(self, rows: list[Row], until: float) -> bool:
        """Whether somebody in the way turned out to be dead."""
        dead = {row.client for row in rows if not self._peers.alive(row.client)}
        for client in dead:
            await self._wake(await self._bury(client, until), until)
        return bool(dead)

    def _watch(self, claim: Claim, rows: list[Row]) -> bool:
        """Hear of the end of those in the way; False when one ended just now."""
        others = {row.pid for row in rows if row.client != self._peers.me}
        watching = [self._peers.watch(pid, claim.id) for pid in others]
        # A pid that is not there may be of another pid namespace: then the socket alone tells, at each look.
        return all(watching) or all(self._peers.alive(row.client) for row in rows)

    def _done(self, claim: Claim) -> None:
        self._mailbox.close(claim.id)
        self._peers.unwatch(claim.id)

    async def leave(self, claim: Claim, until: float) -> bool:
        self._done(claim)
        there, told = await self._step(lambda: self._store.leave(claim), until)
        self._store.forget(claim.id)
        if told:
            await self._wake(told, until)
        return there

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | None]:
        fates, told = await self._step(lambda: self._store.renew(claims), until)
        await self._wake(told, until)
        return fates

    async def look(self, name: str, until: float) -> Line:
        return await self._step(lambda: self._store.look(name), until)

    async def list(self, prefix: str, until: float) -> list[str]:
        return await self._step(lambda: self._store.names(prefix), until)

    async def evict(self, name: str, until: float) -> int:
        victims, told = await self._step(lambda: self._store.evict(name), until)
        await self._wake(told, until)
        for victim in victims:
            if victim.client == self._peers.me:
                self._told(victim.claim_id)
            else:
                self._peers.tell(victim.client, [victim.claim_id])
        return len(victims)

    async def examine(self, until: float) -> Findings:
        names = await self.list("", until)
        findings = [Finding("ok", f"{self._file} is readable and writable; {len(names)} names are in use")]
        kind = file_system(self._file)
        if kind.startswith(("nfs", "cifs", "smb", "9p", "fuse.sshfs")):
            findings.append(Finding("error", f"it is on a network file system ({kind})", "use a file on a local disk"))
        with contextlib.suppress(OSError):
            if self._file.stat().st_mode & 0o077:
                findings.append(Finding("warning", "others may read or write the file", f"chmod 600 {self._file}"))
            space = os.statvfs(self._file)
            if space.f_bavail * space.f_frsize < 16 << 20:
                findings.append(Finding("warning", "the disk is nearly full", "free some space on it"))
        if not hasattr(os, "pidfd_open"):
            findings.append(Finding("warning", f"a killed holder is noticed within {NEXT_LOOKS_EVERY} s, not at once"))
        return findings

    # -- the end -----------------------------------------------------------------------------------

    def nudge(self, claim_id: str) -> None:
        self._mailbox.deliver(claim_id)

    def interrupt(self) -> None:
        self._interrupted = True
        self._mailbox.deliver_all()

    async def close(self) -> None:
        self._interrupted = True
        if self._reading is not None:
            self._reading.remove_reader(self._peers.fileno())
            self._reading = None
        self._peers.close()
        with self._mutex:
            self._closed = True
            self._store.close()
