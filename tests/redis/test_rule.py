"""The scripts and the reference model, step by step: whatever is done, both say the same."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lockline.backends.memory import Room
from lockline.backends.redis import connect
from lockline.core.claim import Claim
from lockline.core.waiting import Hints
from lockline.runtime import clock
from lockline.runtime.blocking import BlockingRuntime, run
from tests.servers.redis import RedisServer
from tests.tier import sample

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]

NAME = "the {line} é"
STATE = struct.Struct("11d")
KEY = "{ll:the%20%7Bline%7D%20é}"


def later() -> float:
    return clock.now() + 60


class Lines(RuleBasedStateMachine):
    """One line on Redis and in memory."""

    server: RedisServer
    claims = Bundle("claims")
    numbers = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.redis = self.server.client(encoding_errors="replace")
        self.raw = redis.Redis(port=self.server.port)
        self.redis.delete(KEY)
        self.backend = connect(self.server.url, BlockingRuntime())
        self.backend.report_to(Hints(BlockingRuntime(), None, lambda: None))
        self.room = Room(lambda: 0.0)
        self.tokens: dict[str, int] = {}
        self.highest = 0
        self.overdue: set[str] = set()

    def teardown(self) -> None:
        run(self.backend.close())
        self.redis.close()
        self.raw.close()

    def state(self) -> tuple[float, ...]:
        """The numbers; of one who is alone they stand in its record."""
        kept: Any = self.raw.hget(KEY, "state")
        if kept[:1] != b"+":
            return STATE.unpack(kept[: STATE.size])
        record: Any = self.raw.hget(KEY, kept)
        return (1, int(record.split(b" ")[4]), 0, 0, 0, 0, 1, 1, 0, 0, 0)

    def same(self, ours: Any, model: Any) -> None:
        """The same kind of answer; tickets have other numbers, places may count empty seats."""
        assert type(ours) is type(model), (ours, model)

    @rule(target=claims, weight=st.integers(1, 4), capacity=st.sampled_from([1, 2, 4, 4, 4]), wait=st.booleans())
    def enter(self, weight: int, capacity: int, wait: bool) -> Claim:
        claim = Claim(NAME, f"c{next(self.numbers)}", "me", "lock", min(weight, capacity), capacity, 60.0, 0.0, "")
        ours = run(self.backend.enter(claim, wait=wait, until=later()))
        self.same(ours, self.room.enter(claim, wait, lambda told: None))
        return claim

    @rule(claim=claims)
    def enter_again(self, claim: Claim) -> None:
        ours = run(self.backend.enter(claim, wait=True, until=later()))
        self.same(ours, self.room.enter(claim, True, lambda told: None))

    @rule(claim=consumes(claims))
    def leave(self, claim: Claim) -> None:
        was_there = self.room.leave(claim)
        # One whose time was over by the server's clock alone, and in whose place nobody came, has not lost anything yet.
        assert run(self.backend.leave(claim, later())) == was_there or claim.id in self.overdue
        assert not run(self.backend.leave(claim, later()))

    @rule(claim=claims)
    def look_at_own_place(self, claim: Claim) -> None:
        self.same(run(self.backend.place(claim, later())), self.room.place(claim))

    @rule(chosen=st.lists(claims, min_size=1, max_size=4, unique=True), weight=st.integers(1, 4))
    def renew(self, chosen: list[Claim], weight: int) -> None:
        batch = [claim._replace(weight=min(weight, claim.weight)) for claim in chosen]
        ours = run(self.backend.renew(batch, later()))
        model = [self.room.renew(claim) for claim in batch]
        assert [type(fate) for fate in ours] == [type(fate) for fate in model]

    @rule()
    def evict(self) -> None:
        assert run(self.backend.evict(NAME, later())) == self.room.evict(NAME, None)

    @precondition(lambda self: self.room._lines)
    @rule(data=st.data())
    def evict_one_by_its_token(self, data: st.DataObject) -> None:
        """One that holds, or one that waits: then nobody."""
        meant = data.draw(st.sampled_from(self.room._lines[NAME]))
        token = self.tokens[meant.claim.id]
        assert run(self.backend.evict(NAME, later(), token)) == self.room.evict(NAME, meant.ticket)

    @precondition(lambda self: self.room._lines)
    @rule(data=st.data())
    def time_passes_for_one(self, data: st.DataObject) -> None:
        """Somebody's ttl is over; the key as a whole lives on."""
        line = self.room._lines[NAME]
        stood = data.draw(st.sampled_from(line))
        stood.expires = -1.0
        self.overdue.add(stood.claim.id)
        for mark in "+~":
            record = self.redis.hget(KEY, mark + stood.claim.id)
            if record:
                ticket, _, rest = record.split(" ", 2)
                self.redis.hset(KEY, mark + stood.claim.id, f"{ticket} 1 {rest}")
                kept: Any = self.raw.hget(KEY, "state")
                if kept[:1] != b"+":
                    state = list(STATE.unpack(kept[: STATE.size]))
                    state[3 if mark == "+" else 10] = 1.0
                    self.raw.hset(KEY, "state", STATE.pack(*state) + kept[STATE.size :])

    @rule()
    def the_servers_forget_the_scripts(self) -> None:
        self.redis.script_flush()

    @invariant()
    def both_see_the_same_line(self) -> None:
        ours = run(self.backend.look(NAME, later())).claims
        model = self.room.look(NAME).claims
        assert [(c.id, c.holds, c.weight, c.capacity) for c in ours] == [
            (c.id, c.holds, c.weight, c.capacity) for c in model
        ]
        for claim in ours:
            # A claim keeps its ticket as long as it stands; whoever comes later, or again, gets a higher one.
            assert claim.token == self.tokens.get(claim.id) or claim.token > self.highest
            self.tokens[claim.id] = claim.token
            self.highest = max(self.highest, claim.token)

    @invariant()
    def nothing_is_left_that_should_not_be(self) -> None:
        # In this order: what passes between the first two questions is on the safe side.
        left, (seconds, micros), fields = self.redis.pipeline(transaction=False).pttl(KEY).time().hgetall(KEY).execute()
        standing = len(self.room._lines.get(NAME, ()))
        if fields:
            assert 0 < left <= 80_005
        for name in fields:
            if name[0] in "+~":
                _, since, ttl, _ = fields[name].split(" ", 3)
                remaining = (int(since) - seconds * 1_000_000 - micros) / 1000 + int(ttl)
                assert left >= remaining + 10_000 - 2, "the memory of the last ticket outlives everybody"
        # An eviction is remembered for as long as the key.
        notes = [name for name in fields if name[0] == "="]
        assert sorted(fields[name] for name in fields if name[0] == "o") == sorted(notes)
        assert ("notes" in fields) == bool(notes)
        if not standing:
            assert {name for name in fields if name[0] not in "=o"} <= {"last", "notes"}, fields
        held = [name for name in fields if name[0] == "+"]
        waiting = [name for name in fields if name[0] == "~"]
        assert len(held) + len(waiting) >= standing
        seats = {int(name[1:]): fields[name] for name in fields if name[0] == "q"}
        assert {name[1:] for name in waiting} == {who for who in seats.values() if who[0] != "!"}
        if "state" in fields:
            n, used = self.state()[:2]
            self.every_seat_is_somebodys_or_part_of_a_run(seats)
            assert n == len(held)
            self.who_is_next_is_known_or_asked_for(seats, held)
            assert used == sum(int(fields[name].split(" ")[4]) for name in held)

    def who_is_next_is_known_or_asked_for(self, seats: dict[int, str], held: list[str]) -> None:
        kept: Any = self.raw.hget(KEY, "state")
        if kept[:1] != b"+":
            noted = kept[STATE.size :].decode()
            if noted[:1] == "+":
                # Nobody waits: this is whom the next one to come will stand directly behind.
                assert (held, seats) == ([noted], {})
            else:
                assert not noted or noted == seats[int(self.state()[6])]

    def every_seat_is_somebodys_or_part_of_a_run(self, seats: dict[int, str]) -> None:
        head, end = (int(number) for number in self.state()[6:8])
        assert all(head <= seat < end for seat in seats), (head, end, seats)
        at = head
        while at < end:
            if seats[at][0] == "!":
                first, last = (int(number) for number in seats[at][1:].split())
                assert first == at <= last < end - 1, "the last seat is somebody's"
                assert seats.get(last) == seats[at]
                assert last + 1 not in seats or seats[last + 1][0] != "!", "neighbouring runs are one"
                assert not any(seat in seats for seat in range(first + 1, last))
                at = last
            at += 1


@pytest.fixture
def lines(server: RedisServer) -> type[Lines]:
    Lines.server = server
    return Lines


def test_the_scripts_follow_the_one_rule(lines: type[Lines]) -> None:
    run_state_machine_as_test(
        lines,
        settings=settings(
            max_examples=sample(20, 200),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
