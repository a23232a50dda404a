"""`lockline once`: one runs the command, all get its output."""

from __future__ import annotations

import resource
import signal
import subprocess

import pytest

from tests.servers.process import free_port, wait_for
from tests.strange_servers import a_server_that, says_nothing

from .conftest import LOCKLINE, Shell, alive, end

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
        "once", "key", "--fresh", "1h", "--", "sh", "-c", f"while [ ! -e go ]; do sleep 0.1; done; {WORK}"
    )
    wait_for(lambda: shell.held("key"), 60, "one who makes it")
    others = [shell.start("once", "key", "--fresh", "1h", "--", "sh", "-c", WORK) for _ in range(2)]
    wait_for(lambda: shell.waiters("key") == 2, 60, "two who wait")
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


@pytest.mark.parametrize("timeout", [(), ("--timeout", "600")], ids=["without a timeout", "with a timeout"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_the_command_ends_with_the_one_who_makes_it(
    shell: Shell, timeout: tuple[str, ...], number: signal.Signals
) -> None:
    making = shell.start(
        "once", "key", "--fresh", "1h", "--ttl", "5", *timeout, "--", "sh", "-c", "echo $$ > pid; exec sleep 600"
    )
    pid = shell.pid_in("pid")
    making.send_signal(number)
    assert end(making)[:2] == (-number if number == signal.SIGKILL else 128 + number, "")
    wait_for(lambda: not alive(pid), 60, "the end of the command")
    wait_for(lambda: not shell.held("key"), 60, "a free key")
    # It was not the command's own doing: whoever asks next makes it.
    assert shell("once", "key", "--fresh", "1h", "--", "echo", "made").stdout == "made\n"


def test_the_command_ends_when_nobody_waits_for_it_any_more(shell: Shell) -> None:
    """Takes some 9 s: the command has to begin, on a busy machine too, before the timeout has passed."""
    late = shell("once", "key", "--fresh", "1h", "--timeout", "8", "--", "sh", "-c", "echo $$ > pid; exec sleep 600")
    assert (late.returncode, late.stdout) == (75, "")
    assert not alive(shell.pid_in("pid"))
    assert shell("once", "key", "--fresh", "1h", "--", "echo", "made").stdout == "made\n"


def test_one_who_waits_elsewhere_makes_it_when_the_first_is_asked_to_go(shell: Shell) -> None:
    first = shell.start("once", "key", "--fresh", "1h", "--", "sh", "-c", "echo $$ > pid; exec sleep 600")
    shell.pid_in("pid")
    second = shell.start("once", "key", "--fresh", "1h", "--", "echo", "made")
    wait_for(lambda: shell.waiters("key") == 1, 60, "one who waits")
    first.send_signal(signal.SIGTERM)
    assert end(first)[0] == 128 + signal.SIGTERM
    assert end(second)[:2] == (0, "made\n")


def test_however_much_the_command_prints_little_of_it_is_kept_in_memory(shell: Shell) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # It prints for ever: it ends as one does whose reader has gone.
    endless = shell.anew("once", "key", "--fresh", "1h", "--", "yes")
    assert (endless.returncode, "at most" in endless.stderr) == (64, True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before, 100_000) + 50_000


def test_a_daemon_that_keeps_the_output_open_is_not_waited_for(shell: Shell) -> None:
    daemon = "setsid sh -c 'echo $$ > daemon; exec sleep 600' 2>&- & echo output"
    done = shell("once", "key", "--fresh", "1h", "--", "sh", "-c", daemon)
    assert (done.returncode, done.stdout) == (0, "output\n")
    assert alive(shell.pid_in("daemon"))


def test_a_closed_stdout_harms_nothing(shell: Shell) -> None:
    call = " ".join([*LOCKLINE, "once", "key", "--fresh", "1h", "--", "echo", "output"])
    done = subprocess.run(
        ["sh", "-c", f"{call} >&-"], env=shell.env, cwd=shell.folder, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shell("once", "key", "--fresh", "1h", "--", "echo", "never").stdout == "output\n"


def test_a_server_that_is_silent_is_not_called_one_who_makes_it(shell: Shell) -> None:
    with a_server_that(says_nothing) as port:
        done = shell(
            "once",
            "key",
            "--fresh",
            "1h",
            "--timeout",
            "0.3",
            "--url",
            f"redis://127.0.0.1:{port}",
            "--",
            "echo",
            "never",
        )
    assert (done.returncode, done.stdout) == (69, "")
    assert "gave no answer in time" in done.stderr


def test_the_command_is_stopped_when_its_lease_is_taken_away(shell: Shell) -> None:
    first = shell.start("once", "key", "--fresh", "1h", "--", "sh", "-c", "echo $$ > pid; exec sleep 600")
    pid = shell.pid_in("pid")
    assert shell("evict", "key", "--yes").returncode == 0
    wait_for(lambda: not alive(pid), 120, "the end of the command")
    assert end(first)[0] == 76
    assert shell("once", "key", "--fresh", "1h", "--", "sh", "-c", WORK).stdout == "output\n"
    assert runs(shell) == 1
