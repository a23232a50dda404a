"""Every program in examples/ and every Python block in the docs runs, and does what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..servers import redis as redis_servers

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "demo.py")
"""The demo, which takes the longest, is run by what was installed from the wheel: tests/packaging."""
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh.md", *(ROOT / "docs").rglob("*.md")])
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TESTED_ELSEWHERE = {
    "docs/fencing.md",
    "docs/backends/redlock.md",
    "docs/backends/zookeeper.md",
    "docs/backends/etcd.md",
    "docs/backends/postgresql.md",
    "docs/backends/consul.md",
    "docs/backends/mysql.md",
}
"""Pages whose programs need servers of their own; the tests of those rooms run them."""

ROAD = "docs/road.md"
SLOWER = {
    ROAD: {"ttl=0.5)": "ttl=5)", "time.sleep(1.2)": "time.sleep(6)", "lost.wait(2)": "lost.wait(120)"},
    "docs/kit.md": {'lock("import", ttl=1)': 'lock("import", ttl=5)', "time.sleep(2)": "time.sleep(6)"},
}
"""What is short on a page, for its reader, and longer here: a lease that has to stay needs some seconds on a busy machine."""


def run(program: str, folder: Path, environment: dict[str, str] | None = None) -> str:
    """What the program printed; its error when it fails."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder), "LOCKLINE_URL": "", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    assert run(f"import runpy; runpy.run_path({str(example)!r}, run_name='__main__')", tmp_path)


def programs(page: Path) -> str:
    """The blocks of one page belong together: they run in order, in one process."""
    program = "\n".join(PYTHON_BLOCK.findall(page.read_text()))
    for short, longer in SLOWER.get(str(page.relative_to(ROOT)), {}).items():
        assert short in program
        program = program.replace(short, longer)
    return program


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if programs(page) and str(page.relative_to(ROOT)) not in {*TESTED_ELSEWHERE, ROAD}],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_programs_of_the_page_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    program = programs(page)
    if "redis://localhost:6379" in program:
        program = program.replace("redis://localhost:6379", redis_url(request, tmp_path))
    run(program, tmp_path)


def test_the_road_leaves_nothing_behind_and_can_be_gone_twice(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Takes some 25 s: a lease of 5 s has to outlive its ttl, and one has to run out, each of them twice."""
    server = redis_servers.RedisServer(tmp_path / "redis")
    server.start()
    request.addfinalizer(server.stop)
    program = programs(ROOT / ROAD).replace("redis://localhost:6379", server.url)
    for _ in range(2):
        run(program, tmp_path)
        kept = {key: server.command("PTTL", key) for key in server.command("KEYS", "*")}
        # -1 is of a key that stays for ever; -2 of one that has run out since the list was made.
        assert [key for key, left in kept.items() if left == -1 or "stage-1" in key] == []


def redis_url(request: pytest.FixtureRequest, folder: Path) -> str:
    server = redis_servers.RedisServer(folder / "redis")
    server.start()
    request.addfinalizer(server.stop)
    return server.url


def test_every_link_in_the_docs_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert broken == []
