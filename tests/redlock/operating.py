"""What the tests of the operator's steps share."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import lockline
from lockline import LeaseLost, QuorumNotReached
from lockline.backends.redlock import cluster
from lockline.backends.redlock.target import Node, understand
from lockline.cli import app
from tests.servers.redis import RedisServer

from .servers import Servers, shared_nodes

LONGEST = 1.0
FAR = 4 * 10**15
"""A floor far above the clock, so that a number which was not carried over shows: the clock cannot make up for it."""
GATE = "lockline:redlock:gate"
COMMAND = (sys.executable, "-m", "lockline.cli", "redlock")


def run(*words: str, code: int = 0) -> Any:
    """Call `lockline redlock` in this process and read its JSON; what it says of an error where there is none."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as told:
        given = app.run(["redlock", *words, "--json"])
    assert given == code, told.getvalue() + said.getvalue()
    return json.loads(said.getvalue()) if said.getvalue() else told.getvalue()


def nodes_of(url: str) -> Sequence[Node]:
    """The servers of a URL, as the steps take them."""
    return understand(url, "blocking").nodes


def a_token(url: str, name: str = "x", ttl: float = LONGEST) -> int:
    """What one acquire gives now, with patience for a cluster that is coming back."""
    with lockline.connect(url) as client:
        until = time.monotonic() + 120
        while True:
            try:
                lease = client.lock(name, ttl=ttl).acquire(timeout=60)
            except QuorumNotReached:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
                continue
            # A short one may be over by now on a busy machine; its number is what was asked for.
            with contextlib.suppress(LeaseLost):
                lease.release()
            return lease.token


@contextlib.contextmanager
def far_servers(count: int, longest: float) -> Iterator[Servers]:
    """A cluster that counts from far above the clock."""
    with shared_nodes(count) as nodes:
        made = Servers.of(nodes)
        cluster.init(nodes_of(made.url), longest=longest, floor=FAR, sleep=lambda seconds: None).act()
        yield made


@contextlib.contextmanager
def more_servers(count: int) -> Iterator[list[RedisServer]]:
    """Servers that nobody has set up."""
    with shared_nodes(count) as nodes:
        yield nodes


def end_refusal(node: RedisServer) -> None:
    """Let the time of refusing be over, by the server's own clock: it was to end later."""
    state, whose, _ = node.command("GET", GATE).split(" ")
    assert state == "refusing"
    node.command("SET", GATE, f"refusing {whose} 1")


def refuses_until(node: RedisServer) -> float:
    """When it serves again, in seconds of its own clock."""
    state, _, until = node.command("GET", GATE).split(" ")
    assert state == "refusing"
    return int(until) / 1000


def gates(nodes: Sequence[RedisServer]) -> list[str | None]:
    """Each server's gate: a cluster id alone is an open one."""
    return [node.command("GET", GATE) for node in nodes]
