"""Independent Redis servers that are a redlock cluster, for as long as a block lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockline.backends.redlock import cluster
from lockline.backends.redlock.target import understand
from tests.servers.redis import RedisServer, a_folder


class Servers:
    """N servers; `servers[0].kill()`, `servers.url`, `servers.set_up()`."""

    def __init__(self, folder: Path, count: int, *options: str, keeps_data: bool = False) -> None:
        self.nodes = [RedisServer(folder / f"node-{n}", *options, keeps_data=keeps_data) for n in range(count)]

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
        for node in self.nodes:
            node.stop()

    def left_over(self, pattern: str = "lockline:redlock:*") -> list[list[str]]:
        """The keys of each server that is not one of its own three."""
        own = {"lockline:redlock:gate", "lockline:redlock:node", "lockline:redlock:counters"}
        return [sorted(set(node.command("KEYS", pattern)) - own) for node in self.nodes if node.running]


def url_of(nodes: Sequence[RedisServer]) -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@contextlib.contextmanager
def servers(count: int, *options: str, longest: float = 60.0, keeps_data: bool = False) -> Iterator[Servers]:
    """A cluster that is set up."""
    with a_folder("redlock") as folder:
        made = Servers(folder, count, *options, keeps_data=keeps_data)
        try:
            yield made.start().set_up(longest)
        finally:
            made.stop()


def tells_of_silence(text: str) -> bool:
    """Whether an error says of a server that it did not answer: a request, a new connection, or the greeting on it, as far as it came."""
    return any(words in text.lower() for words in ("timed out", "timeout", "no answer in time"))
