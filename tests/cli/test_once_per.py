"""`lockline run --once-per` and `--keep-for`: a job that every machine starts, and that runs once."""

from __future__ import annotations

from tests.servers.process import free_port, wait_for

from .conftest import Shell, end

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
    first = shell.run("echo $$ > runs-now; exec sleep 60", "--once-per", "1d")
    shell.pid_in("runs-now")
    assert shell("run", "job", "--once-per", "1d", "--", "sh", "-c", "echo run >> runs").returncode == 75
    waits = shell.run("echo run >> runs", "--once-per", "1d", "--timeout", "30")
    wait_for(lambda: shell.waiters() == 1, 20, "one who waits")
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
