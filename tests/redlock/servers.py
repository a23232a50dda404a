"""Independent Redis servers that are a redlock cluster, for as long as a block lasts."""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

from lockline.backends.redlock import cluster
from lockline.backends.redlock.target import understand
from lockline.lab.servers.watcher import WATCHER
from tests.servers.redis import RedisServer, a_folder

_idle: list[SharedNode] = []
"""Servers that run and are empty, for the next test that needs some: to start one costs as much as many tests do."""
_numbers = itertools.count(1)


class SharedNode(RedisServer):
    """A server without settings of its own, which serves one test after the other as long as each leaves it as it found it."""

    def __init__(self) -> None:
        super().__init__(_home() / f"node-{next(_numbers)}")
        self._as_new: Any = None

    def look(self) -> None:
        """Note how it is before the first test."""
        self._as_new = self._settings()

    def _settings(self) -> Any:
        return self.command("CONFIG", "GET", "*"), self.command("ACL", "LIST")

    def clean(self) -> bool:
        """Empty it; whether nothing else is left of what a test has done to it."""
        try:
            return (
                self.running
                and bool(self.command("FLUSHALL"))
                and {path.name for path in self.folder.iterdir()} == {"server.log"}
                and self._settings() == self._as_new
            )
        except (redis.RedisError, OSError):
            return False


@functools.cache
def _home() -> Path:
    """The folder of all shared servers: it goes, and they end, with this process."""
    folder = Path(tempfile.mkdtemp(prefix="lockline-redlock-"))
    WATCHER.takes_away(folder)
    return folder


@contextlib.contextmanager
def shared_nodes(count: int) -> Iterator[list[RedisServer]]:
    """So many servers, empty."""
    nodes = [_idle.pop() for _ in range(min(count, len(_idle)))]
    new = [SharedNode() for _ in range(count - len(nodes))]
    nodes += new
    try:
        for node in new:
            node.start(wait=False)
        for node in new:
            node.wait_ready()
            node.look()
        yield list(nodes)
    finally:
        for node in nodes:
            if node.clean():
                _idle.append(node)
            else:
                node.kill()


class Servers:
    """N servers; `servers[0].kill()`, `servers.url`, `servers.set_up()`."""

    def __init__(self, folder: Path, count: int, *options: str, keeps_data: bool = False) -> None:
        self.nodes = [RedisServer(folder / f"node-{n}", *options, keeps_data=keeps_data) for n in range(count)]

    @classmethod
    def of(cls, nodes: Sequence[RedisServer]) -> Servers:
        """These, which somebody else has started and will stop."""
        made = cls.__new__(cls)
        made.nodes = list(nodes)
        return made

    def __getitem__(self, at: int) -> RedisServer:
        return self.nodes[at]

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def url(self) -> str:
        """What a client is told."""
        return url_of(self.nodes)

    def start(self) -> Servers:
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.wait_ready()
        return self

    def set_up(self, longest: float = 60.0) -> Servers:
        """What `lockline redlock init` does."""
        cluster.init(understand(self.url, "blocking").nodes, longest=longest).act()
        return self

    def stop(self) -> None:
        # Not gently: that takes each a tenth of a second, and nobody wants what they have.
        for node in self.nodes:
            node.kill()

    def left_over(self, pattern: str = "lockline:redlock:*") -> list[list[str]]:
        """The keys of each server that is not one of its own three."""
        own = {"lockline:redlock:gate", "lockline:redlock:node", "lockline:redlock:counters"}
        return [sorted(set(node.command("KEYS", pattern)) - own) for node in self.nodes if node.running]


def url_of(nodes: Sequence[RedisServer]) -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@contextlib.contextmanager
def servers(count: int, *options: str, longest: float = 60.0, keeps_data: bool = False) -> Iterator[Servers]:
    """A cluster that is set up; of servers that others had before, unless these are to be special."""
    if not options and not keeps_data:
        with shared_nodes(count) as nodes:
            yield Servers.of(nodes).set_up(longest)
        return
    with a_folder("redlock") as folder:
        made = Servers(folder, count, *options, keeps_data=keeps_data)
        try:
            yield made.start().set_up(longest)
        finally:
            made.stop()


def tells_of_silence(text: str) -> bool:
    """Whether an error says of a server that it did not answer: a request, a new connection, or the greeting on it, as far as it came."""
    return any(words in text.lower() for words in ("timed out", "timeout", "no answer in time", "no connection yet"))
