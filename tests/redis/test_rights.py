"""What one user may not do on the server hurts no other, and the rule that the docs give is all that anybody needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import lockline
from lockline import BackendUnavailable
from lockline.backends.redis.doctor import RULE
from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.servers.redis import RedisServer, a_redis

pytestmark = pytest.mark.server

AddUser = Callable[..., Place]


@pytest.fixture
def add_user(server: RedisServer) -> Iterator[AddUser]:
    """Adds a user who may do what these rules say; how it gets to the server."""
    names: list[str] = []

    def add(*rules: str) -> Place:
        names.append(f"user{len(names)}")
        server.command("ACL", "SETUSER", names[-1], "reset", "on", ">p", *rules)
        return Place(f"redis://{names[-1]}:p@127.0.0.1:{server.port}")

    yield add
    for name in names:
        server.command("ACL", "DELUSER", name)


@pytest.mark.parametrize("waiters", [1, 3])
def test_a_holder_who_may_tell_nobody_spoils_no_line(
    server: RedisServer, flavour: str, add_user: AddUser, waiters: int
) -> None:
    """Such a user takes a free lock and lets it go; whoever waits is not told, and finds its turn by itself, in its place."""
    mute = add_user("+@all", "~*", "resetchannels")
    with Scene(Place(server.url), flavour) as scene, Scene(mute, flavour) as elsewhere:
        held = elsewhere.party().lock("x", ttl=60).acquire()
        waiting = []
        for number in range(waiters):
            waiting.append(scene.party().lock("x", ttl=5).acquire.start(timeout=60))
            line = scene.wait_for_line("x", holders=1, waiters=number + 1)
        held.release()
        for one, standing in zip(waiting, line.waiters, strict=True):
            lease = one.result(60)
            assert lease.token == standing.token, "it has kept its place"
            lease.release()
        scene.wait_for_line("x", holders=0, waiters=0)


def test_a_permit_goes_to_the_next_although_nobody_may_be_told(
    server: RedisServer, flavour: str, add_user: AddUser
) -> None:
    mute = add_user("+@all", "~*", "&*", "-publish")
    with Scene(Place(server.url), flavour) as scene, Scene(mute, flavour) as elsewhere:
        other = scene.party().semaphore("x", limit=2, ttl=60).acquire()
        held = elsewhere.party().semaphore("x", limit=2, ttl=60).acquire()
        waiting = []
        for number in range(2):
            waiting.append(scene.party().semaphore("x", limit=2, ttl=5).acquire.start(timeout=60))
            scene.wait_for_line("x", holders=2, waiters=number + 1)
        held.release()
        for one in waiting:
            one.result(60).release()
        other.release()
        scene.wait_for_line("x", holders=0, waiters=0)


def test_an_eviction_by_one_who_may_tell_nobody_takes_effect(
    server: RedisServer, flavour: str, add_user: AddUser
) -> None:
    mute = add_user("+@all", "~*", "&*", "-publish")
    with Scene(Place(server.url), flavour) as scene, Scene(mute, flavour) as elsewhere:
        held = scene.party().lock("x", ttl=60).acquire()
        waiting = scene.party().lock("x", ttl=5).acquire.start(timeout=60)
        scene.wait_for_line("x", holders=1, waiters=1)
        assert elsewhere.evict("x") == 1
        lease = waiting.result(60)
        assert lease.token > held.token
        lease.release()
        scene.wait_for_line("x", holders=0, waiters=0)


def test_doctor_tells_of_one_who_may_tell_nobody(
    server: RedisServer, add_user: AddUser, connect: Callable[..., lockline.Client]
) -> None:
    mute = connect(add_user("+@all", "~*", "&*", "-publish").url)
    (found,) = [finding for finding in mute.examine() if finding.level == "error"]
    assert "tell whoever waits" in found.text
    assert "+publish" in found.cure


def test_the_rule_of_the_docs_is_enough_for_everything(
    server: RedisServer, add_user: AddUser, connect: Callable[..., lockline.Client]
) -> None:
    rules = RULE.partition(" >password ")[2].split()
    url = add_user(*rules).url
    client, other = connect(url), connect(url)
    assert {finding.level for finding in client.examine()} <= {"ok", "warning"}
    assert client.once("value", lambda: 42, fresh=60) == 42
    assert other.once("value", lambda: 43, fresh=60) == 42
    with client.locks("a", "b") as leases:
        assert len(leases) == 2
    with client.rwlock("c").write(), client.semaphore("d", limit=2), client.pool("e", [1, 2]):
        assert other.lock("c").try_acquire() is None
    ticket = client.lock("f").acquire().detach(ttl=60)
    other.attach(ticket).release()
    assert client.leader("f") is None
    assert client.list() == []


@pytest.mark.parametrize("command", ["EVALSHA", "EVAL", "TIME", "HSET"])
def test_a_command_that_was_renamed_is_told_as_what_it_is(
    command: str, connect: Callable[..., lockline.Client]
) -> None:
    with a_redis("--rename-command", command, "") as server:
        with pytest.raises(BackendUnavailable, match=r"(?i)unknown.*renamed or disabled") as refused:
            connect(server.url).lock("x").acquire(timeout=60)
        assert refused.value.permanent
