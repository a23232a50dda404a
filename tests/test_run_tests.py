"""`make test` says how far it is while it runs, and ends with one table."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", ROOT / "scripts" / "run_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tests", module)
    spec.loader.exec_module(module)
    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(module, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run_tests.py"])
    # What the groups here say of themselves needs none, and half of the time of each would be for them.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return module


def give(run_tests: ModuleType, tmp_path: Path, **stories: str) -> None:
    """One group for each story."""
    for name, story in stories.items():
        (tmp_path / "tests" / f"test_{name}.py").write_text(story)
    run_tests.GROUPS[:] = [run_tests.Group(name, (f"tests/test_{name}.py",)) for name in stories]


def test_letters_are_counted_and_nothing_else(run_tests: ModuleType) -> None:
    output = "...s..F...x [ 40%]\n.E.\n=== FAILURES ===\n....\nFAILED tests/x.py\n"
    assert run_tests.so_far(output) == (14, 2)
    assert run_tests.so_far("") == (0, 0)
    assert run_tests.so_far("collected nothing\n..") == (2, 0)


SLOW = """
import os, time, pytest
@pytest.mark.parametrize("number", range(4))
def test_it(number):
    while number == 3 and not os.path.exists(os.environ["PROGRESS_WAS_SHOWN"]):
        time.sleep(0.02)
    if number == 2: pytest.skip("not this one")
"""


def test_a_green_run_shows_its_progress_and_a_table(
    run_tests: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    give(run_tests, tmp_path, slow=SLOW, quick="def test_it(): pass\n")
    monkeypatch.setattr(run_tests, "PROGRESS_EVERY_S", 0.05)
    shown, counts = tmp_path / "shown", run_tests.so_far
    monkeypatch.setenv("PROGRESS_WAS_SHOWN", str(shown))
    seen: list[int] = []

    def so_far(output: str) -> tuple[int, int]:
        """The last test goes on when three are counted for the second time: the first time is on the screen then."""
        found: tuple[int, int] = counts(output)
        if found[0] == 3 and 3 in seen:
            shown.touch()
        seen.append(found[0])
        return found

    monkeypatch.setattr(run_tests, "so_far", so_far)
    assert run_tests.main() == 0
    said = capfd.readouterr().out
    assert re.search(r"^ +\d+ s: .*slow 3", said, re.MULTILINE), said
    assert re.search(r"^ok +quick +1 tests +\d+ s; \d groups left$", said, re.MULTILINE), said
    assert re.search(r"^slow +3 +0 +1 +\d+$", said, re.MULTILINE), said
    assert said.endswith("\n4 passed, 0 failed, 1 skipped\n")


def test_a_failing_test_is_shown_with_its_output_and_an_empty_group_fails_and_a_missing_server_is_named(
    run_tests: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-ra")
    give(
        run_tests,
        tmp_path,
        good="def test_it(): pass\n",
        bad="def test_it():\n    print('a clue')\n    assert 1 == 2\n",
        empty="",
        one="from tests.servers.process import missing\ndef test_it(): missing('no consul here')\n",
    )
    assert run_tests.main() == 1
    said = capfd.readouterr().out
    assert said.index("== bad: exit code 1") < said.index("a clue") < said.index("passed  failed")
    assert "FAILED empty" in said
    assert re.search(r"^ok +one ", said, re.MULTILINE), said
    assert "\nNOT TESTED, because it is missing here: no consul here\n" in said
    assert said.endswith("\n1 passed, 2 failed, 1 skipped\n")


def test_a_folder_of_tests_that_no_group_runs_is_refused(run_tests: ModuleType, tmp_path: Path) -> None:
    give(run_tests, tmp_path, one="")
    (tmp_path / "tests" / "test_other.py").touch()
    with pytest.raises(SystemExit, match=r"no group runs tests/test_other\.py"):
        run_tests.main()
