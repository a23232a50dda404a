"""The session's arithmetic under every stall, freeze and cut that a thousand seeds bring; and mutants that it must catch."""

from __future__ import annotations

from collections import deque

import pytest

from lockline.backends.zookeeper import session
from lockline.runtime.clock import validity

from ..tier import sample
from .simulation import Ours, World

SEEDS = 1000


class SentLongBefore(Ours):
    """Counts what was sent a quarter of the timeout before a confirmed write, as if it had arrived by then."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.touches: deque[float] = deque(maxlen=64)

    def connected(self, sent: float, timeout: float, asked: int) -> None:
        super().connected(sent, timeout, asked)
        self.touches.clear()

    def sent(self, moment: float) -> None:
        self.touches.append(moment)

    def confirm(self, sent: float, answered: float) -> None:
        since = max([self._connected, *(moment for moment in self.touches if moment <= sent - self.timeout / 4)])
        self.ceiling.until = max(self.ceiling.until, since + validity(self.timeout))


class AnsweredLongBefore(SentLongBefore):
    """Counts what was answered a third of the timeout before a confirmed write: as if a ping had come meanwhile."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.answers: deque[tuple[float, float]] = deque(maxlen=64)

    def connected(self, sent: float, timeout: float, asked: int) -> None:
        super().connected(sent, timeout, asked)
        self.answers.clear()

    def read(self, sent: float, answered: float) -> None:
        self.answers.append((answered, sent))

    def confirm(self, sent: float, answered: float) -> None:
        heard = (touch for came, touch in self.answers if came <= sent - self.timeout / 3)
        self.ceiling.until = max(self.ceiling.until, max([self._connected, *heard]) + validity(self.timeout))
        self.answers.append((answered, sent))


class TwoWrites(Ours):
    """Does without the third write: the report may still be lost on its way."""

    def confirm(self, sent: float, answered: float) -> None:
        super().confirm(sent, answered)
        if self._reported:
            self.ceiling.until = max(self.ceiling.until, self._reported[-1][1] + validity(self.timeout))


class AnyThird(Ours):
    """Takes a third write that was sent before the second was answered."""

    def confirm(self, sent: float, answered: float) -> None:
        super().confirm(sent, answered)
        self._reported = deque((0.001, since) for _, since in self._reported)


@pytest.mark.slow
def test_no_stall_freeze_or_lost_server_makes_a_client_trust_a_session_that_is_over() -> None:
    ended, seeds = 0, sample(250, SEEDS)
    for seed in range(seeds):
        world = World(seed, Ours).run()
        assert world.overlap <= 0, f"seed {seed}: trusted {world.overlap:.3f} s beyond the end"
        ended += world.ended is not None
    # Without that, it would prove nothing.
    assert ended > seeds / 3


@pytest.mark.parametrize("mutant", [SentLongBefore, AnsweredLongBefore, TwoWrites, AnyThird])
def test_the_simulation_finds_a_session_that_is_trusted_too_long(mutant: type[Ours]) -> None:
    caught = next((seed for seed in range(4 * SEEDS) if World(seed, mutant).run().overlap > 0), None)
    print(f"{mutant.__name__}: seed {caught}")
    assert caught is not None


def test_the_simulation_finds_that_a_session_must_last_two_ticks() -> None:
    """What the doctor warns of: with a shorter one, no ping lies between the writes that should prove it."""
    assert any(World(seed, Ours, ticks=1).run().overlap > 0 for seed in range(4 * SEEDS))


def test_while_all_is_well_a_third_of_the_timeout_is_always_left() -> None:
    for seed in range(50):
        world = World(seed, Ours, faults=False).run()
        assert world.ended is None
        assert world.least > world.timeout / 3


def test_the_margins_cover_a_ping_that_is_late() -> None:
    assert session.REPORT >= 1 / 4 + 1 / 16
    assert 1 - session.REPORT - 3 / session.PROOFS > session.SPARE
