"""`lockline fence enter ... -- COMMAND`: nobody else enters before the last process of the command has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockline import BackendUnavailable
from lockline.cli.fence import door
from lockline.fence import Offer

from ..cli.conftest import MAIN, alive
from ..cli.forked import Forked, Forker
from ..cli.test_killed_runner import adopting
from ..servers.process import wait_for

__all__ = ["adopting"]


class Inside:
    """A command behind a fence, in a folder of its own."""

    def __init__(self, forker: Forker, marks: str, folder: Path) -> None:
        self._forker = forker
        self.marks = marks
        self.folder = folder
        self.data = folder / "data"
        self.data.touch()
        self.pid = folder / "pid"
        self._started: list[Forked] = []

    def start(self, token: int, script: str, first: str = ":") -> Forked:
        """It says who it is, and is inside by then."""
        command = f"{first}; echo $$ > pid.new; mv pid.new pid; {script}"
        argv = ["fence", "enter", self.marks, "r", str(token), "--", "sh", "-c", command]
        with open(os.devnull, "r+") as nothing:
            files = (nothing.fileno(), nothing.fileno(), nothing.fileno())
            process = self._forker.start(argv, os.environ, self.folder, call=MAIN, files=files)
        self._started.append(process)
        return process

    def begun(self) -> int:
        wait_for(self.pid.exists, 120)
        return int(self.pid.read_text())

    def entered(self, token: int) -> str:
        """Enter as a newer holder; the data as that one finds them."""
        marks = door(self.marks)
        leave = marks.admit("r", Offer("r", token, ""), writes=False, patience=120)
        found = self.data.read_text()
        leave()
        if hasattr(marks, "close"):
            marks.close()
        return found

    def clean(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        if self.pid.exists() and alive(int(self.pid.read_text())):
            try:
                os.kill(int(self.pid.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture(params=["folder", "sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def inside(request: pytest.FixtureRequest, tmp_path: Path, forker: Forker) -> Iterator[Inside]:
    if request.param == "postgresql":
        marks = request.getfixturevalue("postgres").url
        import psycopg

        with psycopg.connect(marks) as connection:
            connection.execute("DROP TABLE IF EXISTS lockline_fence")
    else:
        (tmp_path / "marks").mkdir()
        marks = str(tmp_path / "marks" / ("" if request.param == "folder" else "marks.db"))
    found = Inside(forker, marks, tmp_path)
    yield found
    found.clean()


def test_a_fence_that_is_told_to_end_ends_after_its_command(inside: Inside) -> None:
    last = "trap 'sleep 0.3; echo five >> data; exit 3' TERM"
    process = inside.start(5, "while :; do sleep 0.1; done", first=last)
    inside.begun()
    process.send_signal(signal.SIGTERM)
    assert inside.entered(6) == "five\n"
    assert process.wait(60) == 3


def test_a_fence_that_is_killed_takes_its_command_with_it(inside: Inside) -> None:
    process = inside.start(5, "sleep 600; echo five >> data")
    command = inside.begun()
    process.kill()
    assert inside.entered(6) == ""
    wait_for(lambda: not alive(command), 60, "the end of the command before it writes")
    assert inside.data.read_text() == ""


def test_a_folder_of_marks_stays_shut_until_the_command_of_a_killed_fence_has_ended(
    tmp_path: Path, adopting: None, forker: Forker
) -> None:
    (tmp_path / "marks").mkdir()
    inside = Inside(forker, str(tmp_path / "marks"), tmp_path)
    guard = 0
    try:
        process = inside.start(5, "while :; do sleep 0.1; done")
        command = inside.begun()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (guard,) = (int(pid) for pid in children if int(pid) != command)
        os.kill(guard, signal.SIGSTOP)  # a busy machine: it gets its turn late
        process.kill()
        process.wait(60)
        with pytest.raises(BackendUnavailable, match="stayed inside"):
            door(inside.marks).admit("r", Offer("r", 6, ""), writes=False, patience=0.2)
        assert alive(command)
        os.kill(guard, signal.SIGCONT)
        inside.entered(6)
        assert not alive(command)
        os.waitpid(command, 0)
        os.waitpid(guard, 0)
        guard = 0
    finally:
        if guard and alive(guard):
            os.kill(guard, signal.SIGCONT)
        inside.clean()


def test_nobody_enters_before_the_last_grandchild_has_ended(inside: Inside) -> None:
    process = inside.start(5, "(sleep 0.5; echo five >> data) & exit 4")
    inside.begun()
    assert inside.entered(6) == "five\n"
    assert process.wait(60) == 4


def test_a_fence_that_waits_for_another_can_be_told_to_go(inside: Inside) -> None:
    marks: Any = door(inside.marks)
    leave: Callable[[], Any] = marks.admit("r", Offer("r", 5, ""), writes=False, patience=5)
    try:
        process = inside.start(6, "echo six >> data")
        wait_for(lambda: _catches(process.pid, signal.SIGTERM), 60, "a fence that minds its signals")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        leave()
        if hasattr(marks, "close"):
            marks.close()
    assert inside.entered(7) == ""


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (number - 1) & 1)
