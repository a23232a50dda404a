"""The processes of one machine, to each other: a datagram socket each, to be woken through and to be known alive by.

The kernel closes a dead process's socket at once, so a refused datagram is the proof of death that a ttl is not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterable

from ...errors import ClientClosed
from .ear import KEEPER, Ear

NAP = 2.0
"""The longest sleep of a keeper without a look at the clock."""

_A_CLIENT = re.compile(r"[0-9a-f]{16}")
_A_SOCKET = re.compile(rf"([0-9a-f]{{16}})({re.escape(KEEPER)})?")


class Peers:
    """This client's sockets, and what it knows of the others."""

    def __init__(self, listen: Callable[[], Ear]) -> None:
        self._listen = listen
        self._ears: dict[str, Ear] = {}
        self._over = False

    # -- the own sockets ---------------------------------------------------------------------------

    @property
    def me(self) -> str:
        """The name that the others know this client by; empty before it listens."""
        ear = self.ear
        return ear.name if ear is not None else ""

    @property
    def ear(self) -> Ear | None:
        """What this client hears with, once it listens."""
        return self._ears.get("mine")

    def open(self) -> Ear:
        """Listen; once, whoever comes first of several threads."""
        ear = self.ear
        if ear is not None:
            return ear
        if self._over:
            raise ClientClosed("this client is closed; connect a new one")
        made = self._listen()
        ear = self._ears.setdefault("mine", made)
        ear.kept = True
        if ear is not made:
            made.close()
        if self._over:
            self.close()
        return ear

    def close(self) -> None:
        """Stop listening for good, and leave no file."""
        self._over = True
        ear = self._ears.pop("mine", None)
        if ear is not None:
            ear.close()

    def drop(self) -> None:
        """Let go of every handle without a word; all that a forked child may do, and all that one may do whose claims still stand."""
        self._over = True
        ear = self._ears.pop("mine", None)
        if ear is not None:
            ear.drop()

    # -- the others --------------------------------------------------------------------------------

    def tell(self, client: str, claim_ids: Iterable[str]) -> bool:
        """Wake the claims of another client; False when its process is dead."""
        return self._send(client, claim_ids) != errno.ECONNREFUSED

    def tell_keeper(self, client: str, claim_ids: Iterable[str]) -> None:
        """Let another client know that what it holds has changed; one whose keeper has no ear of its own hears it as all else."""
        claim_ids = list(claim_ids)
        if self._send(client, claim_ids, KEEPER) == errno.ENOENT:
            self._send(client, claim_ids)

    def _send(self, client: str, claim_ids: Iterable[str], which: str = "") -> int:
        if not _A_CLIENT.fullmatch(client):
            return 0
        try:
            ear = self.open()
            ear.socket.sendto("\n".join(claim_ids).encode(), socket.MSG_DONTWAIT, ear.address(client + which))
        except OSError as problem:
            # Its queue is full, or its socket file was removed: it may live, and it looks by itself now and then.
            if problem.errno == errno.ECONNREFUSED and not self._is_socket(client + which):
                return 0
            return problem.errno or 0
        return 0

    def alive(self, client: str) -> bool:
        """Whether the kernel still has that client's socket. In doubt yes: then its ttl decides."""
        if client == self.me or not _A_CLIENT.fullmatch(client):
            return True
        try:
            ear = self.open()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                refused = probe.connect_ex(ear.address(client)) == errno.ECONNREFUSED
        except OSError:
            return True
        return not (refused and self._is_socket(client))

    def bury(self, client: str) -> None:
        """Remove the socket files of a dead client, after its claims: without the files it would pass for alive."""
        ear = self.ear
        if ear is None or not _A_CLIENT.fullmatch(client):
            return
        for name in (client + KEEPER, client):
            if self._is_socket(name):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=ear.directory)

    def _is_socket(self, name: str) -> bool:
        """Whether it is what one of us made: whatever else lies in the folder is none of our business."""
        ear = self.ear
        if ear is None:
            return False
        try:
            return stat.S_ISSOCK(os.stat(name, dir_fd=ear.directory, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def dead(self) -> list[str]:
        """All who died and were not buried."""
        try:
            there = os.listdir(self.open().directory)
        except OSError:
            # No handle to spare: they are found when somebody waits for them.
            return []
        names = [found[1] for name in there if (found := _A_SOCKET.fullmatch(name))]
        return [client for client in dict.fromkeys(names) if self._is_socket(client) and not self.alive(client)]

    def watch(self, pid: int, claim_id: str) -> bool:
        """Hear of the end of that process as of a hint for the claim; False when it has ended already."""
        ear = self.ear
        return ear is None or ear.watch(pid, claim_id)

    def unwatch(self, claim_id: str) -> None:
        """The claim waits no longer. The handles stay: the next wait is likely for the same processes."""
        ear = self.ear
        if ear is not None:
            ear.unwatch(claim_id)

    # -- reading -----------------------------------------------------------------------------------

    def receive(self, seconds: float) -> list[str]:
        """Wait for hints, at most that long; the claim ids they speak of."""
        ear = self.ear
        return [] if ear is None else ear.receive(seconds)

    def drain(self) -> list[str]:
        """The hints that lie in the socket now."""
        ear = self.ear
        return [] if ear is None else ear.drain()

    def receive_for_keeper(self, seconds: float) -> list[str]:
        """Wait for word to the keeper, at most that long; nothing also when somebody rang."""
        ear = self.ear
        if ear is None or ear.for_keeper is None:
            time.sleep(min(seconds, 0.05))
            return []
        return ear.receive_for_keeper(seconds)

    def nudge(self) -> None:
        """Make a running `receive` return."""
        self._send(self.me, [""])

    def ring(self) -> None:
        """Make a running `receive_for_keeper` return."""
        self._send(self.me, [""], KEEPER)


class KeeperSignal:
    """The keeper's signal, which word from another process sets as well: an eviction is heard at once, not at the next tick."""

    def __init__(
        self, receive: Callable[[float], list[str]], ring: Callable[[], None], now: Callable[[], float]
    ) -> None:
        self._receive = receive
        self._ring = ring
        self._now = now
        self._set = False
        self._asleep = False

    def set(self) -> None:
        self._set = True
        if self._asleep:
            self._ring()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    async def wait(self, until: float | None) -> bool:
        try:
            # Before the look at the flag: whoever sets it from here on rings.
            self._asleep = True
            while not self._set:
                # In pieces: the kernel's timeout stops while the machine sleeps, and our clock does not.
                left = NAP if until is None else min(until - self._now(), NAP)
                if left <= 0:
                    return False
                if self._receive(left):
                    self._set = True
            return True
        finally:
            self._asleep = False
