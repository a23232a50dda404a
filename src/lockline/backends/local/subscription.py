"""How the processes of one machine hear each other: a datagram socket each, to be woken through and to be known alive by.

The kernel closes a dead process's socket at once, so a refused datagram is the proof of death that a ttl is not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import selectors
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...errors import BackendUnavailable, ClientClosed, LocklineError
from ...runtime.quiet import QuietSocket
from .changes import Changes
from .target import Sharing, enter_folder, give_to_sharers, sharing_of

MOST_WATCHED: Final = 64
"""How many processes one client watches for their end; more are noticed at the next slow look."""
KEEPER: Final = ".keeper"
"""What the name of a client's second socket ends in: there its keeper, and nobody else, hears of what it holds."""
_A_CLIENT: Final = re.compile(r"[0-9a-f]{16}")
_A_SOCKET: Final = re.compile(rf"([0-9a-f]{{16}})({re.escape(KEEPER)})?")


class PeerListener:
    """What one client is known and woken by: its sockets in the folder that all share, and the processes whose end it waits for.

    Made whole or not at all, and gone with whoever listened.
    """

    def __init__(self, file: Path, *, keeper: bool, missed: Callable[[], None]) -> None:
        self.name = secrets.token_hex(8)
        self._missed = missed
        self._room = room_of_a_queue()
        self.folder = file.with_name(file.name + "-peers")
        self._log = file.with_name(file.name + "-wal")
        self._changes: Changes | None = None
        self._pid = os.getpid()
        self.kept = False
        """Whether a client has it, and will close it."""
        self.directory = -1
        self._sockets: dict[str, socket.socket] = {}
        self._selector: selectors.BaseSelector | None = None
        self._watched: dict[int, tuple[int, set[str]]] = {}
        try:
            sharing = sharing_of(file)
            self.directory = enter_folder(self.folder, sharing)
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
                f"cannot listen in {self.folder}: {problem.strerror or problem}; make it writable for this user, "
                "and see how many files this process may open (ulimit -n)"
            ) from problem

    def _bind(self, which: str, sharing: Sharing) -> socket.socket:
        listening = QuietSocket(socket.AF_UNIX, socket.SOCK_DGRAM)
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
        changes, self._changes = self._changes, None
        if selector is not None:
            selector.close()
        if changes is not None:
            changes.close()
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

    def watch_file(self, watcher: str) -> bool:
        """Hear of the next change of the file as of a hint for this id; whether the system tells of it."""
        if self._changes is None and self._selector is not None:
            try:
                changes = Changes(self._log)
            except OSError:
                return False
            if self._changes is None and self._selector is not None:
                self._changes = changes
                self._selector.register(changes, selectors.EVENT_READ, changes)
            else:
                changes.close()  # another thread was faster, or it is over
        return self._changes is not None and self._changes.watch(watcher)

    def unwatch_file(self, watcher: str) -> None:
        """Nobody is there to be told any more."""
        if self._changes is not None:
            self._changes.unwatch(watcher)

    # -- reading -----------------------------------------------------------------------------------

    def receive(self, seconds: float) -> list[str]:
        """Wait for hints, at most that long; the claim ids they speak of."""
        selector = self._selector
        if selector is None:
            return []
        try:
            ready = selector.select(max(0.0, seconds))
        except (OSError, ValueError):
            if self._selector is selector:
                raise
            return []  # closed under our wait, by a signal handler on top of it
        told: list[str] = []
        for key, _ in ready:
            if isinstance(key.data, Changes):
                told += key.data.take()
            else:
                told += self.drain(self.socket) if key.data is None else self._ended(key.data)
        return told

    def drain(self, listening: socket.socket, taken: int = 0) -> list[str]:
        """The claim ids that lie in a socket's queue, out of which so many datagrams were taken just now."""
        told: list[str] = []
        while self._sockets:
            try:
                told += _claims(listening.recv(65536))
                taken += 1
            except OSError:
                # Nothing more, or closed meanwhile.
                break
        if taken >= self._room and listening is (self.for_keeper or self.socket):
            # It was full, so there may have been no room for another. Whoever waits looks now and then; who holds does not.
            self._missed()
        return told

    def fileno(self) -> int:
        """What an event loop can wait on for all of it at once; -1 where the system has no such handle."""
        fileno = getattr(self._selector, "fileno", None)
        return fileno() if fileno is not None else -1


def room_of_a_queue() -> int:
    """How many datagrams a socket that is made now keeps for one who does not read, at least."""
    try:
        with open("/proc/sys/net/unix/max_dgram_qlen") as told:
            return int(told.read())
    except (OSError, ValueError):
        return 10  # what most systems have


def _claims(datagram: bytes) -> list[str]:
    """The claims that a datagram speaks of: none, if it was only to wake us."""
    return [claim_id for claim_id in datagram.decode().split("\n") if claim_id]


