"""A real MariaDB, with its data in a folder of its own."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from pathlib import Path

from .process import NotInstalled, ServerProcess, free_port, listens, program

SYSTEM_TABLES = Path("/usr/share/mysql")


class MysqlServer(ServerProcess):
    """One server; `port` and `user` connect to its database `test`."""

    def __init__(self, home: Path, *options: str, access: str = "--skip-grant-tables") -> None:
        found = program("mariadbd", "/usr/sbin/mariadbd", package="mariadb-server-core")
        self.port = free_port()
        self.user = getpass.getuser()
        self.data = home / "data"
        self.data.mkdir(parents=True)
        # A server that begins takes away what it finds of temporary tables: also those of another one, in a shared folder.
        (home / "tmp").mkdir()
        self._common = [
            found, "--no-defaults", f"--datadir={self.data}", f"--tmpdir={home / 'tmp'}", f"--user={self.user}", "--innodb-buffer-pool-size=16M",
            "--innodb-log-file-size=4M", "--innodb-use-native-aio=0",  # of which a machine has only so many
        ]  # fmt: skip
        super().__init__(
            [
                *self._common, f"--port={self.port}", "--bind-address=127.0.0.1",
                f"--socket={home / 'socket'}", f"--pid-file={home / 'pid'}",
                # Where nobody else is there, the tables of users are left out.
                *([access] if access else []), *options,
            ],
            home / "run",
            lambda: listens(self.port),
        )  # fmt: skip
        self.home = home

    def remove(self) -> None:
        """Stop it and take its folder away."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)


class MariadbServer(MysqlServer):
    """One with users and routines: `url` is its owner's way to a database that is still to be made."""

    def __init__(self, home: Path, *options: str) -> None:
        super().__init__(home, *options, access="")
        self.url = f"mysql://root@127.0.0.1:{self.port}/lockline"
        self._make_system_tables()

    def _make_system_tables(self) -> None:
        parts = [SYSTEM_TABLES / f"mysql_system_tables{part}.sql" for part in ("", "_data")]
        if not all(part.exists() for part in parts):
            raise NotInstalled("MariaDB's system tables", "apt-get install mariadb-server-core")
        lines = [line for part in parts for line in part.read_text().splitlines() if "@current_hostname" not in line]
        made = subprocess.run(
            [*self._common, "--bootstrap"], check=False, input="\n".join(["create database mysql;", "use mysql;", *lines, ""]).encode(),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        if made.returncode:
            raise AssertionError(
                f"MariaDB's system tables could not be made:\n{made.stderr.decode(errors='replace')[-2000:]}"
            )
