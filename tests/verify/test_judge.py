"""The judge finds what was planted, and nothing where all is well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lockline.core.claim import WHOLE
from lockline.lab.verify.history import Fault, History, Operation, Pen, RegisterRecord, operations, read
from lockline.lab.verify.judge import Rules, judge
from lockline.lab.verify.ledger import Ledger
from lockline.lab.verify.verdict import (
    DEBRIS,
    EXCLUSION,
    FENCE,
    ORDER,
    PERMITS,
    READERS,
    RECOVERY,
    RISING,
    UNIQUE,
    WAKE_UP,
)

from .histories import held, history, refused

FEW = Rules(least=1, least_waits=1)


def state(of: History, promise: str, rules: Rules = FEW) -> str:
    return judge(of, rules).of(promise).state


def test_one_after_the_other_is_exclusion() -> None:
    assert state(history(held("1.1", 1, 0.0, 0.1, 0.2), held("2.1", 2, 0.0, 0.3, 0.4)), EXCLUSION) == "held"


def test_two_that_said_valid_at_one_instant_break_it() -> None:
    verdict = judge(history(held("1.1", 1, 0.0, 0.1, 0.5), held("2.1", 2, 0.0, 0.3, 0.4)), FEW)
    assert verdict.of(EXCLUSION).state == "broken"
    assert verdict.code == 1
    first = verdict.of(EXCLUSION).first
    assert first is not None
    assert "1.1" in first.text
    assert "2.1" in first.text
    assert "100.000 ms" in first.text


def test_one_lease_that_outlives_many_is_found_at_each() -> None:
    late = held("1.1", 1, 0.0, 0.1, 9.0)
    others = [held(f"2.{n}", n + 2, n, n + 0.2, n + 0.4) for n in range(5)]
    assert judge(history(late, *others), FEW).of(EXCLUSION).broken == 5


def test_a_lease_that_never_said_valid_holds_nothing() -> None:
    late = held("1.1", 1, 0.0, 0.3, 0.0)
    assert judge(history(late, held("2.1", 2, 0.0, 0.1, 0.4)), FEW).of(EXCLUSION).broken == 0


def test_readers_share_and_a_writer_does_not() -> None:
    def reader(op: str, token: int, *times: float) -> Operation:
        return held(op, token, *times, kind="read", capacity=WHOLE)

    both = reader("1.1", 1, 0.0, 0.1, 0.5), reader("2.1", 2, 0.0, 0.2, 0.4)
    assert judge(history(*both), FEW).of(READERS).broken == 0
    writer = held("3.1", 3, 0.0, 0.3, 0.6, kind="write", weight=WHOLE, capacity=WHOLE)
    assert state(history(*both, writer), READERS) == "broken"


def test_as_many_permits_as_there_are_and_no_more() -> None:
    permits = [held(f"{n}.1", n + 1, 0.0, 0.1 + n / 100, 0.5, kind="permit", capacity=3) for n in range(4)]
    assert judge(history(*permits[:3]), FEW).of(PERMITS).broken == 0
    assert state(history(*permits), PERMITS) == "broken"


def test_a_token_that_came_twice() -> None:
    assert state(history(held("1.1", 7, 0.0, 0.1, 0.2), held("2.1", 7, 0.3, 0.4, 0.5)), UNIQUE) == "broken"


def test_a_token_of_another_name_is_another_token() -> None:
    two = held("1.1", 7, 0.0, 0.1, 0.2), held("2.1", 7, 0.3, 0.4, 0.5, name="y")
    assert state(history(*two), UNIQUE) == "held"


def test_a_lower_token_for_one_who_asked_after_the_other_was_answered() -> None:
    # Neither ever said valid: what they were told is still in the wrong order.
    assert state(history(held("1.1", 8, 0.0, 0.1, 0.0), held("2.1", 7, 0.2, 0.4, 0.0)), RISING) == "broken"


def test_a_lower_token_for_one_who_held_after_the_other() -> None:
    assert state(history(held("1.1", 8, 0.0, 0.1, 0.2), held("2.1", 7, 0.0, 0.4, 0.5)), RISING) == "broken"


def test_where_two_may_hold_the_order_of_answers_is_not_that_of_grants() -> None:
    two = held("1.1", 8, 0.0, 0.1, 0.2), held("2.1", 7, 0.0, 0.4, 0.5)
    assert state(history(*two), RISING, Rules(firm=False, least=1, least_waits=1)) == "not exercised"
    beside = held("3.1", 9, 0.3, 0.41, 0.5)
    assert judge(history(*two, beside), FEW).of(RISING).broken == 0


def test_tokens_of_answers_that_crossed_say_nothing() -> None:
    assert state(history(held("1.1", 8, 0.0, 0.1, 0.0), held("2.1", 7, 0.0, 0.4, 0.5)), RISING) == "not exercised"


def test_readers_that_came_together_may_be_told_in_any_order() -> None:
    two = [held(f"{n}.1", token, 0.0, 0.1 + n, 3.0, kind="read", capacity=WHOLE) for n, token in ((0, 8), (1, 7))]
    assert judge(history(*two), FEW).of(RISING).broken == 0


def test_an_update_that_was_lost_behind_the_fence() -> None:
    whole = history(held("1.1", 1, 0.0, 0.1, 0.2))
    whole.fenced["x"] = RegisterRecord(10, 9)
    assert state(whole, FENCE) == "broken"


def test_an_update_that_was_lost_without_a_fence_is_only_counted() -> None:
    whole = history(held("1.1", 1, 0.0, 0.1, 0.2), held("2.1", 2, 0.15, 0.4, 0.5))
    whole.unfenced["x"] = RegisterRecord(10, 7)
    verdict = judge(whole, FEW)
    assert verdict.lost_without_fence == 3
    assert verdict.code == 0


def test_whoever_was_seen_waiting_is_not_overtaken() -> None:
    first = held("1.1", 1, 0.0, 0.9, 1.0, seen=0.2)
    assert state(history(first, held("2.1", 2, 0.3, 1.1, 1.2)), ORDER) == "held"
    early = held("2.1", 2, 0.3, 0.5, 0.6)
    assert state(history(first, early), ORDER) == "broken"
    assert state(history(first, early), ORDER, Rules(fifo=False, least=1, least_waits=1)) == "not exercised"


def test_whoever_came_before_the_other_was_seen_may_have_been_first() -> None:
    first = held("1.1", 1, 0.0, 0.9, 1.0, seen=0.4)
    assert judge(history(first, held("2.1", 2, 0.3, 0.5, 0.6)), FEW).of(ORDER).broken == 0


def test_whoever_waited_in_vain_was_overtaken_as_well() -> None:
    vain = refused("1.1", 0.0, 6.0, seen=0.2)
    assert state(history(vain, held("2.1", 2, 0.3, 0.5, 0.6)), ORDER) == "broken"
    # It may have left the line before it said so.
    assert judge(history(vain, held("2.1", 2, 0.3, 5.9, 6.1)), FEW).of(ORDER).broken == 0


def test_a_claim_that_the_store_may_have_forgotten_has_no_place() -> None:
    first, early = held("1.1", 1, 0.0, 0.9, 1.0, seen=0.2), held("2.1", 2, 0.3, 0.5, 0.6)
    wiped = Fault("your fault", 0.25, 0.28)
    assert judge(history(first, early, faults=(wiped,)), FEW).of(ORDER).broken == 0
    elsewhere = Fault("freeze", 0.25, 0.28, worker=3)
    assert judge(history(first, early, faults=(elsewhere,)), FEW).of(ORDER).broken == 1


def test_a_worker_that_lost_a_lease_may_have_lost_its_places_as_well() -> None:
    """One session of ZooKeeper's carries them all."""
    first, early = held("1.1", 9, 0.0, 0.9, 1.0, seen=0.2), held("2.1", 2, 0.3, 0.5, 0.6)

    def lost(op: str, name: str) -> Operation:
        found = held(op, 1, 0.0, 0.1, 0.3, name=name)
        found.outcome = "lost"
        return found

    assert judge(history(first, early, lost("1.2", "p/kept")), FEW).of(ORDER).broken == 0
    assert judge(history(first, early, lost("3.2", "p/kept")), FEW).of(ORDER).broken == 1
    # That one was to be lost.
    assert judge(history(first, early, lost("1.2", "p/deadline")), FEW).of(ORDER).broken == 1


