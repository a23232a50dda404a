"""`make test` tells how far it is while it runs, and counts everything at the end."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run_tests() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", ROOT / "scripts" / "run_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_letters_are_counted_and_nothing_else(run_tests: ModuleType) -> None:
    output = "...s..F...x [ 40%]\n.E.\n=== FAILURES ===\n....\nFAILED tests/x.py\n"
    assert run_tests.so_far(output) == (14, 2)
    assert run_tests.so_far("") == (0, 0)
    assert run_tests.so_far("collected nothing\n..") == (2, 0)


STORY = """
import time, pytest
@pytest.mark.parametrize("number", range(4))
def test_it(number):
    time.sleep(0.2)
    if number == 2: pytest.skip("not this one")
"""


def test_a_line_of_progress_comes_while_a_group_runs(
    run_tests: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    story = tmp_path / "test_story.py"
    story.write_text(STORY)
    monkeypatch.setattr(run_tests, "check_that_nothing_is_left_out", lambda: None)
    monkeypatch.setattr(run_tests, "GROUPS", {"one": ([], [str(story)])})
    monkeypatch.setattr(run_tests, "ALL_GROUPS", {"one": ([], [str(story)])})
    monkeypatch.setattr(run_tests, "CROWDS", [str(story)])
    monkeypatch.setattr(run_tests, "FULL", False)
    monkeypatch.setattr(run_tests, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "NEWS_EVERY", 0.05)
    monkeypatch.setattr(sys, "argv", ["run_tests.py", "-p", "no:randomly"])
    run_tests.main()
    said = capfd.readouterr().out
    assert "crowds: begins\n" in said
    assert re.search(r"^crowds: [1-4] tests, 0 failed, \d+ s$", said, re.MULTILINE), said
    assert said.endswith("\n6 passed, 0 failed, 2 skipped\n")
