"""Errors travel: between processes, through logs, and as what they are."""

from __future__ import annotations

import copy
import pickle

import pytest

import lockline
from lockline import (
    AcquireTimeout,
    BackendUnavailable,
    ClientClosed,
    ConfigError,
    LeaseLost,
    LocklineError,
    NotHeld,
    QuorumNotReached,
    StaleToken,
    WouldDeadlock,
)

ERRORS: list[LocklineError] = [
    AcquireTimeout("billing", waited=5.0, holders=("web-3 since 12:04:10, token 41",), ahead=2),
    LeaseLost("billing", token=41, reason="expired", when=1.0),
    LeaseLost("billing", token=None, reason="evicted"),
    QuorumNotReached("2 of 5 agreed", nodes={"a:1": "refused", "b:2": "timed out"}),
    StaleToken("file", 3, 9),
    ConfigError("x"),
    NotHeld("x"),
    WouldDeadlock("x"),
    BackendUnavailable("x"),
    ClientClosed("x"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_between_processes(error: LocklineError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_each_error_is_also_the_built_in_one_that_people_catch() -> None:
    assert issubclass(AcquireTimeout, TimeoutError)
    assert issubclass(ConfigError, ValueError)
    assert issubclass(NotHeld, RuntimeError)
    assert issubclass(WouldDeadlock, RuntimeError)
    assert issubclass(BackendUnavailable, ConnectionError)
    assert issubclass(QuorumNotReached, BackendUnavailable)
    assert issubclass(ClientClosed, BackendUnavailable)
    for error in ERRORS:
        assert isinstance(error, lockline.LocklineError)


def test_the_timeout_reads_as_a_sentence() -> None:
    assert str(ERRORS[0]) == (
        "'billing' stayed taken for 5.0 s: held by web-3 since 12:04:10, token 41; 2 ahead of you"
    )


def test_a_loss_that_is_raised_again_and_again_does_not_grow() -> None:
    client = lockline.connect("memory:errors")
    lease = client.lock("x", ttl=30).acquire()
    client.evict("x")
    with pytest.raises(LeaseLost):
        lease.extend(10)
    depths = []
    for _ in range(50):
        with pytest.raises(LeaseLost) as caught:
            lease.check()
        depth, trace = 0, caught.value.__traceback__
        while trace is not None:
            depth, trace = depth + 1, trace.tb_next
        depths.append(depth)
    assert max(depths) <= min(depths) + 2
    client.close()
