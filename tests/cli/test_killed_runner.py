"""`kill -9` of `lockline run`: its command ends with it, and nobody else begins before it has."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockline.cli.group import PR_SET_CHILD_SUBREAPER
from tests.servers.process import wait_for
from tests.tier import sample

from .conftest import LOCKLINE, Shell, alive, end

WORK = "trap '' TERM; echo $$ > child; while :; do sleep 0.1; done"


def children(pid: int) -> list[int]:
    """The processes that this one started and that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid:
            found.append(int(stat.parent.name))
    return found


def with_closed(shell: Shell, closed: str, *words: str) -> subprocess.Popen[bytes]:
    """`lockline run` as a shell starts it that has closed some of its files: <&- >&- 2>&-."""
    return subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *LOCKLINE, "run", "job", "--ttl", "60", "--", *words],
        env=shell.env,
        cwd=shell.folder,
    )


ALL = "<&- >&- 2>&-"


@pytest.mark.parametrize("closed", sample([ALL], ["<&-", ">&-", "2>&-", ALL]))
def test_a_killed_run_that_began_with_closed_files_takes_its_command_with_it(shell: Shell, closed: str) -> None:
    run = with_closed(shell, closed, "sh", "-c", WORK)
    try:
        child = shell.pid_in("child")
        for number, word in enumerate(("<&-", ">&-", "2>&-")):
            # Nothing of ours may have such a number: what is meant for a person would go there.
            assert word not in closed.split() or os.readlink(f"/proc/{run.pid}/fd/{number}") == os.devnull
        run.kill()
        wait_for(lambda: not alive(child), 60, "the end of the command")
        assert shell("run", "job", "--timeout", "60", "--", "true").returncode == 0
    finally:
        run.kill()
        run.wait()


@pytest.mark.parametrize(
    ("closed", "numbers"), sample([(ALL, "012")], [("<&-", "0"), (">&-", "1"), ("2>&-", "2"), (ALL, "012")])
)
def test_a_closed_file_is_closed_for_the_command_too(shell: Shell, closed: str, numbers: str) -> None:
    # How many of them are closed.
    script = f"import os\nclosed = 0\nfor number in {numbers!r}:\n try: os.fstat(int(number))\n except OSError: closed += 1\nos._exit(5 + closed)"
    run = with_closed(shell, closed, sys.executable, "-S", "-c", script)
    assert run.wait(120) == 5 + len(numbers)


@pytest.fixture
def adopting() -> Iterator[None]:
    """Orphans come to this process. A stopped one without a parent in its session would be continued by the kernel."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def test_nobody_gets_in_before_the_command_of_a_killed_run_has_ended(shell: Shell, adopting: None) -> None:
    run = shell.run(WORK, "--ttl", "60")
    child = shell.pid_in("child")
    (guard,) = set(children(run.pid)) - {child}
    after = shell.run(f"cat /proc/{child}/stat 2> /dev/null | grep -v ') Z'; echo in")
    wait_for(lambda: shell.waiters() == 1, 60, "a waiter")
    # However long it takes until the guard gets its turn on a busy machine:
    os.kill(guard, signal.SIGSTOP)
    try:
        run.kill()
        run.wait()
        assert shell("run", "job", "--no-wait", "--", "true").returncode == 75
        assert alive(child)
        assert after.poll() is None
    finally:
        os.kill(guard, signal.SIGCONT)
    assert end(after)[:2] == (0, "in\n")
    assert not alive(child)
    assert not alive(guard)
    os.waitpid(child, 0)
    os.waitpid(guard, 0)


SLOW = """
import time
from lockline.cli.supervisor import Supervisor
wait = Supervisor.wait
def late(self):
    time.sleep(5)
    return wait(self)
Supervisor.wait = late
"""


def test_a_command_whose_run_is_killed_as_it_begins_ends_too(shell: Shell) -> None:
    # However long a busy machine takes to let the run go on after its command has begun:
    (shell.folder / "sitecustomize.py").write_text(SLOW)
    shell.env["PYTHONPATH"] = os.pathsep.join([str(shell.folder), *sys.path])
    command = "echo $$ > child; kill -9 $PPID; while :; do sleep 0.1; done"
    run = shell.start_anew("run", "job", "--ttl", "60", "--", "sh", "-c", command)
    child = shell.pid_in("child")
    assert run.wait(60) == -signal.SIGKILL
    wait_for(lambda: not alive(child), 60, "the end of the command")
