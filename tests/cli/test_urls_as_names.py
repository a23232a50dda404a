"""A URL in the place of a name: without a word about it another store would be asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from lockline.cli.app import lockline


@pytest.mark.parametrize(
    "words", [["ls"], ["show"], ["evict"], ["run", "--no-wait"], ["lead"], ["once", "--fresh", "1s"]], ids=" ".join
)
@pytest.mark.parametrize("url", ["redis://:secret@host", "etcd://a,b", "local:///tmp/x.db"])
def test_a_url_is_refused_where_a_name_is_wanted(words: list[str], url: str) -> None:
    command = ["--", "true"] if words[0] in ("run", "lead", "once") else []
    ran = CliRunner().invoke(lockline, [*words, url, *command], standalone_mode=False)
    assert "is a URL" in str(ran.exception)
    assert "--url" in str(ran.exception)
    assert "secret" not in str(ran.exception)


def test_a_url_is_refused_as_the_name_of_a_pool() -> None:
    ran = CliRunner().invoke(lockline, ["run", "--pool", "redis://host=0-3", "--", "true"], standalone_mode=False)
    assert "is a URL" in str(ran.exception)


def test_a_name_with_a_colon_is_a_name() -> None:
    ran = CliRunner().invoke(lockline, ["ls", "redis:cache", "--url", "memory:names"])
    assert ran.exit_code == 0
