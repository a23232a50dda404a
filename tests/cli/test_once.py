"""`lockline once`: one runs the command, all get its output."""

from __future__ import annotations

from tests.servers.process import free_port, wait_for

from .conftest import Shell, end

WORK = "echo run >> runs; echo output"

REFUSES = "redlock://" + ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
"""A store that cannot do it, and where nobody answers: the refusal comes first."""


def runs(shell: Shell) -> int:
    file = shell.folder / "runs"
    return file.read_text().count("\n") if file.exists() else 0


def test_the_output_is_made_once_and_given_to_all(shell: Shell) -> None:
    for _ in range(3):
        done = shell("once", "key", "--fresh", "1h", "--", "sh", "-c", WORK)
        assert (done.returncode, done.stdout, done.stderr) == (0, "output\n", "")
    assert runs(shell) == 1


def test_those_who_ask_while_it_is_made_get_it_too(shell: Shell) -> None:
    first = shell.start(
        "once", "key", "--fresh", "1h", "--", "sh", "-c", f"while [ ! -e go ]; do sleep 0.05; done; {WORK}"
    )
    wait_for(lambda: shell.held("key"), 20, "one who makes it")
    others = [shell.start("once", "key", "--fresh", "1h", "--", "sh", "-c", WORK) for _ in range(2)]
    wait_for(lambda: shell.waiters("key") == 2, 20, "two who wait")
    (shell.folder / "go").touch()
    assert [end(one)[:2] for one in (first, *others)] == [(0, "output\n")] * 3
    assert runs(shell) == 1


def test_a_command_that_fails_keeps_nothing(shell: Shell) -> None:
    done = shell("once", "key", "--fresh", "1h", "--", "sh", "-c", f"{WORK}; exit 3")
    assert (done.returncode, done.stdout) == (3, "output\n")
    assert shell("once", "key", "--fresh", "1h", "--", "./no-such-command").returncode == 127
    assert shell("once", "key", "--fresh", "1h", "--", "sh", "-c", WORK).returncode == 0
    assert runs(shell) == 2


def test_wrong_use_is_said_before_anything_runs(shell: Shell) -> None:
    run = ("--", "sh", "-c", WORK)
    assert shell("once", "key", *run).returncode == 64
    assert shell("once", "key", "--fresh", "0", *run).returncode == 64
    assert shell("once", "key", "--fresh", "1h", "--url", "memory:", *run).returncode == 64
    assert shell("once", "key", "--fresh", "1h", "--url", REFUSES, *run).returncode == 64
    assert runs(shell) == 0
    large = shell("once", "key", "--fresh", "1h", "--", "head", "-c", "2000000", "/dev/zero")
    assert (large.returncode, "at most" in large.stderr) == (64, True)
