"""A command and its process group: started, signalled, waited for to the last grandchild."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose own parent ends, where the system can do that."""
    if sys.platform != "linux":
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):  # then init takes them, and we look at the group from time to time
        pass


class Group:
    """The process group of one command. Its id is the command's pid."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # What we inherited beyond stdin, stdout and stderr is the command's to use; our own files close on exec.
        self._process = subprocess.Popen(command, env=environment, process_group=0, close_fds=False)
        self.id = self._process.pid
        self.code: int | None = None
        """The command's exit code, 128+n for a signal; None while it runs."""
        self.stopped_by: int | None = None
        """The signal that stopped the command, until somebody has dealt with it."""

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
            self.code = ended if ended >= 0 else 128 - ended
            # The process object must not wait for a pid that is no longer ours.
            self._process.returncode = ended

    def alive(self) -> bool:
        """Whether any process of the group still runs."""
        if self.code is None:
            return True
        try:
            os.killpg(self.id, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return not _only_zombies(self.id)


def _only_zombies(group: int) -> bool:
    """Whether all that is left of the group has ended and merely was not waited for by its own parent."""
    states = []
    try:
        pids = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return False
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                # The name in parentheses may hold anything, parentheses too: read on behind the last one.
                state, _, in_group = stat.read().rpartition(b")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(in_group) == group:
            states.append(state)
    return bool(states) and all(state in (b"Z", b"X") for state in states)


def why_not(problem: OSError, command: str) -> tuple[str, int]:
    """What to say when a command could not be started, and the exit code, as shells have them."""
    if isinstance(problem, FileNotFoundError):
        return f"{command}: command not found", 127
    return f"{command}: cannot be run: {problem.strerror or problem}", 126
