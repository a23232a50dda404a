"""A real MariaDB, with its data in a folder of its own."""

from __future__ import annotations

import getpass
import shutil
from pathlib import Path

from .process import ServerProcess, free_port, listens, program


class MysqlServer(ServerProcess):
    """One server; `port` and `user` connect to its database `test`."""

    def __init__(self, home: Path) -> None:
        found = program("mariadbd", "/usr/sbin/mariadbd")
        self.port = free_port()
        self.user = getpass.getuser()
        data = home / "data"
        data.mkdir(parents=True)
        super().__init__(
            [
                found, "--no-defaults", f"--datadir={data}", f"--port={self.port}", "--bind-address=127.0.0.1",
                f"--socket={home / 'socket'}", f"--pid-file={home / 'pid'}", f"--user={self.user}",
                "--innodb-buffer-pool-size=16M",
                # Nobody but the tests is there, so the tables of users, which take seconds to make, are left out.
                "--skip-grant-tables",
            ],
            home / "run",
            lambda: listens(self.port),
        )  # fmt: skip
        self.home = home

    def remove(self) -> None:
        """Stop it and take its folder away."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
