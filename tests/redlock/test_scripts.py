"""The Lua and the model are the same thing: every request of a simulated history also runs on a real server, and each answer has to
be equal. So what the simulation proves about the model holds for the scripts."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from lockline.backends.redlock import commands, scripts
from lockline.backends.redlock.commands import NodeRequest, keys_and_arguments
from lockline.backends.redlock.membership import greeting
from lockline.backends.redlock.scripts import LARGEST, REMEMBERED
from lockline.backends.resp.commands import Script
from tests.servers.redis import RedisServer, a_redis

from ..tier import sample
from .model import ModelNode
from .simulation import Story

pytestmark = pytest.mark.server

SECONDS = sample(8, 20)
"""Of virtual time, in one history."""
FAR = time.time_ns() // 1000 + scripts.LEAP // 4
"""A floor above what the real server's clock gives, so that model and server start from the same number."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with a_redis() as started:
        yield started


@pytest.fixture
def connection(server: RedisServer) -> Iterator[redis.Redis]:
    client = redis.Redis(port=server.port)
    client.flushall()
    yield client
    client.close()


def _run(connection: Any, request: NodeRequest, cluster: str) -> Any:
    keys, arguments = keys_and_arguments(request, cluster)
    return connection.eval(scripts.SCRIPTS[request.op].body, len(keys), *keys, *arguments)


def install(connection: redis.Redis, cluster: str, floor: int = FAR, longest: int = 1000) -> list[Any]:
    request = NodeRequest("install", (3, "a,b,c", longest, floor, "0", "", "", 1))
    return _run(connection, request, cluster)  # type: ignore[no-any-return]


def ask(connection: redis.Redis, request: NodeRequest, cluster: str = "c") -> list[Any]:
    return _run(connection, request, cluster)  # type: ignore[no-any-return]


class Timed(ModelNode):
    """A model node with the time of the real server, where hints are compared with it."""

    def microseconds(self) -> int:
        return time.time_ns() // 1000


class Lockstep(Timed):
    """A model node with a real server beside it. The clock is the model's: what it lets expire is deleted on the server."""

    connections: list[redis.Redis]
    made = 0
    compared = 0

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.real = self.connections[type(self).made]
        type(self).made += 1
        self.real.flushall()
        self.expired = self._gone

    def _gone(self, what: str, which: str) -> None:
        if what == "lease":
            self.real.delete(scripts.LEASE + which)
        elif what == "tombstone":
            self.real.delete(scripts.TOMBSTONE + which)

    def apply(self, request: NodeRequest, cluster: str) -> list[Any]:
        said = super().apply(request, cluster)
        if request.op == "install":
            longest, floor, *_ = request.args
            install(self.real, cluster, max(FAR, floor), longest)
            # From the same floor on both sides.
            self.memory.counters[""] = max(FAR, floor)
            return said
        if request.op == "greet":
            return said
        op, args = request
        # Nothing expires by the server's own clock.
        if op == "acquire":
            name, attempt, _, hint, info = args
            request = commands.acquire(name, attempt, 10**9, hint, info)
        elif op == "extend":
            name, attempt, number, *_ = args
            request = commands.extend(name, attempt, number, 10**9)
        elif op == "release" and args[3] > 0:
            name, attempt, number, *_ = args
            request = commands.release(name, attempt, number, 10**9)
        answer = ask(self.real, request, cluster)
        assert _without_times(answer) == _without_times(said), (request, answer, said)
        type(self).compared += 1
        return said

    def restart(self, memory: Any) -> None:
        super().restart(memory)
        assert memory is None, "only wiping is done in step"
        self.real.flushall()


def _without_times(reply: list[Any]) -> list[Any]:
    return reply[:2] if reply[0] == b"no" else reply


