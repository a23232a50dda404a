"""What the tests of the operator's steps share."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import lockline
from lockline import LeaseLost, QuorumNotReached
from lockline.backends.redlock import cluster
from lockline.backends.redlock.target import Node, understand
from tests.servers.redis import RedisServer, a_folder

from .servers import Servers

LONGEST = 1.0
FAR = 4 * 10**15
"""A floor far above the clock, so that a number which was not carried over shows: the clock cannot make up for it."""
COMMAND = (sys.executable, "-m", "lockline.cli", "redlock")


def run(*words: str, code: int = 0) -> Any:
    """Call `lockline redlock` and read its JSON."""
    done = subprocess.run([*COMMAND, *words, "--json"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout) if done.stdout else done.stderr


def nodes_of(url: str) -> Sequence[Node]:
    """The servers of a URL, as the steps take them."""
    return understand(url, "blocking").nodes


def a_token(url: str, name: str = "x", ttl: float = LONGEST) -> int:
    """What one acquire gives now, with patience for a cluster that is coming back."""
    with lockline.connect(url) as client:
        until = time.monotonic() + 10
        while True:
            try:
                lease = client.lock(name, ttl=ttl).acquire(timeout=5)
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
    with a_folder("redlock") as folder:
        made = Servers(folder, count)
        try:
            made.start()
            cluster.init(nodes_of(made.url), longest=longest, floor=FAR, sleep=lambda seconds: None).act()
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def more_servers(count: int) -> Iterator[list[RedisServer]]:
    """Servers that nobody has set up."""
    with a_folder("redlock-more") as folder:
        made = Servers(folder, count)
        try:
            yield made.start().nodes
        finally:
            made.stop()


def gates(nodes: Sequence[RedisServer]) -> list[str | None]:
    """Each server's gate: a cluster id alone is an open one."""
    return [node.command("GET", "lockline:redlock:gate") for node in nodes]
