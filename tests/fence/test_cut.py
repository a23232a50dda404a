"""An exception may strike between any two instructions of a fence: it is never left shut behind the one who was cut."""

from __future__ import annotations

import gc
import io
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockline.fence import FileFence, FileMarks, HttpFence, SqlMarks
from lockline.fence.rule import Offer

from ..cutting import Cut, CutAt, Overtime, SoftLimit
from ..tier import SEED, sample

PATIENCE = 0.5
"""Nobody is inside; so any wait at all is one for a door that stayed shut."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def some_of(instructions: int) -> Iterator[int]:
    """The instructions at which a work is cut: each in the full run, elsewhere one of up to six."""
    dice = random.Random(SEED)
    nth = 0
    while (nth := nth + sample(dice.randint(1, 6), 1)) <= instructions:
        yield nth


def cut_everywhere(work: Callable[[], Any], enter: Callable[[], Any]) -> None:
    whole = CutAt(-1, inside="/lockline/fence/")
    whole(work)
    assert whole.seen > 100
    with warnings.catch_warnings():
        # What closes a file that nobody has any more says so.
        warnings.simplefilter("ignore", ResourceWarning)
        for nth in some_of(whole.seen):
            cut = CutAt(nth, inside="/lockline/fence/")
            try:
                cut(work)
            except Cut:
                pass
            try:
                enter()
            except Exception as problem:
                problem.add_note(f"after a cut at {cut.where}")
                raise


@pytest.mark.parametrize("act", ["replace", "append"])
def test_a_file_can_be_entered_wherever_a_writer_was_cut(tmp_path: Path, act: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"before")
    fence = FileFence(patience=PATIENCE)
    cut_everywhere(lambda: getattr(fence, act)(path, 5, b"x"), lambda: fence.enter(path, 5))


@pytest.mark.parametrize("quick", [False, True])
def test_a_door_can_be_entered_wherever_an_entrant_was_cut(tmp_path: Path, quick: bool) -> None:
    marks = FileMarks(tmp_path)
    offer = Offer("r", 5, "")

    def enter() -> None:
        marks.admit("r", offer, writes=True, patience=PATIENCE)()

    def enter_at_once() -> None:
        leave = marks.admit_at_once("r", offer, writes=True)
        assert leave is not None
        leave()

    enter()
    cut_everywhere(enter_at_once if quick else enter, enter)


def test_a_resource_can_be_entered_wherever_a_request_of_wsgi_was_cut(tmp_path: Path) -> None:
    def inner(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        start("200 OK", [])
        return [b"ok"]

    app = HttpFence(FileMarks(tmp_path), patience=PATIENCE).wsgi(inner)

    def ask() -> str:
        told: list[str] = []
        environ = {
            "REQUEST_METHOD": "PUT", "PATH_INFO": "/x", "HTTP_FENCING_TOKEN": "5",
            "CONTENT_LENGTH": "1", "wsgi.input": io.BytesIO(b"x"),
        }  # fmt: skip
        b"".join(app(environ, lambda status, headers: told.append(status)))
        return told[0]

    def enter() -> None:
        # In a thread of its own: the door may hang, too.
        assert CutAt(-1).elsewhere(ask, seconds=120).startswith("200")

    cut_everywhere(ask, enter)


@pytest.mark.parametrize("limit", [SoftLimit, Overtime])
@pytest.mark.parametrize("act", ["admit", "look"])
def test_a_limit_that_is_an_ordinary_error_is_not_taken_for_one_of_the_database(
    tmp_path: Path, act: str, limit: type[Exception], request: pytest.FixtureRequest
) -> None:
    """It would be lost: asked again on another connection, or told as a database that is away."""
    marks = SqlMarks(tmp_path / "marks.db")
    request.addfinalizer(marks.close)

    def admit() -> None:
        marks.admit("r", Offer("r", 5, ""), writes=True, patience=PATIENCE)()

    work = admit if act == "admit" else lambda: marks.look("r", "r")
    admit()
    whole = CutAt(-1, inside="/lockline/fence/")
    whole(work)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for nth in some_of(whole.seen):
            cut = CutAt(nth, inside="/lockline/fence/", raising=limit)
            try:
                cut(work)
            except limit:
                pass
            else:
                pytest.fail(f"lost at {cut.where}")
            # In the caller's hands, who dropped it: Python leaves a connection of SQLite to its garbage collector.
            gc.collect()
            admit()