@pytest.mark.parametrize("seed", sample(range(1), range(4)))
def test_model_and_script_give_the_same_answers_in_every_history(server: RedisServer, seed: int) -> None:
    connections = [redis.Redis(port=server.port, db=number) for number in range(3)]
    stepped: Any = type("Stepped", (Lockstep,), {"connections": [Flushing(one) for one in connections]})
    story = Story(seed, nodes=3, clients=5, names=3, make=stepped)
    story.universe.repeat = 0.1
    chance = story.random
    for when in range(2, SECONDS, 3):
        node = chance.randrange(3)
        story.universe.at(when, story.universe.kill, node)
        story.universe.at(when + 0.1, story._back, node, None)
    for when in range(1, SECONDS):
        pair = (chance.choice(story.ports).client, chance.randrange(3))
        story.universe.at(when, story.universe.cut.add, pair)
        story.universe.at(when + 0.5, story.universe.cut.discard, pair)
    story.run(SECONDS)
    for one in connections:
        one.close()
    assert story.judge.wrong == []
    assert story.judge.grants > 2 * SECONDS
    assert stepped.compared > 100 * SECONDS


class Flushing:
    """One database of a server, as if it were a server."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def flushall(self) -> None:
        self._client.flushdb()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_random_requests_get_the_same_answer_from_both(connection: redis.Redis) -> None:
    """Requests that no sane client would send: the node's rules hold whatever clients do."""
    chance = random.Random(5)
    install(connection, "c")
    model = Timed(lambda: 0.0)
    model.apply(NodeRequest("install", (10**9, FAR)), "c")
    names, attempts = ["x", "y", "ä é"], [f"a-{n}.1" for n in range(40)]
    for _ in range(sample(1500, 3000)):
        name, attempt = chance.choice(names), chance.choice(attempts)
        number = FAR + chance.randrange(-3, 400)
        request = chance.choice(
            (
                commands.acquire(name, attempt, 10**9, number, "info with spaces\nand lines"),
                commands.promote(name, attempt, number),
                commands.extend(name, attempt, number, 10**9),
                commands.release(name, attempt, number, chance.choice((0, -5, 0, -5, 0, -5, 0, -5, 10**9))),
                NodeRequest("highest", ()),
            )
        )
        cluster = chance.choice(("c", "c", "c", "c", "d"))
        assert _without_times(ask(connection, request, cluster)) == _without_times(model.apply(request, cluster)), (
            request
        )
    lowest: Any = connection.zrange(scripts.COUNTERS, 0, -1, withscores=True)
    assert {name.decode(): int(score) for name, score in lowest} == model.memory.counters


def test_counters_are_dropped_lowest_first_and_lift_the_floor(connection: redis.Redis) -> None:
    install(connection, "c")
    model = Timed(lambda: 0.0)
    model.apply(NodeRequest("install", (10**9, FAR)), "c")
    # Nearly as many as are kept; the rest comes, and goes, by requests.
    known = {f"name-{number}": FAR + number for number in range(1, REMEMBERED - 100)}
    connection.zadd(scripts.COUNTERS, known)
    model.memory.counters.update(known)
    chance = random.Random(6)
    for number in range(sample(400, 2 * REMEMBERED)):
        name = f"name-{chance.randrange(3 * REMEMBERED)}"
        for request in (
            commands.acquire(name, f"a-{number}.1", 10**6, 0, ""),
            commands.release(name, f"a-{number}.1", 0, 0),
        ):
            assert ask(connection, request) == model.apply(request, "c")
    assert connection.zcard(scripts.COUNTERS) == REMEMBERED
    assert connection.zscore(scripts.COUNTERS, "") == model.memory.counters[""] > FAR
    assert connection.dbsize() == 3


def test_a_release_that_teaches_a_node_names_it_never_gave_keeps_no_more_counters(connection: redis.Redis) -> None:
    """A node that was cut off hears of each name by its release only."""
    install(connection, "c")
    model = Timed(lambda: 0.0)
    model.apply(NodeRequest("install", (10**9, FAR)), "c")
    # As many too many as an older version may have left.
    extra = {f"old-{number}": FAR + number for number in range(REMEMBERED + 20)}
    connection.zadd(scripts.COUNTERS, extra)
    model.memory.counters.update(extra)
    for number in range(50):
        request = commands.release(f"name-{number}", f"a-{number}.1", FAR + 2000 + number, 0)
        assert ask(connection, request) == model.apply(request, "c")
    kept: Any = connection.zrange(scripts.COUNTERS, 0, -1, withscores=True)
    assert {name.decode(): int(score) for name, score in kept} == model.memory.counters
    assert len(kept) == REMEMBERED


