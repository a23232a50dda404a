"""A real PostgreSQL, as a user that is not root (it refuses root), with its data in a folder of its own."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from .process import NotInstalled, ServerProcess, free_port, freeze, state_of, wait_for
from .watcher import WATCHER


class PostgresServer(ServerProcess):
    """One server; `url` connects to its database as its owner."""

    def __init__(self, *options: str) -> None:
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
        found = programs[-1] if programs else shutil.which("postgres")
        if not found:
            raise NotInstalled("PostgreSQL", "apt-get install postgresql")
        self._bin = Path(found).parent
        # Not under pytest's folder: its parents are closed to other users.
        self.home = Path(tempfile.mkdtemp(prefix="lockline-pg-"))
        WATCHER.takes_away(self.home)
        self.port = free_port()
        self.url = f"postgresql://lockline@127.0.0.1:{self.port}/postgres"
        data = self.home / "data"
        super().__init__(
            [
                *self._as_user(), str(self._bin / "postgres"), "-D", str(data), "-p", str(self.port),
                "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.home}",
                "-c", "max_connections=50", "-c", "shared_buffers=32MB",
                # Servers are killed here, and no power is cut: the system keeps what they wrote.
                "-c", "fsync=off", *options,
            ],
            self.home / "run",
            self._answers,
        )  # fmt: skip
        self.data = data
        self.folder.mkdir()
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            for folder in (self.home, self.folder):
                os.chown(folder, user.pw_uid, user.pw_gid)
        self._make_data(data)

    def _make_data(self, data: Path) -> None:
        subprocess.run(
            [*self._as_user(), str(self._bin / "initdb"), "-D", str(data), "-U", "lockline", "-A", "trust",
             "-E", "UTF8", "--no-locale", "--no-sync"],
            check=True, cwd=self.home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _as_user(self) -> list[str]:
        # setpriv replaces itself by the server, so its pid is the server's pid.
        if os.getuid() != 0:
            return []
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def _answers(self) -> bool:
        asked = subprocess.run(
            [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return asked.returncode == 0

    def _children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def freeze(self) -> None:
        """SIGSTOP, first to the one that makes the others, so that no new one comes."""
        super().freeze()
        for pid in self._children():
            freeze(pid)

    def thaw(self) -> None:
        """SIGCONT, to all."""
        for pid in (*self._children(), self.pid):
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, to its children too: by themselves they live on for a moment, and finish what they are at."""
        children = self._children()
        for pid in (self.pid, *children):
            os.kill(pid, signal.SIGKILL)
        super().kill()
        wait_for(lambda: not any(map(_lives, children)), 10, "the end of its children")

    def stop(self) -> None:
        """SIGINT: a fast shutdown, which does not wait for clients."""
        self._end(signal.SIGINT)

    def remove(self) -> None:
        """Stop it and take its folder away."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)


class PostgresReplica(PostgresServer):
    """A standby that follows a server; `promote` makes it a primary."""

    def __init__(self, primary: PostgresServer, *options: str) -> None:
        self._primary = primary
        super().__init__(*options)

    def _make_data(self, data: Path) -> None:
        subprocess.run(
            [*self._as_user(), str(self._bin / "pg_basebackup"), "-D", str(data), "-d", self._primary.url, "-R", "-c", "fast", "--no-sync"],
            check=True, cwd=self.home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def promote(self) -> None:
        """From now on it is a primary."""
        subprocess.run(
            [*self._as_user(), str(self._bin / "pg_ctl"), "promote", "-D", str(self.data)],
            check=True, cwd=self.home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip


def _lives(pid: int) -> bool:
    try:
        return state_of(Path(f"/proc/{pid}/stat")) not in "ZX"
    except OSError:
        return False
