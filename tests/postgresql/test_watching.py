"""One who stands in no line is told by NOTIFY who leads, whatever becomes of the session that this comes by, and nobody else pays for it."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator

import pytest

import lockline
from lockline.backends.postgresql import tables
from lockline.core import watching
from tests.contract.scene import Scene
from tests.contract.watcher import Watcher, sees_by_looking
from tests.contract.worlds import Place
from tests.servers.pgbouncer import PgBouncer
from tests.servers.process import wait_for

from .conftest import Database
from .test_pushes import notified, notify

pytestmark = pytest.mark.server

LISTENERS = "FROM pg_stat_activity WHERE application_name = 'lockline' AND (query LIKE 'LISTEN lockline_%' OR query = 'SELECT 1')"
_numbers = itertools.count(1)


def watchers(database: Database, line: str) -> int:
    """How many wait to be told of that name, which its prefix stands before."""
    ((count,),) = database.ask(
        "SELECT count(*) FROM lockline.claim WHERE name = decode('ff', 'hex') || %s", line.encode()
    )
    return int(count)


def boss(scene: Scene) -> str:
    """The name there."""
    return f"{scene.place.partition('prefix=')[2]}:boss"


def a_place(database: Database) -> Place:
    return Place(f"{database.url}?prefix=w{next(_numbers)}")


@pytest.fixture(params=["sync", "asyncio"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scene(shared: Database, flavour: str) -> Iterator[Scene]:
    with Scene(a_place(shared), flavour) as scene:
        yield scene


@pytest.fixture
def restarted(spare: Database, flavour: str) -> Iterator[Scene]:
    """Where the test may stop the server."""
    with Scene(a_place(spare), flavour) as scene:
        yield scene


def test_a_session_that_is_cut_off_is_made_anew_and_told_as_before(
    scene: Scene, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "NET", 3600)
    alice, bob = scene.party(), scene.party()
    watcher = Watcher(bob, every=0.05)
    assert watcher.next().result() is None
    told = watcher.next()
    wait_for(lambda: shared.ask(f"SELECT pg_terminate_backend(pid) {LISTENERS}"), 60, "one who listens")
    lease = alice.lock("boss", ttl=60).acquire()
    assert told.result().token == lease.token
    # Not only looked at once more: the next change is told on a new one.
    told = watcher.next()
    wait_for(lambda: shared.ask(f"SELECT 1 {LISTENERS}"), 60, "one who listens again")
    lease.release()
    assert told.result() is None


def test_a_server_that_was_killed_and_came_back_tells_as_before(restarted: Scene, spare: Database) -> None:
    alice, bob = restarted.party(), restarted.party()
    watcher = Watcher(bob, every=0.05)
    lease = alice.lock("boss", ttl=60).acquire()
    assert watcher.next().result().token == lease.token
    told = watcher.next()
    wait_for(lambda: watchers(spare, boss(restarted)), 60, "one who watches")
    spare.server.kill()
    spare.server.start()
    lease.release()
    assert told.result() is None


def test_a_watch_that_ended_leaves_nothing_after_the_next_change(scene: Scene, shared: Database) -> None:
    alice, bob = scene.party(), scene.party()
    watcher = Watcher(bob)
    assert watcher.next().result() is None
    assert watchers(shared, boss(scene)) == 1
    watcher.stop()
    lease = alice.lock("boss", ttl=60).acquire()
    # With the first change; without one it is swept when it has expired, as every claim.
    assert watchers(shared, boss(scene)) == 0
    lease.release()


def test_a_name_that_changes_hands_all_the_time_costs_one_notify_for_each_look(shared: Database) -> None:
    with lockline.connect(shared.url) as client, lockline.connect(shared.url) as other:
        changes = other.watch("busy")
        assert next(changes) is None

        def grants() -> None:
            for _ in range(300):
                client.lock("busy").acquire().release()

        # It has asked once, and does not look.
        assert watchers(shared, "lockline:busy") == 1
        # One of them may begin a page of the queue, and no more than one.
        assert notified(shared, grants) < notified(shared, lambda: notify(shared, 300))
        assert watchers(shared, "lockline:busy") == 0


def test_a_child_that_goes_on_watching_is_told_beside_its_parent(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "NET", 3600)
    with lockline.connect(shared.url) as client, lockline.connect(shared.url) as other:
        changes = client.watch("forked")
        assert next(changes) is None
        child = os.fork()
        if not child:
            # Nothing of the test's own goes on here.
            try:
                threading.Thread(target=next, args=(changes,), daemon=True).start()
                wait_for(lambda: watchers(shared, "lockline:forked") == 2, 60, "both")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with other.lock("forked") as lease:
            leader = next(changes)
            assert leader is not None
            assert leader.token == lease.token


def test_nobody_sees_one_who_watches_in_a_line(shared: Database) -> None:
    with lockline.connect(shared.url) as client:
        changes = client.watch("seen")
        assert next(changes) is None
        assert watchers(shared, "lockline:seen") == 1
        assert "seen" not in client.list()
        assert client.inspect("seen").claims == ()
        assert client.evict("seen") == 0
        assert not client.lock("seen").locked()


def test_behind_a_pooler_it_is_looked_at(pooler: PgBouncer) -> None:
    with lockline.connect(pooler.url) as client, lockline.connect(pooler.url) as other:
        sees_by_looking(client, other, "pooled")
        assert not other.guarantees.push


def test_tables_of_an_older_release_are_looked_at(shared: Database) -> None:
    url = f"{shared.url}?schema=older"
    tables(url).make()
    shared.ask("DROP FUNCTION older.watch_v1")
    with lockline.connect(url) as client, lockline.connect(url) as other:
        sees_by_looking(client, other, "old")
    shared.ask("DROP SCHEMA older CASCADE")
