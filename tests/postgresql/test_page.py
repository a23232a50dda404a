"""The programs on the page of PostgreSQL run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_examples import ROOT, programs, run

from .conftest import Database

pytestmark = pytest.mark.server


def test_the_programs_of_the_page_run(shared: Database, tmp_path: Path) -> None:
    page = ROOT / "docs" / "backends" / "postgresql.md"
    run(programs(page).replace("postgresql://localhost/app", shared.url), tmp_path)


def test_the_page_has_the_rights_that_are_tested() -> None:
    from lockline.backends.postgresql.schema import RIGHTS

    text = (ROOT / "docs" / "backends" / "postgresql.md").read_text()
    assert RIGHTS.format(schema="lockline", role="worker").strip() in text