@pytest.mark.parametrize(("got", "said"), [(0.9, "held"), (1.9, "broken")])
def test_after_a_release_the_next_one_holds_soon(got: float, said: str) -> None:
    gave_back, waited = held("1.1", 1, 0.0, 0.1, 0.5), held("2.1", 2, 0.1, got, got + 0.1, seen=0.2)
    assert state(history(gave_back, waited), WAKE_UP) == said


def test_what_is_late_while_the_machine_is_busy_is_nobodys_fault() -> None:
    whole = history(held("1.1", 1, 0.0, 0.1, 0.5), held("2.1", 2, 0.1, 1.9, 2.0, seen=0.2))
    whole.stalls = [(0.4, 0.0), (0.6, 0.1), (1.8, 0.9), (2.0, 1.0)]
    assert state(whole, WAKE_UP) == "held"


@pytest.mark.parametrize(("got", "said"), [(3.4, "held"), (3.6, "broken")])
def test_after_a_kill_the_next_one_holds_within_the_ttl_and_a_second(got: float, said: str) -> None:
    killed = held("1.1", 1, 0.0, 0.1, 0.5, released=False)
    kill = Fault("kill a holder", 0.55, 2.55, worker=1)
    waited = held("2.1", 2, 0.3, got, got + 0.1)
    assert state(history(killed, waited, faults=(kill,)), RECOVERY) == said


