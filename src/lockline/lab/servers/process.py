"""A real server as a child of this process: on a free port, in its own folder, stopped by its own pid."""

from __future__ import annotations

import atexit
import http.client
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self

from ..calm import calm
from .watcher import WATCHER

PORTS = range(10_240, 32_768)
"""Below those that the system gives to outgoing connections: one of these could have the port of a server that restarts."""
SHARES = 64
NO_ANSWER = (OSError, http.client.HTTPException, ValueError)
"""What comes of asking a server over HTTP that begins, or is killed in the middle of its answer."""


# Module state with a reason: a port is free until its server has begun, and somebody else may ask in between.
_given: deque[int] = deque(maxlen=200)


@lru_cache(maxsize=1)
def _own_ports() -> tuple[Sequence[int], socket.socket | None]:
    """A share of the ports that no other process takes any from, and what keeps it for us as long as we live."""
    for share in random.sample(range(SHARES), SHARES):
        sign = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sign.bind(f"\0lockline-ports-{share}")
        except OSError:  # another process has it, or this system knows no such names
            sign.close()
        else:
            atexit.register(sign.close)
            return PORTS[share::SHARES], sign
    return PORTS, None


def free_port() -> int:
    """A port that nobody listens on now, and that nobody has been given lately."""
    while True:
        port = secrets.choice(_own_ports()[0])
        if port in _given:
            continue
        _given.append(port)
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port


class NotInstalled(Exception):
    """A server's program is not on this machine; the text says which, `cure` how to get it."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what} is not installed; {cure} installs it")
        self.what = what
        self.cure = cure


def program(name: str, *elsewhere: str, package: str | None = None) -> str:
    """The path of a server's program."""
    for candidate in (name, *elsewhere):
        found = shutil.which(candidate)
        if found:
            return os.path.abspath(found)  # it is started in a folder of its own
    raise NotInstalled(name, f"apt-get install {package or name}")


def wait_for(condition: Callable[[], object], seconds: float = 60.0, what: str = "the condition") -> None:
    """Wait until the condition is true; fail when it is not by then."""
    until, pause = calm() + seconds, 0.002
    while not condition():
        if calm() > until:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(pause)
        # Most of it comes true soon; what takes seconds is asked for less often, because each question costs processor time.
        pause = min(1.3 * pause, 0.04)


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


def state_of(stat: Path) -> str:
    """The state of a process or thread, as its `stat` in /proc tells: one letter."""
    return stat.read_text().rpartition(")")[2].split()[0]


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until every thread stands still: on a busy machine some run on for a while."""
    os.kill(pid, signal.SIGSTOP)

    def stands_still() -> bool:
        return all(state_of(path) in "TtZX" for path in Path(f"/proc/{pid}/task").glob("*/stat"))

    if os.path.isdir("/proc/self/task"):
        wait_for(stands_still, what=f"the stop of process {pid}")


class ServerProcess:
    """One server process; `kill`, `freeze`, `thaw`, `start` again with the same folder."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        ready: Callable[[], bool],
        *,
        env: dict[str, str] | None = None,
        patience: float = 30.0,
    ) -> None:
        self.argv = list(argv)
        self.folder = folder
        self._ready = ready
        self.env = env
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's own pid."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self, wait: bool = True) -> Self:
        """Start it and wait until it serves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(self.env or {})},
                start_new_session=True,
            )
        WATCHER.guards(self._process.pid)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until it serves; with its log in the error when it does not."""
        until = calm() + self._patience
        while not self._ready():
            if not self.running or calm() > until:
                log = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"{self.argv[0]} did not come up:\n{log}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: no goodbye, no flush."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        self._end(signal.SIGTERM)

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(with_signal)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        WATCHER.forgets(process.pid)

    def freeze(self) -> None:
        """SIGSTOP, and every thread stands still."""
        freeze(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
