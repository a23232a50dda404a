"""`make docs` builds the site strictly: no link and no anchor that leads nowhere, nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    fetched = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="((?:https?:)?//[^"]+)"')
    foreign = {
        (page.name, address)
        for page in pages
        for address in fetched.findall(page.read_text())
        if 'rel="canonical"' not in page.read_text()
    }
    assert foreign == set()
    api = (tmp_path / "site" / "api" / "index.html").read_text()
    assert "The fencing token: greater than that of every earlier grant on this name" in api


def test_every_page_is_in_the_menu() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"[\w/-]+\.md", text))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert there - named == set()


def test_the_compose_files_can_be_read() -> None:
    redlock = yaml.safe_load((ROOT / "docs" / "compose" / "redlock.yml").read_text())
    assert len(redlock["services"]) == 5
    for service in redlock["services"].values():
        assert "always" in service["command"], "a majority that forgets is none"
        assert service["ports"][0].startswith("127.0.0.1:")
    stores = yaml.safe_load((ROOT / "docs" / "compose" / "stores.yml").read_text())
    assert {"redis", "postgresql", "mariadb", "etcd", "zookeeper", "consul"} == set(stores["services"])
