"""One Redis, a primary and its replica, or five that know nothing of each other."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

from ..servers.process import ServerProcess, wait_for
from ..servers.proxy import Proxy
from .face import Address, Servers

LONGEST = 600.0
"""Seconds: above every ttl of the laboratory, at any pace."""


class RedisFamily(Servers):
    """One Redis, or a primary and its replica: new ones for each cell, they start in no time."""

    url = "redis://{hosts}"
    shared = False
    count: ClassVar[int] = 1

    def __init__(self, folder: Path, wants: str) -> None:
        from ..servers.redis import RedisServer

        super().__init__(folder, wants)
        self._servers = [RedisServer(folder / f"redis-{number}") for number in range(self.count)]
        self.labels = ["Redis"]
        if wants == "replica":
            self._link = Proxy(self._servers[0].address)
            options = ("--replicaof", "127.0.0.1", str(self._link.port), "--repl-diskless-sync-delay", "0")
            self._servers.append(RedisServer(folder / "replica", *options))
            self.labels = ["primary", "replica"]
        for number, server in enumerate(self._servers):
            server.env = self.clock_env(number)

    @property
    def addresses(self) -> list[Address]:
        return [server.address for server in self._servers[: self.count]]

    def processes(self) -> list[ServerProcess]:
        return list(self._servers)

    def start(self) -> None:
        for server in self._servers:
            server.start(wait=False)
        for server in self._servers:
            server.wait_ready()
        if self.wants == "replica":
            wait_for(lambda: self._servers[1].command("ROLE")[3] == "connected", 20, "replication")

    def stop(self) -> None:
        super().stop()
        if self.wants == "replica":
            self._link.close()

    def isolate(self) -> None:
        self._link.black_hole()

    def fail_over(self, primary: int) -> Address | None:
        self._servers[primary].kill()
        self._servers[1].command("REPLICAOF", "NO", "ONE")
        return self._servers[1].address

    def evidence(self, name: str) -> str:
        for server in self._servers:
            with contextlib.suppress(Exception):
                left = server.command("PTTL", name)
                if left != -2:
                    return "its key has no expiry" if left == -1 else f"its key expires in {left / 1000:.1f} s"
        return ""


class RedlockFamily(RedisFamily):
    """Five that know nothing of each other."""

    count = 5
    url = "redlock://{hosts}"

    def __init__(self, folder: Path, wants: str) -> None:
        super().__init__(folder, "plain" if wants == "replica" else wants)
        self.labels = [f"Redis {number + 1}" for number in range(self.count)]

    def start(self) -> None:
        from ...backends.redlock import cluster
        from ...backends.redlock.target import understand

        super().start()
        # For Lockline; to the published lock it is a key like any other.
        url = self.url.format(hosts=",".join(f"{host}:{port}" for host, port in self.addresses))
        cluster.init(understand(url, "blocking").nodes, longest=LONGEST).act()
