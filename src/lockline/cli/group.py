"""A command and its process group: started, signalled, waited for to the last grandchild."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

from ..runtime import clock
from . import codes

PR_SET_CHILD_SUBREAPER = 36
LAST_WORDS = 0.5
"""Most seconds between TERM and KILL where there cannot be many."""
STATE, IN_GROUP, THREADS = 0, 2, 17
"""Fields of /proc/<pid>/stat, counted from the one behind the name."""


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose own parent ends, where the system can do that."""
    if sys.platform != "linux":
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):  # then init takes them, and we look at the group from time to time
        pass


class ProcessGroup:
    """The process group of one command, there before the command begins. Its id is the command's pid.

    A process of our own waits in it to become the command. So the watchdog knows the group before there is anything to watch:
    whenever we are killed, no command is left behind that nobody watches.
    """

    def __init__(self, command: tuple[str, ...], output: int | None = None) -> None:
        self.command = command
        # Forked before there is any thread or connection that a child could inherit in a broken state.
        begin, self._begin = os.pipe()
        self._problem, problem = os.pipe()
        self.id = os.fork()
        if self.id == 0:
            os.close(self._begin)
            _become(command, begin, problem, output)
        os.close(begin)
        os.close(problem)
        self.code: int | None = None
        """The command's exit code, 128+n for a signal; None while it runs."""
        self.stopped_by: int | None = None
        """The signal that stopped the command, until somebody has dealt with it."""
        self._began = False

    def start(self, environment: Mapping[str, str]) -> None:
        """Let the command begin, with these variables besides our own; OSError when it cannot be run."""
        try:
            os.write(self._begin, json.dumps(environment).encode() + b"\n")
        except BrokenPipeError:  # somebody killed it; then its exit code says so
            pass
        # Nothing before the end means that the command has taken the place of the one who would have told.
        with open(self._problem, "rb") as told:
            number = told.read()
        self._began = not number
        if number:
            raise OSError(int(number), os.strerror(int(number)))

    def abandon(self) -> None:
        """If the command has not begun by now, it never will."""
        if not self._began:
            self._began = True
            os.kill(self.id, signal.SIGKILL)
            os.waitpid(self.id, 0)

    def send(self, number: int) -> bool:
        """Signal every process of the group; False when we may not."""
        try:
            os.killpg(self.id, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
        return True

    def reap(self) -> None:
        """Take note of children that ended, stopped or went on: the command, and orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.id:
                self._note(status)

    def _note(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self.stopped_by = os.WSTOPSIG(status)
        elif os.WIFCONTINUED(status):
            self.stopped_by = None
        else:
            ended = os.waitstatus_to_exitcode(status)
            self.code = ended if ended >= 0 else codes.SIGNALLED - ended

    def end(self) -> None:
        """End what still runs of it: a last word, and then without asking."""
        self.send(signal.SIGTERM)
        # A stopped process takes note of TERM only when it goes on.
        self.send(signal.SIGCONT)
        until = clock.now() + LAST_WORDS
        while not has_ended(self.id):
            if clock.now() >= until:
                self.send(signal.SIGKILL)
                return
            time.sleep(0.005)

    def alive(self) -> bool:
        """Whether any process of the group still runs."""
        return self.code is None or not has_ended(self.id)


def _become(command: tuple[str, ...], begin: int, problem: int, output: int | None) -> NoReturn:
    """Wait for the word to begin, and turn into the command; end when those who could say it are gone."""
    number = 0
    try:
        os.setpgid(0, 0)
        with open(begin, "rb") as told:
            line = told.readline()
        if line.endswith(b"\n"):
            if output is not None:
                os.dup2(output, 1)
            for ignored in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
                signal.signal(ignored, signal.SIG_DFL)  # the interpreter's own choice, not the user's
            # What we inherited beyond stdin, stdout and stderr is the command's to use; our own files close on exec.
            os.execvpe(command[0], command, {**os.environ, **json.loads(line)})
    except OSError as error:
        number = error.errno or errno.EINVAL
    except ValueError:  # a NUL byte
        number = errno.EINVAL
    finally:
        if number:
            os.write(problem, str(number).encode())
        os._exit(127)


def has_ended(group: int) -> bool:
    """Whether no process of the group runs any more."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return _only_zombies(group)


def _only_zombies(group: int) -> bool:
    """Whether all that is left of the group has ended and merely was not waited for by its own parent."""
    dead = []
    try:
        pids = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return False
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                # The name in parentheses may hold anything, parentheses too: read on behind the last one.
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[IN_GROUP]) == group:
            # A process whose first thread has ended looks like a zombie while the others work on.
            dead.append(fields[STATE] in (b"Z", b"X") and int(fields[THREADS]) <= 1)
    return bool(dead) and all(dead)


def why_not(problem: OSError, command: str) -> tuple[int, str]:
    """The exit code when a command could not be started, as shells have them, and what to say."""
    if isinstance(problem, FileNotFoundError):
        return codes.NOT_FOUND, f"{command}: command not found"
    return codes.NOT_EXECUTABLE, f"{command}: cannot be run: {problem.strerror or problem}"
