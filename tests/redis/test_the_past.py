"""What is over costs the next step nothing: waits that timed out, waiters that were killed, claims that were withdrawn."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline.backends.redis.scripts import ENTER, LEAVE, LOOK, NO_CHANNEL, PLACE
from lockline.core import engine
from tests.redis.renewed import TTL, renewal_of
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]
KEY = "{ll:x}"
MANY = sample(1500, 3000)


class Line:
    """One line, talked to by its scripts alone; counts what the server does inside them."""

    def __init__(self, server: RedisServer) -> None:
        self.redis = server.client()
        self._numbers = itertools.count(1)
        for script in (ENTER, LEAVE, PLACE, LOOK):
            self.redis.script_load(script.body)
        self._pipe = self.redis.pipeline(transaction=False)

    def enter(self, ttl: int = 60_000) -> str:
        """Stand at the end (or hold): the claim's id."""
        claim_id = f"c{next(self._numbers)}"
        about = f'1 1 {NO_CHANNEL} {ttl / 1000} lock "me"'
        self._pipe.evalsha(ENTER.sha, 1, KEY, claim_id, ttl, about, "1", ttl + 10_000)
        return claim_id

    def leave(self, claim_id: str, doubtful: str = "0") -> None:
        self._pipe.evalsha(LEAVE.sha, 1, KEY, claim_id, doubtful)

    def stand(self, claim_id: str) -> Any:
        return self.now(self._pipe.evalsha(PLACE.sha, 1, KEY, claim_id, NO_CHANNEL, "0"))

    def look(self) -> Any:
        return self.now(self._pipe.evalsha(LOOK.sha, 1, KEY))

    def now(self, _: object = None) -> Any:
        """Send what was said; the last answer."""
        answers = self._pipe.execute()
        return answers[-1] if answers else None

    def cost(self, what: Callable[[], object]) -> int:
        """How many commands the server ran for this, inside its scripts and out; the whole hash counts by its size."""
        size = self.fields()
        self.redis.config_resetstat()
        what()
        self.now()
        stats = self.redis.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): told["calls"] for name, told in stats.items()}
        return int(sum(calls.values()) + size * calls.get("hgetall", 0))

    def fields(self) -> int:
        return int(self.redis.hlen(KEY))


@pytest.fixture
def line(server: RedisServer) -> Line:
    return Line(server)


def test_the_step_after_many_waits_that_timed_out_is_as_short_as_any(line: Line) -> None:
    holder, first = line.enter(), line.enter()
    standby = line.enter()
    for _ in range(MANY):
        # There is always one behind the one that gives up, so no empty seat is ever at an end of the line.
        standby, before = line.enter(), standby
        line.leave(before)
        line.now()
    assert line.fields() < 20
    cost = line.cost(lambda: line.leave(holder))
    assert cost < 50, f"{cost} commands for one release"
    cost = line.cost(lambda: line.leave(first))
    assert cost < 50, f"{cost} commands for the next"
    assert line.stand(standby) > 0, "the one that stayed holds now"
    line.leave(standby)
    line.now()
    assert line.redis.hkeys(KEY) == ["last"]


def test_empty_seats_in_any_order_are_passed_at_once(line: Line) -> None:
    holder = line.enter()
    crowd = [line.enter() for _ in range(301)]
    for start in (1, 2, 0):
        for claim_id in crowd[start:300:3]:
            line.leave(claim_id)
    line.now()
    assert line.fields() < 10
    cost = line.cost(lambda: line.leave(holder))
    assert cost < 30, f"{cost} commands for one release"
    assert line.stand(crowd[-1]) > 0


def test_the_order_of_arrival_outlives_empty_seats(line: Line) -> None:
    holder = line.enter()
    crowd = [line.enter() for _ in range(60)]
    gone = {crowd[n] for n in (0, 1, 5, 6, 7, 20, 22, 21, 40, 59, 58, 57)}
    for claim_id in gone:
        line.leave(claim_id)
    late = line.enter()
    for holder_now in [holder, *(each for each in crowd if each not in gone)]:
        assert line.stand(holder_now) > 0 if holder_now != holder else True
        line.leave(holder_now)
        line.now()
    assert line.stand(late) > 0


def test_records_of_killed_waiters_go_while_the_lock_is_held(server: RedisServer, line: Line, connect: Connect) -> None:
    client = connect(server.url)
    lease = client.lock("x", ttl=TTL).acquire()
    for _ in range(100):
        line.enter(ttl=1500)
    line.now()
    assert line.fields() > 200

    def gone() -> bool:
        renewal_of(lease)
        return line.fields() < 10

    # Nothing is done here but what the holder's renewer does.
    wait_for(gone, 60, "an end of the dead waiters' records")
    assert lease.valid
    lease.release()


def test_dead_waiters_are_cleared_away_a_few_at_a_time(line: Line) -> None:
    line.enter()
    living = line.enter()
    for _ in range(MANY):
        line.enter(ttl=1)
    last = line.enter()
    line.now()
    costs = []
    while {field for field in line.redis.hkeys(KEY) if field[0] == "~"} != {f"~{living}", f"~{last}"}:
        costs.append(line.cost(lambda: line.stand(living)))
        assert len(costs) < MANY
    assert max(costs) < 1500, f"{max(costs)} commands in one step"
    assert line.fields() < 10


def test_a_cancel_costs_the_same_however_many_went_before(line: Line) -> None:
    holder = line.enter()
    line.now()
    for n in range(MANY):
        line.leave(f"withdrawn-{n}", doubtful="1")
    line.now()
    cost = line.cost(lambda: line.leave("one-more", doubtful="1"))
    assert cost < 50, f"{cost} commands for one cancel"
    # Their time is over; those who come and go clear them away.
    notes = [field for field in line.redis.hkeys(KEY) if field[0] == "-"]
    assert len(notes) == MANY + 1
    line.redis.hset(KEY, mapping=dict.fromkeys(notes, "1"))
    line.leave(holder)
    line.now()
    costs = []
    while len(line.redis.hkeys(KEY)) > 3:
        costs.append(line.cost(lambda: line.leave(line.enter())))
        assert len(costs) < MANY
    assert max(costs) < 1500, f"{max(costs)} commands in one step"


def test_a_note_keeps_its_claim_out_for_as_long_as_it_is_remembered(line: Line) -> None:
    line.leave("late", doubtful="1")
    for n in range(50):
        line.leave(f"other-{n}", doubtful="1")
    line.now()
    about = f'1 1 {NO_CHANNEL} 60.0 lock "me"'
    assert line.redis.evalsha(ENTER.sha, 1, KEY, "late", 60_000, about, "1", 70_000) is None
    line.redis.hset(KEY, "-late", "1")
    assert line.redis.evalsha(ENTER.sha, 1, KEY, "late", 60_000, about, "1", 70_000) > 0


def test_waits_that_time_out_beside_real_ones_leave_the_line_small(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of them stands in the line, however long a busy machine takes for that.
    monkeypatch.setattr(engine, "GRACE", 10.0)
    holder, standby = connect(server.url), connect(server.url)
    lease = holder.lock("x").acquire()

    def give_up_again_and_again() -> None:
        for _ in range(50):
            with pytest.raises(lockline.AcquireTimeout):
                standby.lock("x").acquire(timeout=0.005)

    threads = [threading.Thread(target=give_up_again_and_again) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert server.command("HLEN", KEY) < 10
    lease.release()
