"""One who stands in no line is told by a blocking query who leads, whatever becomes of the connection that this comes by."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import lockline
from lockline.backends.consul import changes
from lockline.core import watching
from lockline.core.shells import engine_of

from ..contract.faults import Faults
from ..contract.scene import Scene
from ..contract.watcher import Watcher, sees_by_looking
from ..contract.worlds import Place
from ..servers.consul import ConsulCluster
from ..servers.process import wait_for
from ..servers.proxy import Proxy
from .conftest import Clients

pytestmark = pytest.mark.server


@pytest.fixture(params=["sync", "asyncio"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def near(url: str, flavour: str) -> Iterator[Scene]:
    with Scene(Place(url), flavour) as scene:
        yield scene


@pytest.fixture
def far(through: str, flavour: str) -> Iterator[Scene]:
    """The same, by way of a proxy."""
    with Scene(Place(through), flavour) as scene:
        yield scene


def test_after_a_cut_it_is_told_as_before(
    near: Scene, far: Scene, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "NET", 3600)
    alice, bob = near.party(), far.party()
    watcher = Watcher(bob, every=0.05)
    assert watcher.next().result() is None
    for _ in range(2):
        told = watcher.next()
        proxy.cut()
        lease = alice.lock("boss", ttl=60).acquire()
        assert told.result().token == lease.token
        told = watcher.next()
        lease.release()
        assert told.result() is None


def test_servers_that_were_killed_and_came_back_tell_as_before(spare: ConsulCluster) -> None:
    server = spare.servers[0].server
    assert server is not None
    scenes = [Scene(Place(f"{spare.url}/{flavour}"), flavour) for flavour in ("sync", "asyncio")]
    try:
        watchers = [Watcher(scene.party(), every=0.05) for scene in scenes]
        assert [watcher.next().result() for watcher in watchers] == [None, None]
        told = [watcher.next() for watcher in watchers]
        server.kill()
        server.start()
        leases = [scene.party().lock("boss", ttl=60).acquire() for scene in scenes]
        assert [pending.result().token for pending in told] == [lease.token for lease in leases]
        told = [watcher.next() for watcher in watchers]
        for lease in leases:
            lease.release()
        assert [pending.result() for pending in told] == [None, None]
    finally:
        for scene in scenes:
            scene.finish()


def test_renewals_tell_nobody(near: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "NET", 3600)
    alice, bob = near.party(), near.party()
    lease = alice.lock("boss", ttl=60).acquire()
    watcher, looks = Watcher(bob), Faults(bob)
    assert watcher.next().result().token == lease.token
    told = watcher.next()
    query = engine_of(bob.client.real).backend._changes._lines["boss"]._query  # type: ignore[attr-defined]
    for _ in range(8):
        before = query._index
        lease.extend(60)
        wait_for(lambda before=before: query._index > before, 60, "an answer")  # type: ignore[misc]
    lease.release()
    assert told.result() is None
    # For the first answer, when it began to wait, and for the one change; and one more that may have come with it.
    assert looks.count("look") <= 4


def listeners() -> int:
    return sum(thread.name == "lockline-consul-watcher" for thread in threading.enumerate())


def test_a_line_is_asked_for_once_and_only_while_somebody_watches(url: str, client_of: Clients) -> None:
    client, before = client_of(url), listeners()
    first, second, other = client.watch("boss"), client.watch("boss"), client.watch("other")
    assert [next(first), next(second), next(other)] == [None, None, None]
    assert listeners() == before + 2
    first.close()  # type: ignore[attr-defined]
    assert listeners() == before + 2
    second.close()  # type: ignore[attr-defined]
    wait_for(lambda: listeners() == before + 1, 60, "the end of one")
    client.close()
    assert listeners() == before
    with pytest.raises(lockline.ClientClosed):
        next(other)


def test_of_very_many_lines_the_last_ones_are_looked_at(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MOST_LINES", 1)
    client, other, before = client_of(url), client_of(url), listeners()
    first = other.watch("first")
    assert next(first) is None
    sees_by_looking(client, other, "second")
    assert listeners() == before + 1
