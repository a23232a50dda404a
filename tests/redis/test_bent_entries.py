"""What others have put among the lines hides no line from an operator: it is left out, and counted."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

import lockline
from lockline import BackendUnavailable
from lockline.cli.app import lockline as command
from lockline.core.shells import engine_of
from lockline.observe.exporter import StoreCollector
from lockline.runtime.blocking import run
from lockline.web.survey import Survey
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


@pytest.fixture
def bent(server: RedisServer, connect: Connect) -> lockline.Client:
    """A client with one lease, on a server where others have written among the lines."""
    client = connect(server.url)
    server.command("HSET", "{ll:foreign}", "state", "open", "last", "monday")
    server.command("HSET", b"{ll:\xff}", "state", "+1", "last", "1")
    server.command("SET", "{ll:text}", "hello")
    server.command("HSET", "{ll:hash}", "field", "value")
    return client


def test_ls_lists_the_others_and_says_how_many_it_left_out(server: RedisServer, bent: lockline.Client) -> None:
    with bent.lock("mine").acquire():
        for options in ((), ("--json",)):
            ran = CliRunner().invoke(command, ["ls", "--url", server.url, *options])
            assert ran.exit_code == 0, ran.output
            assert "mine" in ran.stdout
            assert "left out 1 name that cannot be read, first 'foreign'" in ran.stderr
        assert [row["name"] for row in json.loads(ran.stdout)] == ["mine"]
    ran = CliRunner().invoke(command, ["ls", "--url", server.url])
    assert ran.exit_code == 0
    assert "nothing is held" not in ran.stderr


def test_the_exporter_and_the_page_show_the_others(bent: lockline.Client) -> None:
    with bent.lock("mine").acquire():
        figures = {family.name: family.samples[0].value for family in StoreCollector(bent).collect()}
        assert figures["lockline_store_up"] == 1
        assert figures["lockline_store_holders"] == 1
        assert figures["lockline_store_lines_unseen"] == 1
        seen = run(Survey(engine_of(bent)).look())
        assert list(seen.lines) == ["mine"]
        assert seen.unreadable == 1


def test_a_record_that_is_none_hides_no_other_and_one_with_a_bent_owner_holds_still(
    server: RedisServer, bent: lockline.Client
) -> None:
    with bent.semaphore("two", limit=2).acquire() as lease:
        record = server.command("HGET", "{ll:two}", f"+{lease._live.claim.id}")
        server.command("HSET", "{ll:two}", "~stranger-1", "no record")
        assert [claim.owner for claim in bent.inspect("two").claims] == [bent.owner]
        numbers = record.split(" ")[:7]
        server.command("HSET", "{ll:two}", f"+{lease._live.claim.id}", " ".join([*numbers, "what is this"]))
        (holder,) = bent.inspect("two").holders
        assert (holder.owner, holder.token) == ("?", lease.token)


def test_a_look_at_the_one_that_cannot_be_read_says_why(bent: lockline.Client) -> None:
    with pytest.raises(BackendUnavailable, match="refused"):
        bent.inspect("foreign")