def test_a_tombstone_refuses_its_attempt_however_often_it_comes(connection: redis.Redis) -> None:
    install(connection, "c")
    ask(connection, commands.release("x", "a-1.1", 0, 60_000))
    for _ in range(3):
        assert ask(connection, commands.acquire("x", "a-1.1", 60_000, 0, "")) == [b"buried"]
    assert ask(connection, commands.acquire("x", "a-1.2", 5000, 0, ""))[0] == b"yes"


def test_numbers_stop_before_lua_would_round_them(connection: redis.Redis) -> None:
    install(connection, "c", LARGEST - 3)
    given = []
    for number in range(10):
        reply = ask(connection, commands.acquire("x", f"a-{number}.1", 10**6, 0, ""))
        ask(connection, commands.release("x", f"a-{number}.1", 0, 0))
        if reply[0] == b"yes":
            given.append(int(reply[1]))
    assert given == [LARGEST - 2, LARGEST - 1, LARGEST]
    assert reply == [b"shut", b"full"]


def test_numbers_above_the_limit_are_rounded_without_the_guard(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the same scripts without the guard give one token again and again."""
    for op in ("acquire", "install", "release"):
        text = scripts.SCRIPTS[op].body.replace(str(LARGEST), "1e300")
        monkeypatch.setitem(scripts.SCRIPTS, op, Script(text))
    install(connection, "c", LARGEST - 3)
    given = []
    for number in range(10):
        reply = ask(connection, commands.acquire("x", f"a-{number}.1", 10**6, 0, ""))
        ask(connection, commands.release("x", f"a-{number}.1", 0, 0))
        given.append(int(reply[1]))
    assert len(set(given)) < len(given)


def test_a_client_with_a_broken_clock_cannot_use_the_numbers_up(connection: redis.Redis) -> None:
    install(connection, "c", floor=0)
    for number in range(100):
        reply = ask(connection, commands.acquire("x", f"a-{number}.1", 10**6, LARGEST, ""))
        ask(connection, commands.release("x", f"a-{number}.1", 0, 0))
        assert int(reply[1]) <= time.time_ns() // 1000 + scripts.LEAP + number


def test_a_lease_never_lacks_a_ttl_and_an_extend_never_shortens_it(connection: redis.Redis) -> None:
    install(connection, "c")
    number = int(ask(connection, commands.acquire("x", "a-1.1", 50_000, 0, ""))[1])
    assert 40_000 < connection.pttl(scripts.LEASE + "x") <= 50_000
    ask(connection, commands.extend("x", "a-1.1", number, 100))
    assert 40_000 < connection.pttl(scripts.LEASE + "x") <= 50_000
    ask(connection, commands.extend("x", "a-1.1", number, 90_000))
    assert 80_000 < connection.pttl(scripts.LEASE + "x") <= 90_000
    ask(connection, commands.promote("x", "a-1.1", number + 5))
    assert 80_000 < connection.pttl(scripts.LEASE + "x") <= 90_000
    assert ask(connection, commands.extend("x", "a-1.1", number, 90_000))[0] == b"no"
    ask(connection, commands.release("y", "a-2.1", 0, 30_000))
    assert 20_000 < connection.pttl(scripts.TOMBSTONE + "a-2.1") <= 30_000


def test_a_node_whose_counters_were_evicted_refuses(connection: redis.Redis) -> None:
    install(connection, "c")
    connection.delete(scripts.COUNTERS)
    assert ask(connection, commands.acquire("x", "a-1.1", 1000, 0, "")) == [b"shut", b"forgot"]
    said = greeting(ask(connection, NodeRequest("greet", ("0",)), ""))
    assert said.state == "forgot"
    assert ask(connection, commands.acquire("x", "a-1.1", 1000, 0, "")) == [b"shut", b"empty"]


def test_every_request_is_refused_by_another_clusters_server(connection: redis.Redis) -> None:
    install(connection, "c")
    for request in (
        commands.acquire("x", "a-1.1", 1000, 0, ""),
        commands.promote("x", "a-1.1", 5),
        commands.extend("x", "a-1.1", 5, 1000),
        commands.release("x", "a-1.1", 5, 0),
        commands.look("x"),
        commands.evict("x", "a-1.1", 5),
        NodeRequest("highest", ()),
        NodeRequest("retire", ()),
    ):
        assert ask(connection, request, "another") == [b"shut", b"other", b"c"], request
    assert connection.dbsize() == 3
