"""Cells run side by side, but for those that disturb the same servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockline.lab.runner import Laboratory
from lockline.lab.world import turn_for


@pytest.fixture
def lab() -> Iterator[Laboratory]:
    made = Laboratory()
    yield made
    made.close()


def test_every_cell_is_in_one_queue_and_nobody_waits_for_a_turn_beside_one_who_has_it(lab: Laboratory) -> None:
    cells = [(lock, failure) for lock in lab.locks for failure in lab.failures]
    queues = lab.queues(cells)
    assert sorted(cell for queue in queues for cell in queue) == sorted(cells)
    turns = []
    for queue in queues:
        applying = [
            (lab.locks[lock], lab.failures[failure])
            for lock, failure in queue
            if not lab.failures[failure].applies(lab.locks[lock])
        ]
        found = {turn_for(lock.family, each.wants, disturbs=each.disturbs) for lock, each in applying}
        assert len(found) <= 1
        turns += [turn for turn in found if turn is not None]
    assert len(turns) == len(set(turns)) >= 8


def test_the_longest_queues_begin_first(lab: Laboratory) -> None:
    lengths = [len(queue) for queue in lab.queues((lock, failure) for lock in lab.locks for failure in lab.failures)]
    assert lengths == sorted(lengths, reverse=True)
