"""A server that goes away while a command runs under its lock."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

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
    time.sleep(0.01)
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
    (shell.folder / "work.py").write_text(WORK)
    run = shell.start("run", "job", "--url", server.url, "--ttl", "3", "--", sys.executable, "work.py")
    wait_for(lambda: (shell.folder / "beat").exists(), 20, "the command")
    server.freeze()
    frozen = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        code, _, err = end(run, 30)
    finally:
        server.thaw()
    assert code == 76
    assert "not renewed in time" in err
    # Whatever was acknowledged was sent before the freeze, so a ttl from then is all that the server can have granted.
    assert moment(shell, "beat") < frozen + 3
    assert moment(shell, "told") < moment(shell, "beat")


def test_a_server_that_comes_back_in_time_is_not_noticed(shell: Shell, server: RedisServer) -> None:
    run = shell.start(
        "run", "job", "--url", server.url, "--ttl", "6", "--", "sh", "-c", "echo $$ > child; while [ ! -e go ]; do sleep 0.02; done; exit 4"
    )  # fmt: skip
    shell.pid_in("child")
    server.freeze()
    since = time.monotonic()
    wait_for(lambda: time.monotonic() > since + 1.5, 10, "a while without a server")
    server.thaw()
    wait_for(lambda: time.monotonic() > since + 6.1, 10, "a ttl from the last renewal before it")
    (shell.folder / "go").touch()
    assert end(run)[0] == 4


def test_a_server_that_is_gone_at_the_end_does_not_change_the_exit_code(shell: Shell, server: RedisServer) -> None:
    run = shell.start(
        "run", "job", "--url", server.url, "--ttl", "20", "--", "sh", "-c", "echo $$ > child; while [ ! -e go ]; do sleep 0.02; done; exit 4"
    )  # fmt: skip
    shell.pid_in("child")
    server.kill()
    (shell.folder / "go").touch()
    code, _, err = end(run, 40)
    assert code == 4
    assert "will expire by itself" in err
