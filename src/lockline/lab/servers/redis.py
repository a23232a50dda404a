"""Redis: one server, a primary with replicas under sentinels, a cluster of three shards."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..calm import calm
from .process import PORTS, ServerProcess, free_port, listens, program, wait_for


def chosen_program() -> str:
    """The server's program: what `LOCKLINE_TEST_REDIS` names, or the system's own."""
    named = os.environ.get("LOCKLINE_TEST_REDIS")
    return os.path.abspath(named) if named else program("redis-server", "valkey-server")


@functools.cache
def version_of(program: str) -> tuple[int, int]:
    """The release that a server's program says it is: (6, 2)."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


def knows_tls(program: str) -> bool:
    """Whether it was built with TLS: one that was not stops at the first of these lines, any other at the second."""
    told = subprocess.run([program, "-"], input="tls-port 0\nport none\n", capture_output=True, text=True, timeout=10)
    assert "port none" in told.stderr or "tls-port 0" in told.stderr, told
    return "tls-port 0" not in told.stderr


def _answers(port: int) -> bool:
    import redis

    try:
        with contextlib.closing(redis.Redis(port=port, socket_timeout=2, socket_connect_timeout=2)) as client:
            return bool(client.ping())
    except redis.AuthenticationError:
        return True
    except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
        return False


class RedisServer(ServerProcess):
    """One redis-server on a free port of 127.0.0.1; what it is told to keep stays in its folder."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        port: int | None = None,
        ready: Callable[[int], bool] = _answers,
        keeps_data: bool = False,
    ) -> None:
        self.port = port or free_port()
        server = chosen_program()
        # Before 7.0 DEBUG was always allowed, and there was no such option.
        debug = ["--enable-debug-command", "yes"] if version_of(server) >= (7, 0) else []
        argv = [
            server,
            "--port", str(self.port), "--bind", "127.0.0.1", "--protected-mode", "no", "--dir", str(folder),
            "--save", "", "--appendonly", "yes" if keeps_data else "no", *debug,
            "--appendfsync", "always" if keeps_data else "everysec", *options,
        ]  # fmt: skip
        super().__init__(argv, folder, lambda: ready(self.port))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        """What a client is told."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> Any:
        """A plain redis-py client, to look behind the scenes."""
        import redis

        return redis.Redis(port=self.port, decode_responses=True, **options)

    def command(self, *words: object) -> Any:
        """One command over a connection of its own."""
        with contextlib.closing(self.client(socket_timeout=5)) as client:
            return client.execute_command(*words)


