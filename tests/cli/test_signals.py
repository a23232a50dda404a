"""Signals: forwarded to the command, or the end of the wait."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.servers.process import wait_for

from .conftest import LOCKLINE, Shell, alive, end


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"])
def test_a_signal_reaches_the_command_and_its_exit_code_comes_back(shell: Shell, name: str) -> None:
    run = shell.run(f"trap 'exit 42' {name}; echo $$ > child; while :; do sleep 0.1; done")
    shell.pid_in("child")
    run.send_signal(signal.Signals[f"SIG{name}"])
    assert end(run)[0] == 42


def test_a_signal_reaches_the_whole_group(shell: Shell) -> None:
    run = shell.run(
        "trap : USR1; (trap 'echo told > told; exit' USR1; echo ready > ready; while :; do sleep 0.1; done) & wait; wait"
    )
    wait_for(lambda: (shell.folder / "ready").exists(), 60, "the grandchild")
    run.send_signal(signal.SIGUSR1)
    assert end(run)[0] == 0
    assert (shell.folder / "told").exists()


def test_term_ends_the_command_and_frees_the_lock(shell: Shell) -> None:
    run = shell.run("echo $$ > child; exec sleep 600")
    child = shell.pid_in("child")
    run.terminate()
    assert end(run)[0] == 128 + 15
    assert not alive(child)
    assert not shell.held()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_waiting_leaves_the_line(shell: Shell, number: signal.Signals) -> None:
    shell.run("echo $$ > holder; exec sleep 600")
    shell.pid_in("holder")
    waiter = shell.run("touch ran")
    wait_for(lambda: shell.waiters() == 1, 60, "a waiter")
    waiter.send_signal(number)
    code, _, err = end(waiter)
    assert code == 128 + number
    assert "Traceback" not in err
    assert shell.waiters() == 0
    assert not (shell.folder / "ran").exists()


def test_what_was_ignored_when_we_came_stays_ignored(shell: Shell) -> None:
    script = "echo $$ > child; while [ ! -e go ]; do sleep 0.1; done; exit 6"
    run = subprocess.Popen(
        [*LOCKLINE, "run", "job", "--", "sh", "-c", script], env=shell.env, cwd=shell.folder,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    try:
        child = shell.pid_in("child")
        run.send_signal(signal.SIGHUP)
        os.kill(child, signal.SIGHUP)
        (shell.folder / "go").touch()
        assert run.wait(60) == 6
    finally:
        run.kill()
        run.wait()


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def test_stop_and_continue_reach_the_command(shell: Shell) -> None:
    # Without a fork: a shell whose child is stopped between vfork and exec waits for that one, and is never seen as stopped.
    run = shell.run("echo $$ > child; while [ ! -e go ]; do :; done; exit 6", "--ttl", "30")
    child = shell.pid_in("child")
    run.send_signal(signal.SIGTSTP)
    wait_for(lambda: state(child) == "T" and state(run.pid) == "T", 60, "both stopped")
    run.send_signal(signal.SIGCONT)
    wait_for(lambda: state(child) != "T", 60, "the command going on")
    (shell.folder / "go").touch()
    assert end(run)[0] == 6


def test_a_stop_past_the_lease_never_lets_the_command_go_on(shell: Shell) -> None:
    """Takes some 6 s: a ttl in which a busy machine starts the command has to pass."""
    run = shell.run("echo $$ > child; while :; do sleep 0.1; done", "--ttl", "5")
    child = shell.pid_in("child")
    run.send_signal(signal.SIGTSTP)
    wait_for(lambda: not alive(child), 60, "the end of the stopped command")
    run.send_signal(signal.SIGCONT)
    assert end(run)[0] == 76
