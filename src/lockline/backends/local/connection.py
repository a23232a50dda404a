"""SQLite connections to one file, for one client: a step has one to itself, and none is open while the process forks.

SQLite keeps threads apart by mutexes and processes by locks that the kernel ties to the process. A fork copies both
as if they were held: a child could wait for ever for a mutex, and its new connections would take no kernel lock at all, so
that the next one to close the file removes its log under it. So every connection is closed before a fork, and who
finds one that was not (a fork in C, a thread that is stuck in SQLite) refuses the file.

No lock of ours has to be had for a step, only waited for politely, because SQLite keeps connections apart. That leaves
nothing to deadlock on when a step is interrupted by another one of the same thread: a signal handler that closes the client,
a finalizer that releases a lease. The step below is undone and, when its time comes again, done from the start.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from ...errors import BackendUnavailable, ClientClosed, LocklineError
from ...runtime.fork import tell_after_fork, tell_around_fork
from ...runtime.limits import let_through
from .errors import FORKED, LOG_REMOVED, Busy, storage_error
from .target import make_private, refuse_network_files

T = TypeVar("T")
Inode = tuple[int, int]

POLITENESS = 0.5
"""Seconds that a thread waits for another thread's step. Longer than a slow disk takes for a step: a thread that passes opens the file
again, and SQLite gives no file handle back while the process has the file open."""
SPARE = 2
"""How many connections are kept: one for the steps, and one for a step that interrupts another."""
FORK_PATIENCE = 2.0
"""How long a fork waits for the steps of other threads, which take some 20 µs; after that the child cannot use the file."""

# Module state with a reason: SQLite's table of open files is one per process, and a thread has one stack for all clients.
_running: dict[int, weakref.ref[RunningStep]] = {}
"""By thread, the step that it is in; the step that this one interrupted lies below it. Only the frame of the step keeps it:
whatever way that ended, also by an exception in the middle of its last line, it is in no step any more."""
_refused: dict[Inode, str] = {}
"""Files that this process must not use any more, and why: what SQLite has open of them is neither to be used nor to be closed."""
_kept_forever: list[sqlite3.Connection] = []


STUMBLES: Final = (sqlite3.Error, LocklineError, Busy, AttributeError, LookupError, TypeError, ValueError)
"""What a displaced step may meet: SQLite refuses, or what it wrote is not there. No soft time limit: that is the caller's own."""


class RunningStep:
    """One step of one thread, and the connection that it has."""

    __slots__ = ("__weakref__", "below", "db", "displaced", "inode", "inside", "of")

    def __init__(self, of: SqliteConnections, below: RunningStep | None) -> None:
        self.of = of
        self.below = below
        self.db: sqlite3.Connection | None = None
        self.inode: Inode | None = None
        self.inside = False
        """Whether it has passed the gate that a fork shuts, and so may be inside SQLite."""
        self.displaced = False

    def down(self) -> Iterator[RunningStep]:
        """This step and all that it interrupted."""
        step: RunningStep | None = self
        while step is not None:
            yield step
            step = step.below

    def give_way(self) -> None:
        """Undo what was done so far; called from within, by code that interrupted this very thread.

        What the step still does when it goes on reaches nothing: it has no transaction, may only read, and cannot commit.
        """
        db = self.db
        if db is None:
            return
        try:
            if db.in_transaction:
                self.displaced = True
                db.execute("ROLLBACK")
                db.execute("PRAGMA query_only = ON")
        except sqlite3.Error:
            # Closed already, before a fork.
            self.displaced = True


