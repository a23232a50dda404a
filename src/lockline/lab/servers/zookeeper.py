"""ZooKeeper: one server, or an ensemble of three, started with java directly."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from .process import NotInstalled, ServerProcess, free_port, program, wait_for

TICK = 200
"""Milliseconds; a session lasts at least two ticks."""
JARS = (
    # Debian's jar names what it needs in its manifest, but for TLS and the log.
    ":".join(
        f"/usr/share/java/{jar}.jar"
        for jar in ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver", "netty-transport-native-unix-common")
    ),
    "/opt/zookeeper/lib/*",
)
JVM = ("-Xmx192m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


def tell(port: int, word: str, host: str = "127.0.0.1", seconds: float = 2.0) -> str:
    """What a server answers to one of its four-letter words; empty when it does not."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), seconds) as line:
        line.sendall(word.encode())
        parts = []
        while part := line.recv(65536):
            parts.append(part)
        return b"".join(parts).decode()
    return ""


def facts(port: int, word: str = "mntr", host: str = "127.0.0.1") -> dict[str, str]:
    """`mntr` as a table."""
    rows = (line.partition("\t") for line in tell(port, word, host).splitlines())
    return {key: value for key, tab, value in rows if tab}


def class_path() -> str:
    """Where ZooKeeper's classes are."""
    from_outside = os.environ.get("ZOOKEEPER_CLASSPATH")
    if from_outside:
        return from_outside
    for jar in JARS:
        if os.path.exists(jar.partition(":")[0].rstrip("*")):
            return jar
    raise NotInstalled("zookeeper", "apt-get install zookeeper")


class ZooKeeper(ServerProcess):
    """One server."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        number: int = 0,
        members: str = "",
        settings: dict[str, object] | None = None,
        properties: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
    ) -> None:
        self.port = port or free_port()
        self.host = host
        java = program("java", package="default-jre-headless")
        wanted = {
            "tickTime": TICK, "initLimit": 50, "syncLimit": 10, "dataDir": folder / "data", "clientPort": self.port,
            "clientPortAddress": host, "admin.enableServer": "false", "4lw.commands.whitelist": "*",
            "maxSessionTimeout": 60000, "maxClientCnxns": 0, **(settings or {}),
        }  # fmt: skip
        (folder / "data").mkdir(parents=True, exist_ok=True)
        if number:
            (folder / "data" / "myid").write_text(str(number))
        config = folder / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in wanted.items()) + members)
        # Empty parents are looked for every second instead of every minute. No power is cut here, so nothing waits for the disk.
        given = {
            "zookeeper.forceSync": "no", "znode.container.checkIntervalMs": "1000", "zookeeper.jmx.log4j.disable": "true",
            "org.slf4j.simpleLogger.defaultLogLevel": "warn", **(properties or {}),
        }  # fmt: skip
        argv = [
            *before, java, *JVM, *(f"-D{key}={value}" for key, value in given.items()), "-cp", class_path(), MAIN, str(config),
        ]  # fmt: skip
        super().__init__(argv, folder, self.serves, patience=60.0)

    @property
    def url(self) -> str:
        """How a client reaches it."""
        return f"zk://{self.host}:{self.port}"

    @property
    def mode(self) -> str:
        """leader, follower, standalone, or empty when it does not serve."""
        for line in tell(self.port, "srvr", self.host).splitlines():
            if line.startswith("Mode:"):
                return line.partition(":")[2].strip()
        return ""

    def serves(self) -> bool:
        return bool(self.mode)


class Ensemble:
    """Three servers that make one ZooKeeper."""

    def __init__(
        self,
        folder: Path,
        *,
        hosts: tuple[str, ...] = ("127.0.0.1",) * 3,
        before: tuple[tuple[str, ...], ...] = ((), (), ()),
        settings: dict[str, object] | None = None,
    ) -> None:
        ports = [(free_port(), free_port(), free_port()) for _ in hosts]
        members = "".join(
            f"server.{number}={host}:{ports[number - 1][0]}:{ports[number - 1][1]}\n"
            for number, host in enumerate(hosts, 1)
        )
        self.servers = [
            ZooKeeper(
                folder / f"server{number}", port=ports[number - 1][2], host=host, number=number, members=members,
                before=before[number - 1], settings=settings,
            )
            for number, host in enumerate(hosts, 1)
        ]  # fmt: skip

    def start(self) -> Ensemble:
        """Start all and wait until there is a leader with followers."""
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_ready()
        wait_for(lambda: self.leader is not None, 30, "a leader")
        return self

    @property
    def leader(self) -> ZooKeeper | None:
        """Who leads now."""
        return next((server for server in self.servers if server.running and server.mode == "leader"), None)

    @property
    def url(self) -> str:
        """How a client reaches all of them."""
        return "zk://" + ",".join(f"{server.host}:{server.port}" for server in self.servers)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()