def test_whoever_holds_before_the_ttl_is_over_is_not_late_however_busy_the_machine_was() -> None:
    """The time from when it would have been late to when it held is none, and no stall makes it any."""
    killed = held("1.1", 1, 0.0, 0.1, 0.5, released=False)
    whole = history(killed, held("2.1", 2, 0.3, 0.6, 0.7), faults=(Fault("kill a holder", 0.55, 2.55, worker=1),))
    whole.stalls = [(moment / 10, moment / 4) for moment in range(100)]
    assert state(whole, RECOVERY) == "held"


def test_nobody_holds_for_ever_after_a_kill() -> None:
    killed = held("1.1", 1, 0.0, 0.1, 0.5, released=False)
    kill = Fault("kill a holder", 0.55, 2.55, worker=1)
    assert state(history(killed, refused("2.1", 0.3, 6.3), faults=(kill,)), RECOVERY) == "broken"
    # Whoever gave up sooner than that has nothing to say.
    assert state(history(killed, refused("2.1", 0.3, 3.0), faults=(kill,)), RECOVERY) == "not exercised"


def test_a_line_in_which_nothing_moves_is_stuck() -> None:
    gave_back = held("1.1", 1, 0.0, 0.1, 0.5)
    assert state(history(gave_back, refused("2.1", 0.3, 6.3)), RECOVERY) == "broken"
    # Nobody was there to hold it, or not for long enough; or the store was out of reach.
    assert state(history(gave_back, held("2.1", 2, 9.0, 9.1, 9.2)), RECOVERY) == "not exercised"
    assert state(history(gave_back, refused("2.1", 0.3, 3.4)), RECOVERY) == "not exercised"
    away = Fault("black hole", 2.0, 3.0)
    assert state(history(gave_back, refused("2.1", 0.3, 6.3), faults=(away,)), RECOVERY) == "not exercised"


def test_what_is_left_in_the_store() -> None:
    whole = history(held("1.1", 1, 0.0, 0.1, 0.2))
    whole.debris = ["lockline-verify/1/x"]
    assert state(whole, DEBRIS) == "broken"
    whole.debris = None
    assert state(whole, DEBRIS) == "not exercised"


def test_too_little_is_inconclusive_and_what_is_broken_is_broken() -> None:
    little = history(held("1.1", 1, 0.0, 0.1, 0.2))
    assert judge(little).code == 2
    little.fenced["x"] = RegisterRecord(10, 9)
    assert judge(little).code == 1


def test_a_worker_that_was_killed_in_the_middle_of_a_line_loses_only_that(tmp_path: Path) -> None:
    pen = Pen(tmp_path, 3)
    pen.note("a", "3.0.1", "x", "lock", 1, 1, 2.0, 5.0)
    pen.note("g", "3.0.1", 41, 5.5)
    pen.note("v", "3.0.1", 5.6)
    pen.close()
    with open(tmp_path / "history-3.log", "a") as file:
        file.write('["v","3.0.1",9.')
    witness = Pen(tmp_path, -1)
    witness.note("s", "3.0.1", 5.2)
    witness.close()
    (found,) = read(tmp_path)
    assert (found.worker, found.token, found.got, found.until, found.outcome, found.seen) == (3, 41, 5.5, 5.6, "", 5.2)


