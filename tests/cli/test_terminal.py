"""On a terminal: the waiting line, Ctrl-C, Ctrl-Z, colours, questions."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from tests.servers.process import wait_for
from tests.servers.redis import RedisServer, a_redis

from .conftest import LOCKLINE, OnScreen, Shell, alive, end


def test_a_waiting_run_shows_its_place_the_holder_and_for_how_long(shell: Shell, on_screen: OnScreen) -> None:
    holder = shell.run("echo $$ > holder; while [ ! -e go ]; do sleep 0.1; done")
    shell.pid_in("holder")
    first = shell.run("while [ ! -e go2 ]; do sleep 0.1; done")
    wait_for(lambda: shell.waiters() == 1, 60, "a waiter")
    screen = on_screen(*LOCKLINE, "run", "job", "--", "echo", "my turn")
    screen.wait_for(rf"waiting for job: 2nd in line, held by \S*{holder.pid} \(sh\) for \d+\.\ds")
    (shell.folder / "go").touch()
    screen.wait_for(rf"waiting for job: next in line, held by \S*{first.pid} \(sh\) for ")
    (shell.folder / "go2").touch()
    assert screen.code() == 0
    # Erased, so that the command begins on an empty line.
    assert screen.text.endswith("\r\x1b[Kmy turn\r\n")
    store, _, rest = screen.text.partition("\r\n")
    assert f"lockline: job on {shell.url}" in store
    assert "\n" not in rest[: -len("my turn\r\n")]


def test_on_a_pipe_a_waiting_run_says_nothing(shell: Shell) -> None:
    shell.run("echo $$ > holder; while [ ! -e go ]; do sleep 0.1; done")
    shell.pid_in("holder")
    waiting = shell.run("true")
    wait_for(lambda: shell.waiters() == 1, 60, "a waiter")
    (shell.folder / "go").touch()
    assert end(waiting) == (0, "", "")


def test_ctrl_c_while_waiting_leaves_the_line(shell: Shell, on_screen: OnScreen) -> None:
    shell.run("echo $$ > holder; exec sleep 600")
    shell.pid_in("holder")
    screen = on_screen(*LOCKLINE, "run", "job", "--", "echo", "my turn")
    screen.wait_for("next in line")
    screen.type("\x03")
    assert screen.code() == 128 + signal.SIGINT
    assert "my turn" not in screen.text
    assert shell.waiters() == 0


def test_ctrl_c_reaches_the_command_alone(shell: Shell, on_screen: OnScreen) -> None:
    screen = on_screen(
        *LOCKLINE, "run", "job", "--", "sh", "-c", "trap 'exit 9' INT; echo ready; while :; do sleep 0.1; done"
    )
    screen.wait_for("ready")
    screen.type("\x03")
    assert screen.code() == 9
    assert not shell.held()


def test_ctrl_c_kills_a_command_that_does_nothing_about_it(shell: Shell, on_screen: OnScreen) -> None:
    screen = on_screen(*LOCKLINE, "run", "job", "--", "sh", "-c", "echo ready; exec sleep 600")
    screen.wait_for("ready")
    screen.type("\x03")
    assert screen.code() == 128 + signal.SIGINT


def test_an_interactive_command_reads_from_the_terminal(shell: Shell, on_screen: OnScreen) -> None:
    screen = on_screen(*LOCKLINE, "run", "job", "--", "sh", "-c", "echo ready; read line; echo got $line")
    screen.wait_for("ready")
    screen.type("words\n")
    screen.wait_for("got words")
    assert screen.code() == 0


def test_in_a_pipe_the_command_gets_the_terminal_only_when_it_asks(shell: Shell, on_screen: OnScreen) -> None:
    command = " ".join(LOCKLINE) + " run job -- sh -c 'echo ready; read line < /dev/tty; echo got $line' | cat"
    screen = on_screen("/bin/sh", "-c", command)
    screen.wait_for("ready")
    screen.type("words\n")
    screen.wait_for("got words")
    assert screen.code() == 0


def test_the_terminal_comes_back_after_the_command(shell: Shell, on_screen: OnScreen) -> None:
    command = " ".join(LOCKLINE) + " run job -- true; read line; echo got $line"
    screen = on_screen("/bin/sh", "-c", command)
    screen.type("words\n")
    screen.wait_for("got words")
    assert screen.code() == 0


def test_ctrl_z_stops_the_job_and_fg_goes_on(shell: Shell, on_screen: OnScreen) -> None:
    screen = on_screen("/bin/bash", "--norc", "--noprofile", "-i", PS1="prompt> ")
    screen.wait_for("prompt> ")
    # No shell as the command: one that is stopped between vfork and exec of a child of its own never counts as stopped.
    (shell.folder / "work.py").write_text(
        "import os, time\nprint(os.getpid(), file=open('child', 'w'))\n"
        "while not os.path.exists('go'): time.sleep(0.02)\nprint('finished')\n"
    )
    screen.type(" ".join(LOCKLINE) + f" run job --ttl 20 -- {sys.executable} work.py\n")
    child = shell.pid_in("child")
    screen.type("\x1a")
    screen.wait_for("Stopped")
    screen.type("fg\n")
    (shell.folder / "go").touch()
    screen.wait_for("finished")
    wait_for(lambda: not alive(child), 60, "the end of the command")
    screen.type("echo code=$?; exit\n")
    screen.wait_for("code=0")
    assert screen.code() == 0


def test_an_eviction_asks_first(shell: Shell, on_screen: OnScreen) -> None:
    run = shell.run("echo $$ > child; exec sleep 600")
    shell.pid_in("child")
    screen = on_screen(*LOCKLINE, "evict", "job")
    screen.wait_for(rf"job is held by \S*{run.pid} \(sh\) for \S+\. Take it away\? \[y/N\]")
    screen.type("n\n")
    assert screen.code() != 0
    assert shell.held()
    screen = on_screen(*LOCKLINE, "evict", "job")
    screen.wait_for("Take it away")
    screen.type("y\n")
    assert screen.code() == 0
    assert "evicted 1 holder" in screen.text


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with a_redis() as server:
        yield server


@pytest.mark.parametrize("store", ["local", pytest.param("redis", marks=pytest.mark.server)])
def test_an_eviction_spares_whoever_took_over_while_the_question_was_on_the_screen(
    shell: Shell, on_screen: OnScreen, store: str, request: pytest.FixtureRequest
) -> None:
    if store == "redis":
        shell.env["LOCKLINE_URL"] = request.getfixturevalue("redis_server").url
    first = shell.run("echo $$ > first; exec sleep 600")
    shell.pid_in("first")
    second = shell.run("echo $$ > second; exec sleep 600")
    wait_for(lambda: shell.waiters() == 1, 60, "a waiter")
    screen = on_screen(*LOCKLINE, "evict", "job")
    screen.wait_for(rf"held by \S*{first.pid} .*Take it away")
    first.terminate()
    child = shell.pid_in("second")
    screen.type("y\n")
    assert screen.code() == 1
    assert f"held by {shell.json('show', 'job')['holders'][0]['owner']} (sh)" in screen.text
    assert alive(child)
    assert second.poll() is None


def test_colours_only_on_a_terminal_and_not_when_asked_for_none(shell: Shell, on_screen: OnScreen) -> None:
    assert "\x1b[" not in shell("doctor").stdout
    coloured = on_screen(*LOCKLINE, "doctor")
    assert coloured.code() == 0
    assert "\x1b[" in coloured.text
    plain = on_screen(*LOCKLINE, "doctor", NO_COLOR="1")
    assert plain.code() == 0
    assert "\x1b[" not in plain.text
