"""The programs of docs/backends/mysql.md run, and the rights that it names are those that are tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockline.backends.mysql.schema import RIGHTS
from tests.docs.test_examples import programs, run

from .conftest import Database

PAGE = Path(__file__).parents[2] / "docs" / "backends" / "mysql.md"


@pytest.mark.server
def test_the_programs_of_the_page_run(shared: Database, tmp_path: Path) -> None:
    program = programs(PAGE)
    assert program
    program = program.replace("mysql://localhost/app", shared.url)
    login = f'host="127.0.0.1", port={shared.server.port}, user="root", database="lockline"'
    program = program.replace('host="localhost", user="app", database="app"', login)
    assert "server" in run(program, tmp_path)


def test_the_page_names_the_rights_that_are_tested() -> None:
    assert RIGHTS.format(database="app", user="worker") in PAGE.read_text()
