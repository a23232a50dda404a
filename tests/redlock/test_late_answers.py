"""Answers that one thread notes while another looks at what the servers have said."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from lockline.backends.redlock import rules
from lockline.backends.redlock.claims import Attempt
from lockline.backends.redlock.commands import NodeRequest

NODES = 5
LOOKS = 20_000


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads that take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager")
def test_a_waiter_looks_at_the_refusals_while_late_ones_arrive() -> None:
    """It was a RuntimeError out of `acquire()`: the dictionary changed its size during the look."""
    attempt = Attempt("x", rules.attempt_id("ann", 1), 10.0, "")
    ask = NodeRequest("acquire", ())
    over = threading.Event()

    def note() -> None:
        while not over.is_set():
            for node in range(NODES):
                attempt.note((node, ask, [b"no", b"bob-1 7 info", b"5000"]))
            for node in range(NODES):
                attempt.note((node, ask, [b"yes", b"8"]))

    other = threading.Thread(target=note)
    other.start()
    try:
        for _ in range(LOOKS):
            assert all(holder == "bob-1" and left == 5.0 for holder, left in attempt.blockers())
            assert not attempt.unreached(NODES, rules.majority(NODES))
    finally:
        over.set()
        other.join()
