"""`lockline` as people and scripts call it: real processes on the embedded default, in a folder of the test.

Most of them are forked by a process that has imported `lockline` (see forked.py). Those that are about the start of Python are started.
"""

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

import lockline
from tests.servers.process import wait_for

from .forked import Forked, Forker, piped
from .screen import Screen

OnScreen = Callable[..., Screen]
Process = subprocess.Popen[str] | Forked
LOCKLINE = (sys.executable, "-m", "lockline.cli")
MAIN = "lockline.cli:main"
COMMANDS = [
    f"lockline.cli.{name}"
    for name in ("app", "doctor", "evict", "fence", "lead", "ls", "once", "run", "show", "watching")
]
BACKENDS = ["lockline.backends.local.backend", "lockline.backends.redis.backend"]


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Shell:
    """Calls `lockline` in one folder, against one store, and cleans up what is left of it."""

    def __init__(self, folder: Path, forker: Forker) -> None:
        self.folder = folder
        self.forker = forker
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
        self._started: list[Process] = []
        self._pids: list[int] = []
        self._clients: dict[str, lockline.Client] = {}

    def __call__(self, *arguments: str, call: str = MAIN, **env: str) -> subprocess.CompletedProcess[str]:
        """Run to the end, in a fork."""
        process = piped(self.forker, arguments, {**self.env, **env}, self.folder, call=call)
        self._started.append(process)
        out, err = process.communicate(240)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def anew(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Start Python for it, and run to the end."""
        return subprocess.run(
            [*LOCKLINE, *arguments],
            env={**self.env, **env},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def json(self, *arguments: str) -> Any:
        """What a command prints with --json."""
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, *arguments: str) -> Forked:
        """Start it and let it run."""
        process = piped(self.forker, arguments, self.env, self.folder, call=MAIN)
        self._started.append(process)
        return process

    def start_anew(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Python for it, and let it run."""
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

    def run(self, script: str, *options: str, name: str = "job") -> Forked:
        """Start `lockline run` with a shell script as its command."""
        return self.start("run", name, *options, "--", "sh", "-c", script)

    def program(self) -> Path:
        """`lockline` for a shell script."""
        return self.forker.program(self.folder / "bin" / "lockline", MAIN)

    def pid_in(self, file: str) -> int:
        """The pid that a script wrote there, once it has."""
        path = self.folder / file
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"), 120, f"a pid in {file}")
        pid = int(path.read_text())
        self._pids.append(pid)
        return pid

    def waiters(self, name: str = "job") -> int:
        """How many wait in the line."""
        return len(self._client().inspect(name).waiters)

    def held(self, name: str = "job") -> bool:
        """Whether somebody holds it."""
        return bool(self._client().inspect(name).holders)

    def _client(self) -> lockline.Client:
        url = self.env["LOCKLINE_URL"]
        if url not in self._clients:
            self._clients[url] = lockline.connect(url)
        return self._clients[url]

    def clean(self) -> None:
        """End what this test started."""
        for client in self._clients.values():
            client.close()
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for pid in self._pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.communicate(timeout=120)


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    forker = Forker(*COMMANDS, *BACKENDS)
    yield forker
    forker.close()


@pytest.fixture
def shell(tmp_path: Path, forker: Forker) -> Iterator[Shell]:
    shell = Shell(tmp_path, forker)
    yield shell
    shell.clean()


@pytest.fixture
def on_screen(shell: Shell) -> Iterator[OnScreen]:
    """Starts a program on a terminal of its own; with LOCKLINE first, forks for it."""
    screens: list[Screen] = []

    def start(*argv: str, **env: str) -> Screen:
        screens.append(Screen(argv, {**shell.env, **env}, shell.folder, shell.forker))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def end(process: Process, seconds: float = 240) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a process that ends."""
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err