class Peers:
    """This client's sockets, and what it knows of the others."""

    def __init__(self, listen: Callable[[], PeerListener]) -> None:
        self._listen = listen
        self._listeners: dict[str, PeerListener] = {}
        self._over = False

    # -- the own sockets ---------------------------------------------------------------------------

    @property
    def me(self) -> str:
        """The name that the others know this client by; empty before it listens."""
        listener = self.listener
        return listener.name if listener is not None else ""

    @property
    def listener(self) -> PeerListener | None:
        """What this client hears with, once it listens."""
        return self._listeners.get("mine")

    def open(self) -> PeerListener:
        """Listen; once, whoever comes first of several threads."""
        listener = self.listener
        if listener is not None:
            return listener
        if self._over:
            raise ClientClosed()
        made = self._listen()
        listener = self._listeners.setdefault("mine", made)
        listener.kept = True
        if listener is not made:
            made.close()
        if self._over:
            self.close()
        return listener

    def close(self) -> None:
        """Stop listening for good, and leave no file."""
        self._end(PeerListener.close)

    def drop(self) -> None:
        """Let go of every handle without a word; all that a forked child may do, and all that one may do whose claims still stand."""
        self._end(PeerListener.drop)

    def _end(self, how: Callable[[PeerListener], None]) -> None:
        self._over = True
        listener = self._listeners.pop("mine", None)
        if listener is not None:
            how(listener)

    def forked(self) -> None:
        """In a child: what was inherited is let go of, and it may listen by itself."""
        self.drop()
        self._over = False

    # -- the others --------------------------------------------------------------------------------

    def tell(self, client: str, claim_id: str) -> bool:
        """Wake a claim of another client; False when its process is dead."""
        return self._send(client, claim_id) != errno.ECONNREFUSED

    def tell_keeper(self, client: str, claim_id: str) -> None:
        """Let another client know that what it holds has changed; one whose keeper has no socket of its own hears it as all else."""
        if self._send(client + KEEPER, claim_id) == errno.ENOENT:
            self._send(client, claim_id)

    def _send(self, name: str, claim_id: str) -> int:
        """What the system says against it; 0 too where that says nothing about the other's life."""
        if not _A_SOCKET.fullmatch(name):
            return 0
        try:
            listener = self.open()
            listener.socket.sendto(claim_id.encode(), socket.MSG_DONTWAIT, listener.address(name))
        except OSError as problem:
            # Its queue is full, or its socket file was removed: it may live, and it looks by itself now and then.
            if problem.errno == errno.ECONNREFUSED and not self._is_socket(name):
                return 0
            return problem.errno or 0
        return 0

    def alive(self, client: str) -> bool:
        """Whether the kernel still has that client's socket. In doubt yes: then its ttl decides."""
        if client == self.me or not _A_CLIENT.fullmatch(client):
            return True
        try:
            listener = self.open()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                refused = probe.connect_ex(listener.address(client)) == errno.ECONNREFUSED
        except OSError:
            return True
        return not (refused and self._is_socket(client))

    def remove_sockets(self, client: str) -> None:
        """Remove the socket files of a dead client, after its claims: without the files it would pass for alive."""
        listener = self.listener
        if listener is None or not _A_CLIENT.fullmatch(client):
            return
        for name in (client + KEEPER, client):
            if self._is_socket(name):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=listener.directory)

    def _is_socket(self, name: str) -> bool:
        """Whether it is what one of us made: whatever else lies in the folder is none of our business."""
        listener = self.listener
        if listener is None:
            return False
        try:
            return stat.S_ISSOCK(os.stat(name, dir_fd=listener.directory, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def dead(self) -> list[str]:
        """All who died and were not cleared away."""
        try:
            there = os.listdir(self.open().directory)
        except OSError:
            # No handle to spare: they are found when somebody waits for them.
            return []
        names = [found[1] for name in there if (found := _A_SOCKET.fullmatch(name))]
        return [client for client in dict.fromkeys(names) if self._is_socket(client) and not self.alive(client)]

    def watch(self, pid: int, claim_id: str) -> bool:
        """Hear of the end of that process as of a hint for the claim; False when it has ended already."""
        listener = self.listener
        return listener is None or listener.watch(pid, claim_id)

    def unwatch(self, claim_id: str) -> None:
        """The claim waits no longer. The handles stay: the next wait is likely for the same processes."""
        listener = self.listener
        if listener is not None:
            listener.unwatch(claim_id)

    # -- reading -----------------------------------------------------------------------------------

    def receive(self, seconds: float) -> list[str]:
        """Wait for hints, at most that long; the claim ids they speak of."""
        listener = self.listener
        return [] if listener is None else listener.receive(seconds)

    def receive_for_keeper(self, seconds: float) -> list[str]:
        """Wait for word to the keeper, at most that long; nothing also when somebody rang."""
        listener = self.listener
        if listener is None or listener.for_keeper is None:
            time.sleep(min(seconds, 0.05))
            return []
        try:
            listener.for_keeper.settimeout(max(0.001, seconds))
            told = _claims(listener.for_keeper.recv(65536))
            listener.for_keeper.setblocking(False)
            return told + listener.drain(listener.for_keeper, taken=1)
        except OSError:
            # Nothing in time, or closed meanwhile.
            return []

    def nudge(self) -> None:
        """Make a running `receive` return."""
        self._send(self.me, "")

    def ring(self) -> None:
        """Make a running `receive_for_keeper` return."""
        self._send(self.me + KEEPER, "")
