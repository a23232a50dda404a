"""A program on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..calm import calm
from .forked import Forker

LOCKLINE = (sys.executable, "-m", "lockline.cli")


class Screen:
    """A program on a terminal of its own, as its session's leader."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: Path, forker: Forker) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        ours = tuple(argv[: len(LOCKLINE)]) == LOCKLINE
        try:
            self.process = forker.start(
                argv[len(LOCKLINE) :] if ours else argv, env, folder,
                call="lockline.cli:main" if ours else None, files=(slave, slave, slave), terminal=True,
            )  # fmt: skip
        finally:
            os.close(slave)
        self.text = ""

    def read(self) -> bool:
        """Take in what is there; False at the end."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.text += data.decode(errors="replace")
        return True

    def wait_for(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        """The first place where the output looks like this."""
        until = calm() + seconds
        while True:
            self.read()
            found = re.search(pattern, self.text)
            if found:
                return found
            assert calm() < until, f"no {pattern!r} in {self.text!r}"
            time.sleep(0.01)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def code(self, seconds: float = 120) -> int:
        """The exit code, with all output taken in."""
        until = calm() + seconds
        while self.process.poll() is None:
            self.read()
            assert calm() < until, f"still running: {self.text!r}"
            time.sleep(0.01)
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self._master)
