"""A real PgBouncer in transaction mode, in front of a PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from pathlib import Path

from .process import ServerProcess, free_port, listens, program
from .watcher import WATCHER


class PgBouncer(ServerProcess):
    """One pooler; `url` leads through it. Few sessions behind it, so that two steps of a client rarely have the same."""

    def __init__(self, server_port: int, *, mode: str = "transaction", sessions: int = 5) -> None:
        found = program("pgbouncer", "/usr/sbin/pgbouncer")
        self.home = Path(tempfile.mkdtemp(prefix="lockline-pgbouncer-"))
        WATCHER.takes_away(self.home)
        self.port = free_port()
        self.url = f"postgresql://lockline@127.0.0.1:{self.port}/postgres"
        settings = self.home / "pgbouncer.ini"
        settings.write_text(
            "[databases]\n"
            f"* = host=127.0.0.1 port={server_port}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self.home}/users\n"
            f"pool_mode = {mode}\ndefault_pool_size = {sessions}\nmax_client_conn = 1000\nserver_round_robin = 1\n"
        )
        (self.home / "users").write_text('"lockline" ""\n')
        as_user: list[str] = []
        if os.getuid() == 0:
            as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            user = pwd.getpwnam("postgres")
            for path in (self.home, settings, self.home / "users"):
                os.chown(path, user.pw_uid, user.pw_gid)
        super().__init__([*as_user, found, str(settings)], self.home / "run", lambda: listens(self.port))

    def remove(self) -> None:
        """Stop it and take its folder away."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
