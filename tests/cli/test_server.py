"""A server that goes away while a command runs under its lock."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from tests.calm import Busy
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer, a_redis

from .conftest import Shell, end

pytestmark = [pytest.mark.server, pytest.mark.slow]

WORK = """
import os, signal, time
def note(file):
    with open(file + ".new", "w") as new:
        print(time.clock_gettime(time.CLOCK_BOOTTIME), file=new)
    os.replace(file + ".new", file)
signal.signal(signal.SIGTERM, lambda *_: note("told"))
while True:
    note("beat")
    time.sleep(0.05)
"""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with a_redis() as server:
        yield server


def moment(shell: Shell, file: str) -> float:
    return float((shell.folder / file).read_text())


def test_a_frozen_server_stops_the_command_before_another_could_have_the_lock(
    shell: Shell, server: RedisServer
) -> None:
    """Takes some 18 s: the ttl has to pass without a renewal, and the release waits for the server in vain."""
    (shell.folder / "work.py").write_text(WORK)
    run = shell.start("run", "job", "--url", server.url, "--ttl", "8", "--grace", "4", "--", sys.executable, "work.py")
    wait_for(lambda: (shell.folder / "beat").exists(), 60, "the command")
    server.freeze()
    busy, frozen = Busy(), time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        code, _, err = end(run)
    finally:
        server.thaw()
    assert code == 76
    assert "not renewed in time" in err
    # Whatever was acknowledged was sent before the freeze, so a ttl from then is all that the server can have granted.
    # Only a kill that got no processor comes later than that.
    assert moment(shell, "beat") < frozen + 8 + busy()
    assert moment(shell, "told") < moment(shell, "beat")


def test_a_server_that_comes_back_in_time_is_not_noticed(shell: Shell, server: RedisServer) -> None:
    """Takes some 16 s: without a renewal after the server came back the lease would end by then."""
    run = shell.start(
        "run", "job", "--url", server.url, "--ttl", "15", "--grace", "0", "--", "sh", "-c", "echo $$ > child; while [ ! -e go ]; do sleep 0.1; done; exit 4"
    )  # fmt: skip
    shell.pid_in("child")
    server.freeze()
    since = time.monotonic()
    wait_for(lambda: time.monotonic() > since + 1.5, 60, "a while without a server")
    server.thaw()
    wait_for(lambda: time.monotonic() > since + 15.1, 60, "a ttl from the last renewal before it")
    (shell.folder / "go").touch()
    assert end(run)[0] == 4


def test_a_server_that_is_gone_at_the_end_does_not_change_the_exit_code(shell: Shell, server: RedisServer) -> None:
    """Takes some 11 s: so long the release tries to reach the server."""
    run = shell.start(
        "run", "job", "--url", server.url, "--ttl", "20", "--", "sh", "-c", "echo $$ > child; while [ ! -e go ]; do sleep 0.1; done; exit 4"
    )  # fmt: skip
    shell.pid_in("child")
    server.kill()
    (shell.folder / "go").touch()
    code, _, err = end(run)
    assert code == 4
    assert "will expire by itself" in err
