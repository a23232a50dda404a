"""Faults of the user's own: commands that are run by the shell, now and then, while a run lasts."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO, Final

from ...runtime.clock import now
from ..servers.watcher import WATCHER
from .ledger import Ledger

FELT: Final = 5.0
"""So long after such a command its traces may be felt: nobody here knows what it does."""
ENDS_WITHIN: Final = 2.0
"""So long a command that still runs at the end has between TERM and KILL."""
TAIL: Final = 2000
"""So many bytes of what it last said are kept, however much it says."""


class Hooks:
    """Runs the commands one after the other, in a thread of its own."""

    def __init__(self, commands: Sequence[str], every: float, ledger: Ledger) -> None:
        self._commands = commands
        self._every = every
        self._ledger = ledger
        self._over = threading.Event()
        self.failed: list[str] = []
        """What went wrong with them, in words."""
        self._thread = threading.Thread(target=self._work, name="lockline-verify-hooks", daemon=True)
        if commands:
            self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._over.wait(self._every):
            command = self._commands[number % len(self._commands)]
            number += 1
            fault = self._ledger.begin("your fault", detail=command)
            try:
                self._run(command)
            finally:
                self._ledger.end(fault, FELT)

    def _run(self, command: str) -> None:
        process = subprocess.Popen(
            command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        # All that it starts: should this process be killed, the command is not left behind.
        WATCHER.guards(-process.pid)
        assert process.stderr is not None
        said = _Tail(process.stderr)
        while process.poll() is None and not self._over.wait(0.05):
            pass
        hangs = process.poll() is None
        if hangs:
            _end_group(process)
        WATCHER.forgets(-process.pid)
        if hangs:
            self.failed.append(f"{shlex.quote(command)} had not come to its end, and was ended")
        elif process.returncode:
            told = said.lines()
            self.failed.append(
                f"{shlex.quote(command)} ended with {process.returncode}{': ' + told[-1] if told else ''}"
            )

    def stop(self) -> None:
        """No more of them; one that runs is ended, with all that it has started."""
        self._over.set()
        if self._commands:
            self._thread.join(2 * ENDS_WITHIN)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End it and all that it has started: it leads a session of its own, so its number is theirs, too."""
    with contextlib.suppress(PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
        until = now() + ENDS_WITHIN
        # It is not taken off the list before the last word: as long as it stands there nobody else gets its number.
        while now() < until and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Tail:
    """The end of what somebody says, read as it comes: a command that says much is not held up, and one whose child keeps talking ends all the same."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""
        self._thread = threading.Thread(target=self._read, name="lockline-verify-hook-says", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._stream:
            while data := os.read(self._stream.fileno(), 65536):
                self._kept = (self._kept + data)[-TAIL:]

    def lines(self) -> list[str]:
        self._thread.join(0.2)
        return self._kept.decode(errors="replace").strip().splitlines()
