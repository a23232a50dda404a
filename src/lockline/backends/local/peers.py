"""The processes of one machine, to each other: a datagram socket each, to be woken through and to be known alive by.

The kernel closes a dead process's socket at once, so a refused datagram is the proof of death that a ttl is not.
"""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
from collections.abc import Iterable
from pathlib import Path

from ...errors import BackendUnavailable
from .files import make_folder

MOST_WATCHED = 64
"""How many processes one client watches for their end; more are noticed at the next slow look."""


class Peers:
    """This client's socket, and what it knows of the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.me = secrets.token_hex(8)
        self._directory = -1
        self._socket: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._watched: dict[int, tuple[int, set[str]]] = {}

    # -- the own socket ----------------------------------------------------------------------------

    def open(self) -> socket.socket:
        """Listen; once."""
        if self._socket is not None:
            return self._socket
        try:
            make_folder(self.folder)
            self._directory = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            listening.setblocking(False)
            # Only the owner may wake us; the folder is private too.
            os.fchmod(listening.fileno(), 0o600)
            listening.bind(self._address(self.me))
        except OSError as problem:
            raise BackendUnavailable(
                f"cannot listen in {self.folder}: {problem.strerror or problem}; make it writable for this user"
            ) from problem
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, None)
        self._socket = listening
        return listening

    def _address(self, client: str) -> str:
        # A socket's path may have 107 bytes at most, wherever the user's files are; by the folder's handle it is short.
        if os.path.isdir("/proc/self/fd"):
            return f"/proc/self/fd/{self._directory}/{client}"
        return str(self.folder / client)

    def close(self) -> None:
        """Stop listening and leave no file."""
        if self._socket is None:
            return
        try:
            os.unlink(self.folder / self.me)
        except OSError:
            pass
        self.drop()

    def drop(self) -> None:
        """Let go of every handle without a word; all that a forked child may do."""
        if self._selector is not None:
            self._selector.close()
        for handle, _ in self._watched.values():
            os.close(handle)
        if self._socket is not None:
            self._socket.close()
        if self._directory >= 0:
            os.close(self._directory)
        self._selector, self._socket, self._directory = None, None, -1
        self._watched = {}

    # -- the others --------------------------------------------------------------------------------

    def tell(self, client: str, claim_ids: Iterable[str]) -> bool:
        """Wake the claims of another client; False when its process is dead."""
        text = "\n".join(claim_ids).encode()
        try:
            self.open().sendto(text, socket.MSG_DONTWAIT, self._address(client))
        except ConnectionRefusedError:
            return False
        except OSError:
            # Its queue is full, or its socket file was removed: it may live, and it looks by itself now and then.
            return True
        return True

    def alive(self, client: str) -> bool:
        """Whether the kernel still has that client's socket. In doubt yes: then its ttl decides."""
        if client == self.me:
            return True
        self.open()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            return probe.connect_ex(self._address(client)) != errno.ECONNREFUSED

    def bury(self, client: str) -> None:
        """Remove the socket file of a dead client, after its claims: without the file it would pass for alive."""
        try:
            os.unlink(self.folder / client)
        except OSError:
            pass

    def dead(self) -> list[str]:
        """All who died and were not buried."""
        return [client for client in os.listdir(self.folder) if not self.alive(client)]

    def watch(self, pid: int, claim_id: str) -> bool:
        """Hear of the end of that process as of a hint for the claim; False when it has ended already."""
        known = self._watched.get(pid)
        if known is not None:
            known[1].add(claim_id)
            return True
        if len(self._watched) >= MOST_WATCHED or not hasattr(os, "pidfd_open") or self._selector is None:
            return True
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        self._watched[pid] = (handle, {claim_id})
        self._selector.register(handle, selectors.EVENT_READ, pid)
        return True

    def unwatch(self, claim_id: str) -> None:
        """The claim waits no longer. The handles stay: the next wait is likely for the same processes."""
        for _, claim_ids in self._watched.values():
            claim_ids.discard(claim_id)

    # -- reading -----------------------------------------------------------------------------------

    def receive(self, seconds: float) -> list[str]:
        """Wait for hints, at most that long; the claim ids they speak of."""
        selector = self._selector
        if selector is None:
            return []
        told: list[str] = []
        for key, _ in selector.select(max(0.0, seconds)):
            told += self.drain() if key.data is None else self._ended(key.data)
        return told

    def drain(self) -> list[str]:
        """The hints that lie in the socket now."""
        told: list[str] = []
        while self._socket is not None:
            try:
                told += self._socket.recv(65536).decode().split("\n")
            except (BlockingIOError, InterruptedError):
                break
        return told

    def _ended(self, pid: int) -> list[str]:
        handle, claim_ids = self._watched.pop(pid, (-1, set()))
        if handle >= 0 and self._selector is not None:
            self._selector.unregister(handle)
            os.close(handle)
        return list(claim_ids)

    def nudge(self) -> None:
        """Make a running `receive` return."""
        self.tell(self.me, [""])

    def fileno(self) -> int:
        """What an event loop can wait on for all of it at once; -1 where the system has no such handle."""
        fileno = getattr(self._selector, "fileno", None)
        return fileno() if fileno is not None else -1
