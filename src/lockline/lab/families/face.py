"""The servers that a family of locks needs, and what can be done to them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

from ..servers.clock import Clock, needed_library
from ..servers.process import ServerProcess

Address = tuple[str, int]


class Servers:
    """Some servers that clients are led to; each family says what it can suffer."""

    url: ClassVar[str] = ""
    shared: ClassVar[bool] = True
    """Whether many cells use the same servers, as long as none of them disturbs these."""
    labels: list[str]
    clocks: list[Clock]

    def __init__(self, folder: Path, wants: str) -> None:
        self.folder = folder
        self.wants = wants
        self.clocks = []

    @property
    def addresses(self) -> list[Address]:
        """Where they listen."""
        raise NotImplementedError

    def processes(self) -> list[ServerProcess]:
        """One by one."""
        raise NotImplementedError

    def start(self) -> None:
        """Start all and wait until they serve."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop all."""
        for process in self.processes():
            with contextlib.suppress(Exception):
                process.stop()

    def restart(self, which: list[int] | None = None) -> None:
        """Kill them and start them again, with what they have on disk."""
        chosen = [process for at, process in enumerate(self.processes()) if which is None or at in which]
        for process in chosen:
            process.kill()
        for process in chosen:
            process.start(wait=False)
        for process in chosen:
            process.wait_ready()
        self.settle()

    def settle(self) -> None:
        """Wait until they serve as before."""

    def isolate(self) -> None:
        """From now on a replica hears nothing."""

    def primary(self) -> int:
        """Which of them leads."""
        return 0

    def fail_over(self, primary: int) -> Address | None:
        """The primary dies; where the one is that takes over, if clients have to be led there."""
        raise NotImplementedError

    def evidence(self, name: str) -> str:
        """What is there of this lock."""
        return ""

    def clock_env(self, number: int) -> dict[str, str] | None:
        """The environment of a server whose clock will be stepped."""
        if self.wants != "clock":
            return None
        self.clocks.append(Clock(needed_library(self.folder), self.folder / f"clock-{number}"))
        return self.clocks[-1].env
