"""Servers that come back from an old snapshot while clients' clocks are wrong: the tokens still rise, and what would make them fall is
found."""

from __future__ import annotations

import contextlib
import time

import pytest

import lockline
from lockline.backends.redlock import rules
from lockline.backends.redlock.scripts import BEYOND, JUMP, LEAP
from tests.servers.process import wait_for
from tests.tier import sample

from .forgetting import Forgetful, Restored, Switched
from .model import ModelNode
from .operating import LONGEST
from .servers import servers
from .test_mutants import crimes

HOURS = 3 * 3600 * 10**6


@pytest.mark.parametrize("seed", sample(range(1), range(3)))
def test_snapshots_of_any_age_and_clients_with_wrong_clocks_never_make_a_token_fall(seed: int) -> None:
    assert crimes(Restored(seed).run(100)) == []


@pytest.mark.parametrize(
    ("nodes", "seed"), sample([(3, 0), (5, 1)], [(nodes, seed) for nodes in (3, 5) for seed in range(3)])
)
def test_any_number_of_servers_may_come_back_from_snapshots_at_once(nodes: int, seed: int) -> None:
    assert crimes(Forgetful(seed, nodes=nodes, clients=5).run(sample(20, 30), faults_every=0.7)) == []


def test_a_jump_from_what_is_remembered_or_to_the_clock_makes_tokens_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint may lie days above the clock, and so may what was lost."""
    monkeypatch.setattr(ModelNode, "_beyond", lambda node, highest: max(highest + JUMP, node.microseconds()))
    assert any("after" in crime for crime in crimes(Restored(0).run(sample(25, 100))))


def test_a_jump_that_does_not_clear_what_hints_can_make_makes_tokens_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelNode, "_beyond", lambda node, highest: max(highest + 1, node.microseconds() + LEAP // 2))
    assert any("after" in crime for crime in crimes(Restored(0).run(sample(25, 100))))


def test_jumps_that_add_up_are_out_of_reach_for_a_server_with_an_older_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond the clock is not enough where each restart also adds to what the one before had added."""
    monkeypatch.setattr(ModelNode, "_beyond", lambda node, highest: max(highest, node.microseconds() + BEYOND) + JUMP)
    assert any("after" in crime for crime in crimes(Restored(0).run(sample(25, 100))))


def test_a_log_that_was_switched_off_for_long_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crimes(Switched(0, soon=False).run(sample(100, 300))) == []
    monkeypatch.setattr(
        ModelNode, "_whole", lambda node, durable: node.memory.record["durable"] == "1" and durable == "1"
    )
    assert any("overlapping" in crime for crime in crimes(Switched(0, soon=False).run(sample(100, 300))))


def test_a_log_that_was_switched_off_a_moment_ago_can_cost_exclusion_but_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Switched(0, soon=True).run(sample(60, 200)).judge.wrong == []
    monkeypatch.setattr(ModelNode, "_climb", lambda node: None)
    monkeypatch.setattr(rules, "hint", lambda wall, high: 0)
    assert any(
        "after" in crime or "twice" in crime for crime in Switched(0, soon=True).run(sample(60, 200)).judge.wrong
    )


@pytest.mark.server
def test_a_grant_to_a_client_three_hours_ahead_is_below_the_next_although_nobody_remembers_it() -> None:
    with servers(3, longest=LONGEST) as three:
        for node in three.nodes:
            node.command("SAVE")
        three[2].kill()
        with lockline.connect(three.url) as hasty:
            hasty._engine.backend.channel.wall = lambda: time.time_ns() // 1000 + HOURS  # type: ignore[attr-defined]
            lease = hasty.lock("x", ttl=LONGEST).acquire(timeout=60)
            assert lease.token > time.time_ns() // 1000 + HOURS // 2
            # A short one may be over by now on a busy machine; its number is what counts.
            with contextlib.suppress(lockline.LeaseLost):
                lease.release()
        for node in three.nodes[:2]:
            node.kill()
        for node in three.nodes[1:]:
            node.start()
        with lockline.connect(three.url) as client:
            given: list[int] = []

            def granted() -> bool:
                try:
                    later = client.lock("x", ttl=LONGEST).try_acquire()
                except lockline.QuorumNotReached:
                    return False
                assert later is not None
                given.append(later.token)
                with contextlib.suppress(lockline.LeaseLost):
                    later.release()
                return True

            wait_for(granted, 60, "a grant by the two that came back")
        assert given[0] > lease.token
