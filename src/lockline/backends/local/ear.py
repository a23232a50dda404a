"""What one client is known and woken by: its sockets, and the processes whose end it waits for."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
from pathlib import Path

from ...errors import BackendUnavailable, LocklineError
from .sharing import Sharing, enter_folder, give_to_sharers

MOST_WATCHED = 64
"""How many processes one client watches for their end; more are noticed at the next slow look."""
KEEPER = ".keeper"
"""What the name of a client's second socket ends in: there its keeper, and nobody else, hears of what it holds."""


class Listening(socket.socket):
    """A socket that its ear closes: in one sweep of garbage Python may end it before the client that is to do so."""

    def __del__(self) -> None:
        # Python's own would close it here, with a warning about somebody who forgot.
        pass


class Ear:
    """A socket in the folder that all share; made whole or not at all, and gone with whoever listened."""

    def __init__(self, folder: Path, sharing: Sharing, *, keeper: bool) -> None:
        self.name = secrets.token_hex(8)
        self.folder = folder
        self._pid = os.getpid()
        self.kept = False
        """Whether a client has it, and will close it."""
        self.directory = -1
        self._sockets: dict[str, socket.socket] = {}
        self._selector: selectors.BaseSelector | None = None
        self._watched: dict[int, tuple[int, set[str]]] = {}
        try:
            self.directory = enter_folder(folder, sharing)
            self.socket = self._bind("", sharing)
            self.for_keeper = self._bind(KEEPER, sharing) if keeper else None
            self._selector = selectors.DefaultSelector()
            self._selector.register(self.socket, selectors.EVENT_READ, None)
        except LocklineError:
            self.close()
            raise
        except OSError as problem:
            self.close()
            raise BackendUnavailable(
                f"cannot listen in {folder}: {problem.strerror or problem}; make it writable for this user, "
                "and see how many files this process may open (ulimit -n)"
            ) from problem

    def _bind(self, which: str, sharing: Sharing) -> socket.socket:
        listening = Listening(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sockets[which] = listening
        listening.setblocking(False)
        # For nobody, until it is known to be for those who may.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(self.address(self.name + which))
        give_to_sharers(self.name + which, self.directory, sharing)
        os.chmod(self.name + which, sharing.socket_mode, dir_fd=self.directory)
        return listening

    def address(self, name: str) -> str:
        """The path of a socket in the folder."""
        # A socket's path may have 107 bytes at most, wherever the user's files are; by the folder's handle it is short,
        # and leads to the folder that was looked at, whatever has been put in its place.
        if os.path.isdir("/proc/self/fd"):
            return f"/proc/self/fd/{self.directory}/{name}"
        return str(self.folder / name)

    def close(self) -> None:
        """Stop listening and leave no file."""
        if os.getpid() == self._pid and self.directory >= 0:
            for which in list(self._sockets):
                with contextlib.suppress(OSError):
                    os.unlink(self.name + which, dir_fd=self.directory)
        self.drop()

    def drop(self) -> None:
        """Let go of every handle without a word."""
        selector, self._selector = self._selector, None
        watched, self._watched = self._watched, {}
        sockets, self._sockets = self._sockets, {}
        directory, self.directory = self.directory, -1
        if selector is not None:
            selector.close()
        for handle, _ in watched.values():
            os.close(handle)
        for one in sockets.values():
            one.close()
        if directory >= 0:
            os.close(directory)

    def __del__(self) -> None:
        # Made, and struck out of its maker's hands. One that is kept is closed by its client, which may need it for that:
        # in one sweep of garbage this may be called first.
        if not self.kept:
            self.close()

    # -- the end of others -------------------------------------------------------------------------

    def watch(self, pid: int, claim_id: str) -> bool:
        """Hear of the end of that process as of a hint for the claim; False when it has ended already."""
        known = self._watched.get(pid)
        if known is not None:
            known[1].add(claim_id)
            # Another thread may have read of its end just now.
            return self._watched.get(pid) is known
        if len(self._watched) >= MOST_WATCHED or not hasattr(os, "pidfd_open") or self._selector is None:
            return True
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        known = (handle, {claim_id})
        if self._watched.setdefault(pid, known) is not known:
            os.close(handle)
            return self.watch(pid, claim_id)
        try:
            self._selector.register(handle, selectors.EVENT_READ, pid)
        except (OSError, AttributeError):
            # No room for one more, or closed meanwhile: the slow look is the net.
            if self._watched.pop(pid, None) is not None:
                os.close(handle)
        return True

    def unwatch(self, claim_id: str) -> None:
        """The claim waits no longer. The handles stay: the next wait is likely for the same processes."""
        for _, claim_ids in list(self._watched.values()):
            claim_ids.discard(claim_id)

    def _ended(self, pid: int) -> list[str]:
        handle, claim_ids = self._watched.pop(pid, (-1, set()))
        if handle >= 0 and self._selector is not None:
            self._selector.unregister(handle)
            os.close(handle)
        return list(claim_ids)

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
        while "" in self._sockets:
            try:
                told += self.socket.recv(65536).decode().split("\n")
            except OSError:
                # Nothing more, or closed meanwhile.
                break
        return told

    def receive_for_keeper(self, seconds: float) -> list[str]:
        """Wait for word to the keeper, at most that long."""
        assert self.for_keeper is not None
        try:
            self.for_keeper.settimeout(max(0.001, seconds))
            return self.for_keeper.recv(65536).decode().split("\n")
        except OSError:
            # Nothing in time, or closed meanwhile.
            return []

    def fileno(self) -> int:
        """What an event loop can wait on for all of it at once; -1 where the system has no such handle."""
        fileno = getattr(self._selector, "fileno", None)
        return fileno() if fileno is not None else -1
