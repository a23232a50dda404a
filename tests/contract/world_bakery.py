"""`bakery:` in the contract suite: a backend that a package of its own brings, installed as anybody would."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ..servers.process import missing
from .worlds import World, joins

SOURCE = Path(__file__).parents[1] / "backends" / "bakery"


@joins
class BakeryWorld(World):
    """Each test has a book of its own."""

    name = "bakery"
    marks = (pytest.mark.slow,)
    runtime_clock = True
    spans_processes = False
    packaged_apart = True
    exclusion = "process"
    token_survives: ClassVar = frozenset({"release", "expiry"})
    notes_grants = "never"
    watches = hands_on = hands_over = keeps_values = keeps_for = False

    def open(self) -> None:
        if importlib.util.find_spec("hatchling") is None or importlib.util.find_spec("pip") is None:
            missing("pip and hatchling, which install a package from outside, are not there")
        self._patch = pytest.MonkeyPatch()
        # A copy, because a build leaves things beside its source.
        source, site = self.folder / "source", self.folder / "site"
        shutil.copytree(SOURCE, source)
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation",
             "--disable-pip-version-check", "--root-user-action=ignore", "--target", str(site), str(source)],
            check=True,
        )  # fmt: skip
        # Here, and in the processes that a story starts.
        self._patch.syspath_prepend(str(site))
        self._patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)

    def close(self) -> None:
        self._patch.undo()

    def place(self) -> str:
        return f"bakery:{self.unique()}"

    def debris(self, place: str) -> list[str]:
        books: Any = importlib.import_module("lockline_bakery").BakeryBackend.books
        return sorted(name for (_, url), book in books.items() if url == place for name in book.last().lines)