class SqliteConnections:
    """Hands each step a connection of its own."""

    def __init__(self, file: Path, prepare: Callable[[sqlite3.Connection], None], renewed: Callable[[], None]) -> None:
        self._file = file
        self._path = str(file)
        self._prepare = prepare
        self._renewed = renewed
        """Told when the file is not the one that was used before."""
        self._inode: Inode | None = None
        self._log_paths = f"{file}-wal", f"{file}-shm"
        self._logs: tuple[Inode | None, ...] = ()
        """SQLite's log and its index, which are there as long as a connection is open."""
        self._free: deque[sqlite3.Connection] = deque()
        self._order = threading.Lock()
        self._ended = 0
        self._forks = 0
        self._forking: int | None = None
        self._pid = os.getpid()
        self._closed = False
        self._shut = False
        """Closed, or forking just now: no step begins."""
        tell_around_fork(self)

    # -- steps -------------------------------------------------------------------------------------

    def step(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run the work in one transaction; Busy when another process is in one."""
        return self._run(work, True)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a question that writes nothing."""
        return self._run(work, False)

    def _run(self, work: Callable[[sqlite3.Connection], T], writes: bool) -> T:
        thread = threading.get_ident()
        below = _step_of(thread)
        order = None
        if below is not None:
            below.give_way()
        if below is None or below.of is not self:
            order = self._order
            if not order.acquire(False):
                order = self._line_up(order)
        running = RunningStep(self, below)
        forks = self._forks
        try:
            _running[thread] = weakref.ref(running)
            while True:
                try:
                    # In this order: a fork shuts the gate first and then waits for those who were here before.
                    if self._shut:
                        self._refuse_step(thread)
                    running.inside = True
                    db = self._take(running)
                    if not writes:
                        return work(db)
                    db.execute("BEGIN IMMEDIATE")
                    # Once more: whoever closes from here on, within this thread, displaces this step.
                    if self._shut:
                        self._refuse_step(thread)
                    result = work(db)
                    db.execute("COMMIT")
                    return result
                except STUMBLES as problem:
                    # A commit that succeeded was not displaced, whatever else happened: it returned above.
                    if not running.displaced:
                        raise
                    if self._forks != forks:
                        raise self._refused_error(FORKED) from problem
                    self._discard(running)
                    running.displaced = False
        except sqlite3.Error as problem:
            raise storage_error(self._file, problem) from problem
        finally:
            self._give_back(running)
            if below is None:
                _running.pop(thread, None)
            else:
                _running[thread] = weakref.ref(below)
            self._ended += 1
            if order is not None:
                order.release()

    def _line_up(self, order: threading.Lock) -> threading.Lock:
        """Wait until the others who came first have had their step, unless the one whose turn it is does not come to its end."""
        ended = self._ended
        while not order.acquire(timeout=POLITENESS):
            if self._ended == ended and self._order is order:
                # It was interrupted or cut short: SQLite keeps our steps apart all the same.
                self._order = threading.Lock()
            order, ended = self._order, self._ended
        return order

    def _refuse_step(self, thread: int) -> NoReturn:
        if self._closed:
            raise ClientClosed()
        if self._forking == thread:
            raise BackendUnavailable("this thread is in the middle of a fork")
        raise Busy

    # -- connections -------------------------------------------------------------------------------

    def _take(self, running: RunningStep) -> sqlite3.Connection:
        if os.getpid() != self._pid:
            self._refuse(FORKED)
            raise self._refused_error(FORKED)
        inode = self._look()
        if inode is None or inode != self._inode:
            # A file that was removed or replaced under us holds nobody's claims any more: use the one others use.
            self._close_free()
            return self._open(running)
        running.inode = inode
        # Looked at twice: a signal handler that closes the client in between takes them away with the last connection.
        if self._free and self._logs != self._look_at_logs() and self._free:
            # Other processes write another log by now: two holders, each in a log of its own. No second connection of this process can
            # help, because SQLite shares the index between them.
            self._refuse(LOG_REMOVED)
            raise self._refused_error(LOG_REMOVED)
        try:
            running.db = self._free.pop()
        except IndexError:
            pass
        return running.db or self._open(running)

    def _look(self) -> Inode | None:
        return _inode_of(self._path)

    def _look_at_logs(self) -> tuple[Inode | None, ...]:
        log, index = self._log_paths
        return _inode_of(log), _inode_of(index)

    def _open(self, running: RunningStep) -> sqlite3.Connection:
        make_private(self._file)
        if self._inode is None:
            refuse_network_files(self._file)
        running.inode = self._look()
        if running.inode in _refused:
            raise self._refused_error(_refused[running.inode])
        db = running.db = sqlite3.connect(self._file, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            self._discard(running)
            raise
        running.inode = self._look()
        if running.inode != self._inode:
            if self._inode is not None:
                self._renewed()
            self._inode = running.inode
        self._logs = self._look_at_logs()
        return db

    def _give_back(self, running: RunningStep) -> None:
        db = running.db
        if db is None:
            return
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            # Closed before a fork, or broken: the next step opens another one.
            self._discard(running)
            return
        if self._shut or running.displaced or running.inode != self._inode or len(self._free) >= SPARE:
            self._discard(running)
            return
        running.db = None
        self._free.append(db)
        if self._shut:
            self._close_free()
        running.inside = False

    def _discard(self, running: RunningStep) -> None:
        db, running.db = running.db, None
        if db is not None:
            db.close()
        running.inside = False

    def _close_free(self) -> None:
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:
                return

    def close(self) -> None:
        """Let go of the file; what a step has in use goes with that step's end."""
        self._closed = self._shut = True
        for step in self._steps_of(threading.get_ident()):
            step.give_way()
        self._close_free()

    # -- forks -------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Let the steps of other threads end, begin no new one, and close everything."""
        me = self._forking = threading.get_ident()
        self._shut = True
        before = self._steps_of_others(me)
        until = time.monotonic() + FORK_PATIENCE
        while time.monotonic() < until:
            if not any(step.inside or step in before for step in self._steps_of_others(me)):
                break
            time.sleep(0.0002)
        for step in self._steps_of(me):
            if step.db is not None:
                step.displaced = True
                step.db.close()
        self._close_free()

    def _steps_of(self, *threads: int) -> list[RunningStep]:
        tops = [_step_of(thread) for thread in threads]
        return [step for top in tops if top is not None for step in top.down() if step.of is self]

    def _steps_of_others(self, me: int) -> list[RunningStep]:
        return self._steps_of(*(thread for thread in list(_running) if thread != me))

    def after_fork(self) -> None:
        """In the parent: go on. The next step opens the file again."""
        self._reopen()

    def forked(self) -> None:
        """In the child: as new, if nothing crossed."""
        inside = [step for step in self._steps_of_others(threading.get_ident()) if step.inside]
        if self._free or inside:
            self._refuse(FORKED)
        self._forks += 1
        self._free = deque()
        self._order = threading.Lock()
        self._pid = os.getpid()
        self._reopen()

    def _reopen(self) -> None:
        self._forking = None
        self._shut = False
        # After that: whoever closes meanwhile has shut it for good.
        if self._closed:
            self._shut = True

    def _refuse(self, why: str) -> None:
        """Never close what is open: SQLite could take itself for the last one, write an old log back, or remove another's."""
        if self._inode is not None:
            _refused[self._inode] = why
        open_ones = [*self._free, *(step.db for step in self._steps_of_others(-1))]
        self._free = deque()
        for db in open_ones:
            if db is not None:
                _keep_forever(db)

    def _refused_error(self, why: str) -> BackendUnavailable:
        return BackendUnavailable(f"{self._file} {why}")


def _inode_of(path: str) -> Inode | None:
    try:
        there = os.stat(path)
    except OSError as problem:
        let_through(problem)
        return None
    return there.st_dev, there.st_ino


def _step_of(thread: int) -> RunningStep | None:
    reference = _running.get(thread)
    return reference() if reference is not None else None


class _Threads:
    """In a child there is only the thread that forked."""

    def forked(self) -> None:
        me = threading.get_ident()
        for thread in [thread for thread in _running if thread != me]:
            del _running[thread]


_threads = _Threads()
tell_after_fork(_threads)


def _keep_forever(db: sqlite3.Connection) -> None:
    _kept_forever.append(db)
    try:
        import ctypes

        # Not even at the end of the process, when modules are emptied, may it be closed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
    except (ImportError, AttributeError):
        pass
