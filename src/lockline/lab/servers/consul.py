"""Consul: one server, or a cluster of three, on free ports of this machine with folders of their own."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .process import NO_ANSWER, ServerProcess, free_port, program, wait_for

FETCHED = ".servers/consul"
"""Where `make setup` puts it, seen from the project."""


class ConsulServer:
    """One server, which is its own agent; `kill`, `freeze`, `thaw` and `start` again with the same folder."""

    def __init__(self, folder: Path, name: str, binary: str) -> None:
        self.name = name
        self.folder = folder
        self._binary = binary
        self.port, self.serf_port, self.rpc_port = free_port(), free_port(), free_port()
        self.tls = False
        self.server: ServerProcess | None = None

    def prepare(self, servers: Sequence[ConsulServer], more: Mapping[str, Any]) -> None:
        """Say who else is in the cluster."""
        config = {
            "server": True,
            "bootstrap_expect": len(servers),
            "node_name": self.name,
            "data_dir": str(self.folder / "data"),
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "retry_join": [f"127.0.0.1:{other.serf_port}" for other in servers if other is not self],
            "retry_interval": "1s",
            "ports": {
                "http": -1 if self.tls else self.port,
                "https": self.port if self.tls else -1,
                "dns": -1,
                "grpc": -1,
                "serf_wan": -1,
                "serf_lan": self.serf_port,
                "server": self.rpc_port,
            },
            "performance": {"raft_multiplier": 1},
            "session_ttl_min": "200ms",
            "disable_update_check": True,
            "leave_on_terminate": False,
            "log_level": "WARN",
            **more,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "consul.json").write_text(json.dumps(config))
        argv = [self._binary, "agent", f"-config-file={self.folder / 'consul.json'}"]
        self.server = ServerProcess(argv, self.folder, self.healthy)

    def ask(self, path: str, **headers: str) -> Any:
        """What the agent says to this."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=1) as answer:
            return json.load(answer)

    def healthy(self) -> bool:
        """Whether it serves and knows a leader; with TLS only that it listens, and the first request waits for the rest."""
        if self.tls:
            from .process import listens

            return listens(self.port)
        try:
            # A write that is refused because its session is nobody's has been through the servers' log.
            body = b'[{"KV":{"Verb":"lock","Key":"x","Session":"00000000-0000-0000-0000-000000000000"}}]'
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/txn", body, method="PUT")
            urllib.request.urlopen(request, timeout=1).close()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code in (403, 409)
        except NO_ANSWER:
            return False
        return True

    def leads(self) -> bool:
        """Whether it is the leader, by its own word."""
        try:
            return bool(self.ask("status/leader") == f"127.0.0.1:{self.rpc_port}")
        except NO_ANSWER:
            return False


class ConsulCluster:
    """Servers that belong together."""

    def __init__(self, folder: Path, servers: int = 1, config: Mapping[str, Any] | None = None) -> None:
        named = os.environ.get("LOCKLINE_TEST_CONSUL")
        binary = (
            os.path.abspath(named)
            if named
            else program("consul", FETCHED, package="consul (from HashiCorp's repository; in the project: make setup)")
        )
        self.servers = [ConsulServer(folder / f"s{number}", f"s{number}", binary) for number in range(servers)]
        self._config = config or {}

    def start(self) -> ConsulCluster:
        """Start all servers and wait until they serve."""
        for server in self.servers:
            server.tls = "cert_file" in self._config
            server.prepare(self.servers, self._config)
            assert server.server is not None
            server.server.start(wait=False)
        for server in self.servers:
            assert server.server is not None
            server.server.wait_ready()
        return self

    @property
    def url(self) -> str:
        return "consul://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def leader(self) -> ConsulServer:
        """The leader, once there is one."""
        found: list[ConsulServer] = []

        def there() -> bool:
            found[:] = [server for server in self.servers if server.leads()]
            return len(found) == 1

        wait_for(there, 20, "a leader")
        return found[0]

    def stop(self) -> None:
        """Stop all servers."""
        for server in self.servers:
            if server.server is not None:
                server.server.kill()