def unanswered(op: str, begun: float, ended: float, name: str = "x") -> Operation:
    found = refused(op, begun, ended)
    found.outcome, found.name = "unknown", name
    return found


def test_whoever_got_no_answer_accuses_nobody() -> None:
    gave_back = held("1.1", 1, 0.0, 0.1, 0.5)
    assert judge(history(gave_back, unanswered("2.1", 0.3, 6.3)), FEW).broken == []
    # Nor does anybody else for that time, whatever he waited for: the store was out of reach, by whose doing ever.
    elsewhere = unanswered("3.1", 1.0, 2.0, name="y")
    assert judge(history(gave_back, refused("2.1", 0.3, 6.3), elsewhere), FEW).broken == []
    long_ago = unanswered("3.1", -9.0, -8.0, name="y")
    assert state(history(gave_back, refused("2.1", 0.3, 6.3), long_ago), RECOVERY) == "broken"


def test_a_name_that_nobody_was_ever_granted_is_stuck() -> None:
    assert state(history(refused("2.1", 0.3, 6.3)), RECOVERY) == "broken"


def test_whoever_gave_up_needs_no_wake_up() -> None:
    """The last one that waited left right after the release; the next one came much later."""
    gave_back, vain = held("1.1", 1, 0.0, 0.1, 0.5), refused("2.1", 0.1, 0.7, seen=0.2)
    assert state(history(gave_back, vain, held("3.1", 2, 5.0, 5.1, 5.2)), WAKE_UP) == "not exercised"
    vain = refused("2.1", 0.1, 1.7, seen=0.2)
    assert state(history(gave_back, vain, held("3.1", 2, 5.0, 5.1, 5.2)), WAKE_UP) == "broken"


def test_what_nobody_else_wanted_is_no_test_of_exclusion() -> None:
    apart = [held(f"1.{n}", n + 1, n, n + 0.1, n + 0.2) for n in range(9)]
    assert state(history(*apart), EXCLUSION) == "not exercised"
    permits = [held(f"{n}.1", n + 1, 0.0, 0.1 + n / 100, 0.5, kind="permit", capacity=3) for n in range(3)]
    assert state(history(*permits), PERMITS) == "not exercised"
    fourth = held("4.1", 4, 0.2, 0.6, 0.7, kind="permit", capacity=3)
    assert state(history(*permits, fourth), PERMITS) == "held"
    readers = [held(f"{n}.1", n + 1, 0.0, 0.1 + n / 100, 0.5, kind="read", capacity=WHOLE) for n in range(3)]
    assert state(history(*readers), READERS) == "not exercised"
    writer = held("4.1", 4, 0.2, 0.6, 0.7, kind="write", weight=WHOLE, capacity=WHOLE)
    assert state(history(*readers, writer), READERS) == "held"


def test_order_that_was_disturbed_all_the_time_is_not_exercised() -> None:
    three = (
        held("1.1", 1, 0.0, 0.1, 0.5),
        held("2.1", 2, 0.1, 0.6, 0.7, seen=0.2),
        held("3.1", 3, 0.3, 0.8, 0.9, seen=0.35),
    )
    assert state(history(*three), ORDER) == "held"
    assert state(history(*three, faults=(Fault("your fault", 0.0, 1.0),)), ORDER) == "not exercised"


def test_a_fault_that_goes_on_excuses_what_is_late_meanwhile() -> None:
    gave_back, waits = held("1.1", 1, 0.0, 0.1, 0.5), refused("2.1", 0.3, 6.3)
    ledger = Ledger()
    going_on = replace(ledger.begin("your fault"), begun=2.0)
    assert state(history(gave_back, waits, faults=(going_on,)), RECOVERY) == "not exercised"


def test_a_store_that_cannot_be_asked_at_the_end_gets_no_verdict() -> None:
    whole = history(held("1.1", 1, 0.0, 0.1, 0.2), held("2.1", 2, 0.0, 0.3, 0.4))
    assert judge(whole, FEW).code == 0
    whole.debris = None
    assert judge(whole, FEW).code == 2


def test_an_operation_without_an_answer_is_unknown() -> None:
    lines = ['["a","1.0.1","x","lock",1,1,2.0,5.0]\n', '["u","1.0.1",6.0]\n']
    (found,) = operations(lines, 1)
    assert (found.outcome, found.got) == ("unknown", 0.0)
    verdict = judge(history(found))
    assert verdict.unknown == 1
    assert verdict.grants == 0
