"""`lockline` as people and scripts call it: real processes on the embedded default, in a folder of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.process import wait_for

from .screen import Screen

OnScreen = Callable[..., Screen]
LOCKLINE = (sys.executable, "-m", "lockline.cli")


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Shell:
    """Calls `lockline` in one folder, against one store, and cleans up what is left of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"local://{folder}/locks.db"
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("LOCKLINE")},
            "LOCKLINE_URL": self.url,
            # Whatever the one who runs the tests has said for himself.
            "XDG_CONFIG_HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "TERM": "xterm",
        }
        self.env.pop("NO_COLOR", None)
        self._started: list[subprocess.Popen[str]] = []
        self._pids: list[int] = []

    def __call__(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            [*LOCKLINE, *arguments],
            env={**self.env, **env},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def json(self, *arguments: str) -> Any:
        """What a command prints with --json."""
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it and let it run."""
        process = subprocess.Popen(
            [*LOCKLINE, *arguments],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, script: str, *options: str, name: str = "job") -> subprocess.Popen[str]:
        """Start `lockline run` with a shell script as its command."""
        return self.start("run", name, *options, "--", "sh", "-c", script)

    def pid_in(self, file: str) -> int:
        """The pid that a script wrote there, once it has."""
        path = self.folder / file
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"), 20, f"a pid in {file}")
        pid = int(path.read_text())
        self._pids.append(pid)
        return pid

    def waiters(self, name: str = "job") -> int:
        """How many wait in the line."""
        return len(self.json("show", name)["waiters"])

    def held(self, name: str = "job") -> bool:
        """Whether somebody holds it."""
        return bool(self.json("show", name)["holders"])

    def clean(self) -> None:
        """End what this test started."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for pid in self._pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.communicate(timeout=20)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.clean()


@pytest.fixture
def on_screen(shell: Shell) -> Iterator[OnScreen]:
    """Starts a program on a terminal of its own."""
    screens: list[Screen] = []

    def start(*argv: str, **env: str) -> Screen:
        screens.append(Screen(argv, {**shell.env, **env}, shell.folder))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def end(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a process that ends."""
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err
