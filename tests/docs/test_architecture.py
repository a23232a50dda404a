"""The ways on the page are the ways of the code, and they are short."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

import lockline

from ..servers.process import wait_for
from ..servers.redis import a_redis

T = TypeVar("T")
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
SOURCE = Path(lockline.__file__).parent


def documented(way: str) -> list[str]:
    """The files that the page names first in each step of this way."""
    section = PAGE.partition(f"### {way}\n")[2].partition("\n#")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)


def crossed(work: Callable[[], T]) -> tuple[set[str], T]:
    """The files of the project that this thread enters in this work, and what that gives."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            files.add(str(path.relative_to(SOURCE)))

    sys.setprofile(note)
    try:
        answer = work()
    finally:
        sys.setprofile(None)
    return files, answer


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE)) - {"tests/contract"}
    assert len(named) > 20
    assert [name for name in sorted(named) if not (SOURCE / name).is_file() and name != "target.py"] == []


@pytest.mark.server
def test_an_acquire_goes_the_way_that_the_page_shows() -> None:
    free_way, contended_way = documented("A free acquire"), documented("A contended acquire")
    assert (len(free_way), len(contended_way)) == (8, 11)
    with a_redis() as server, lockline.connect(server.url) as client, lockline.connect(server.url) as other:

        def extra(name: str, way: list[str], *, contended: bool) -> set[str]:
            """What one acquire crosses beyond the way."""
            if contended:
                held = other.lock(name).acquire()
                threading.Thread(target=release_when_awaited, args=(held,)).start()
            files, lease = crossed(client.lock(name).acquire)
            lease.release()
            return files - set(way)

        def release_when_awaited(held: lockline.Lease) -> None:
            wait_for(lambda: other.inspect(held.name).waiters, 120, "a waiter")
            held.release()

        # The first few find nothing prepared, and now and then one has more to do: a quiet line to ask, garbage to collect.
        assert any(extra("free", free_way, contended=False) == set() for _ in range(100))
        assert any(extra("contended", contended_way, contended=True) == set() for _ in range(100))