@contextlib.contextmanager
def a_folder(name: str) -> Iterator[Path]:
    """A folder for a server's data that goes away with it."""
    folder = Path(tempfile.mkdtemp(prefix=f"lockline-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def a_redis(*options: str, keeps_data: bool = False) -> Iterator[RedisServer]:
    """A server for as long as the block lasts."""
    with a_folder("redis") as folder:
        server = RedisServer(folder, *options, keeps_data=keeps_data)
        server.start()
        try:
            yield server
        finally:
            server.stop()


class SentinelTrio:
    """A primary with two replicas, watched by three sentinels that agree on a failover within a second or two."""

    SERVICE = "lines"

    def __init__(self, folder: Path, replicas: int = 2, *options: str) -> None:
        self.primary = RedisServer(folder / "node-0", *options)
        self.replicas = [
            RedisServer(folder / f"node-{n + 1}", "--replicaof", "127.0.0.1", str(self.primary.port), *options)
            for n in range(replicas)
        ]
        for server in self.nodes:
            server.argv += ["--repl-diskless-sync-delay", "0"]
        self.sentinels = [self._sentinel(folder / f"sentinel-{n}") for n in range(3)]

    def _sentinel(self, folder: Path) -> RedisServer:
        folder.mkdir(parents=True)
        server = RedisServer(folder)
        conf = folder / "sentinel.conf"
        service = self.SERVICE
        conf.write_text(
            f"port {server.port}\nbind 127.0.0.1\nprotected-mode no\ndir {folder}\n"
            f"sentinel monitor {service} 127.0.0.1 {self.primary.port} 2\n"
            f"sentinel down-after-milliseconds {service} 500\n"
            f"sentinel failover-timeout {service} 3000\n"
            f"sentinel parallel-syncs {service} 2\n"
        )
        server.argv = [server.argv[0], str(conf), "--sentinel"]
        return server

    @property
    def nodes(self) -> list[RedisServer]:
        """Primary and replicas, as they were at the start."""
        return [self.primary, *self.replicas]

    @property
    def url(self) -> str:
        """What a client is told."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.SERVICE}"

    def start(self) -> SentinelTrio:
        """Start all, and wait until a failover would be possible."""
        for server in self.nodes:
            server.start(wait=False)
        for server in self.nodes:
            server.wait_ready()
        wait_for(self._replicated, 20, "replication")
        for sentinel in self.sentinels:
            sentinel.start(wait=False)
        for sentinel in self.sentinels:
            sentinel.wait_ready()
        wait_for(self._agreed, 30, "the sentinels' view")
        return self

    def stop(self) -> None:
        """Stop what still runs."""
        for server in (*self.sentinels, *self.nodes):
            server.stop()

    def _replicated(self) -> bool:
        info = self.primary.command("INFO", "replication")
        return int(info["connected_slaves"]) == len(self.replicas) and all(
            info[f"slave{n}"]["state"] == "online" for n in range(len(self.replicas))
        )

    def _agreed(self) -> bool:
        for sentinel in self.sentinels:
            with contextlib.closing(sentinel.client()) as client:
                state = client.sentinel_master(self.SERVICE)
            if state["num-other-sentinels"] != 2 or state["num-slaves"] != len(self.replicas):
                return False
        return True

    def settled(self) -> bool:
        """Whether all agree: one primary, of which every sentinel thinks well, and the other nodes follow it."""
        import redis

        primaries = set()
        try:
            for sentinel in self.sentinels:
                with contextlib.closing(sentinel.client(socket_timeout=1)) as client:
                    state = client.sentinel_master(self.SERVICE)
                if state["flags"] != "master":  # and not: down, or being failed over
                    return False
                primaries.add(state["port"])
            roles = {node.port: node.command("ROLE") for node in self.nodes}
        except (redis.RedisError, OSError):
            return False
        (primary,) = primaries if len(primaries) == 1 else (None,)
        return all(
            role[0] == "master" if port == primary else role[0] == "slave" and role[2:4] == [primary, "connected"]
            for port, role in roles.items()
        )

    def who_is_primary(self) -> RedisServer | None:
        """The node that the first sentinel names, and that says so itself."""
        import redis

        for sentinel in self.sentinels:
            try:
                with contextlib.closing(sentinel.client(socket_timeout=1)) as client:
                    _, port = client.sentinel_get_master_addr_by_name(self.SERVICE)
                node = next((node for node in self.nodes if node.port == port), None)
                if node is not None and node.running and node.command("ROLE")[0] == "master":
                    return node
            except (redis.RedisError, OSError):
                continue
        return None


class RedisCluster:
    """Three shards, each with one replica (or none)."""

    def __init__(self, folder: Path, shards: int = 3, replicas: int = 1, *options: str) -> None:
        self.shards = shards
        self._bus: dict[int, int] = {}
        self.nodes = [self._node(folder / f"node-{n}", *options) for n in range(shards * (1 + replicas))]

    def _node(self, folder: Path, *options: str) -> RedisServer:
        port, bus = free_port(), free_port()
        if version_of(chosen_program()) >= (7, 0):
            options = ("--cluster-port", str(bus), *options)
        else:
            # There the bus cannot be told its port: it is always the clients' and 10000.
            while (bus := port + 10000) not in PORTS or listens(bus):
                port = free_port()
        self._bus[port] = bus
        return RedisServer(
            folder, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
            "--cluster-allow-replica-migration", "no", "--repl-diskless-sync-delay", "0", *options, port=port,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """What a client is told."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[: self.shards])

    def start(self) -> RedisCluster:
        """Start the nodes, give the slots out by hand (faster than the tool does it), and wait until all agree."""
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.wait_ready()
        primaries, replicas = self.nodes[: self.shards], self.nodes[self.shards :]
        edges = [16384 * n // self.shards for n in range(self.shards + 1)]
        for n, node in enumerate(primaries):
            # One by one: Redis 6.2 does not know ADDSLOTSRANGE.
            node.command("CLUSTER", "ADDSLOTS", *range(edges[n], edges[n + 1]))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port, self._bus[node.port])
        wait_for(lambda: all(self._knows_all(node) for node in self.nodes), 20, "the cluster's gossip")
        for n, node in enumerate(replicas):
            node.command("CLUSTER", "REPLICATE", self.id_of(primaries[n % self.shards]))
        wait_for(lambda: all(self._is_ok(node) for node in self.nodes), 20, "the cluster's state")
        for node in replicas:
            wait_for(partial(lambda node: node.command("ROLE")[3] == "connected", node), 20, "replication")
        return self

    def stop(self) -> None:
        """Stop what still runs."""
        for node in self.nodes:
            node.stop()

    def _knows_all(self, node: RedisServer) -> bool:
        return bool(node.command("CLUSTER INFO")["cluster_known_nodes"] == str(len(self.nodes)))

    def _is_ok(self, node: RedisServer) -> bool:
        info = node.command("CLUSTER INFO")
        return bool(info["cluster_state"] == "ok")

    @staticmethod
    def id_of(node: RedisServer) -> str:
        """The node's name inside the cluster."""
        return str(node.command("CLUSTER", "MYID"))

    def primaries(self) -> list[RedisServer]:
        """The nodes that are primaries now and run."""
        return [node for node in self.nodes if node.running and node.command("ROLE")[0] == "master"]

    def settled(self) -> bool:
        """Whether all agree: every slot is served, and every primary is followed."""
        import redis

        try:
            roles = [node.command("ROLE") for node in self.nodes]
            return (
                all(self._is_ok(node) for node in self.nodes)
                and sum(role[0] == "master" for role in roles) == self.shards
                and all(role[3] == "connected" for role in roles if role[0] != "master")
            )
        except (redis.RedisError, OSError):
            return False

    def replica_of(self, primary: RedisServer) -> RedisServer:
        """A replica of this primary."""
        for node in self.nodes:
            if node.running:
                role = node.command("ROLE")
                if role[0] == "slave" and role[2] == primary.port:
                    return node
        raise AssertionError(f"no replica of {primary.port}")


@contextlib.contextmanager
def started(make: Callable[[Path], Any], name: str) -> Iterator[Any]:
    """What `make(folder)` gives, started for as long as the block lasts."""
    with a_folder(name) as folder:
        thing = make(folder)
        try:
            yield thing.start()
        finally:
            thing.stop()


def keys(servers: Sequence[RedisServer]) -> list[str]:
    """Every key on every server that runs."""
    found: set[str] = set()
    for server in servers:
        if server.running:
            found.update(server.command("KEYS", "*"))
    return sorted(found)


def empty_within(servers: Sequence[RedisServer], seconds: float = 10.0) -> None:
    """Wait until no server has a key left."""
    until = calm() + seconds
    while left := keys(servers):
        if calm() > until:
            raise AssertionError(f"still there after {seconds} s: {left}")
        time.sleep(0.02)
