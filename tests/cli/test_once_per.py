"""`lockline run --once-per` and `--keep-for`: a job that every machine starts, and that runs once."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.servers.process import free_port, wait_for
from tests.strange_servers import a_server_that, says_nothing

from .conftest import Shell, end
from .patient import PATIENT

REFUSES = "redlock://" + ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
"""A store that cannot do it, and where nobody answers: the refusal comes first."""


def runs(shell: Shell) -> int:
    file = shell.folder / "runs"
    return file.read_text().count("\n") if file.exists() else 0


def test_of_all_who_start_it_one_after_the_other_one_runs_it(shell: Shell) -> None:
    for _ in range(3):
        done = shell("run", "nightly", "--once-per", "1d", "--", "sh", "-c", "echo run >> runs")
        assert done.returncode == 0
    assert runs(shell) == 1
    assert "is done for this time" in done.stderr
    assert shell("run", "nightly", "--once-per", "1d", "--quiet", "--", "sh", "-c", "echo run >> runs").stderr == ""
    assert not shell.held("nightly")


def test_who_comes_while_it_runs_finds_it_busy(shell: Shell) -> None:
    first = shell.run("echo $$ > runs-now; exec sleep 600", "--once-per", "1d")
    shell.pid_in("runs-now")
    assert shell("run", "job", "--once-per", "1d", "--", "sh", "-c", "echo run >> runs").returncode == 75
    waits = shell.run("echo run >> runs", "--once-per", "1d", "--timeout", "120")
    wait_for(lambda: shell.waiters() == 1, 60, "one who waits")
    first.kill()
    assert end(waits)[0] == 0
    assert runs(shell) == 1


def test_a_command_that_fails_leaves_its_slot_to_the_next(shell: Shell) -> None:
    assert shell("run", "nightly", "--once-per", "1d", "--", "sh", "-c", "echo run >> runs; exit 3").returncode == 3
    assert shell("run", "nightly", "--once-per", "1d", "--", "sh", "-c", "echo run >> runs").returncode == 0
    assert shell("run", "nightly", "--once-per", "1d", "--", "sh", "-c", "echo run >> runs").returncode == 0
    assert runs(shell) == 2


def test_a_fast_job_keeps_the_name_for_a_while(shell: Shell) -> None:
    assert shell("run", "job", "--no-wait", "--keep-for", "1h", "--", "true").returncode == 0
    assert shell("run", "job", "--no-wait", "--keep-for", "1h", "--", "true").returncode == 75
    assert shell("evict", "job", "--yes").returncode == 0
    assert shell("run", "job", "--no-wait", "--", "true").returncode == 0


def test_wrong_use_is_said_before_anything_runs(shell: Shell) -> None:
    for wrong in (
        ("--once-per", "0"), ("--once-per", "soon"), ("--keep-for", "-1"), ("--once-per", "1d", "--shared"),
        ("--keep-for", "1d", "--limit", "2"), ("--once-per", "1d", "--url", REFUSES),
    ):  # fmt: skip
        assert shell("run", "job", *wrong, "--", "sh", "-c", "echo run >> runs").returncode == 64, wrong
    assert runs(shell) == 0


@pytest.mark.parametrize("kind", ["redis", "etcd"])
def test_a_timeout_holds_also_while_a_silent_store_is_asked_whether_it_is_done(shell: Shell, kind: str) -> None:
    with a_server_that(says_nothing) as port:
        url = f"{kind}://127.0.0.1:{port}"
        # It does not take a whole try.
        done = shell(
            "run", "job", "--once-per", "1d", "--timeout", "0.2", "--url", url, "--", "touch", "ran", call=PATIENT
        )
        assert done.returncode == 69, done.stderr
    assert not (shell.folder / "ran").exists()


def test_a_signal_ends_the_question_whether_it_is_done(shell: Shell) -> None:
    asked = []

    def notes_and_is_silent(connection: socket.socket) -> None:
        asked.append(connection)
        says_nothing(connection)

    with a_server_that(notes_and_is_silent) as port:
        url = f"redis://127.0.0.1:{port}"
        asking = shell.start("run", "job", "--once-per", "1d", "--timeout", "600", "--url", url, "--", "touch", "ran")
        wait_for(lambda: asked, 60, "a question")
        asking.send_signal(signal.SIGTERM)
        assert end(asking)[0] == 128 + signal.SIGTERM
