"""The house keeps its own rules: what CONTRIBUTING.md says of files, rooms and names, read from the source."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src/lockline"
LONGEST: Final = 400
WORLDS: Final = frozenset(
    {"asyncio", "threading", "_thread", "socket", "select", "selectors", "time", "signal", "subprocess"}
)
"""What the core reaches only through its runtime."""
MIRRORS: Final = frozenset(
    {"sync.py", "aio.py", "kit/sync.py", "kit/aio.py", "drop_in/__init__.py", "core/events.py", "fence/http/fence.py"}
)
"""Where names are those that users see: the same in both shells, and of an event what is told."""
OWN_WORDS: Final = ("lab/", "web/")
"""The locks of the literature and their judge, and the page, have words of their own beside the house's."""


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), path.read_text()


def test_no_file_is_longer_than_one_idea() -> None:
    assert [name for name, text in modules() if len(text.splitlines()) > LONGEST] == []


def test_the_core_has_no_socket_thread_loop_or_wall_clock() -> None:
    reached = []
    for name, text in modules():
        if not name.startswith("core/"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                packages = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                packages = [node.module or ""]
            else:
                continue
            reached += [(name, package) for package in packages if package.partition(".")[0] in WORLDS]
    assert reached == []


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for name, text in modules():
        if name in MIRRORS or name.startswith(OWN_WORDS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_every_mutant_still_fits_the_source() -> None:
    """Else `scripts/mutants.py` would no longer try it: whoever changes a line changes its mutant too."""
    mutants = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["mutant"]
    assert len({mutant["name"] for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        assert (SOURCE / mutant["file"]).read_text().count(mutant["old"]) == 1, mutant["name"]
