"""Wrong use is a ConfigError before any I/O; it never looks like a lock that is busy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import lockline
from lockline import ConfigError, aio

from .faults import Faults
from .scene import A_MINUTE, Scene

BAD_TTLS = [0, -1, 0.0, -0.5, math.nan, math.inf, -math.inf, True, False, "10", None, b"1", [1], timedelta(0),
            timedelta(seconds=-1), 1e12, 10**400, 1j]  # fmt: skip
BAD_NAMES = ["", None, 7, b"x", "x" * 513, "ü" * 257, "\ud800", ["x"], object()]
BAD_TIMEOUTS = [-1, -0.001, math.nan, math.inf, True, "5", b"5", timedelta(seconds=-1), [], 10**400]
BAD_LIMITS = [0, -1, True, False, 1.5, "3", None, (1 << 20) + 1, math.nan]
BAD_METAS = ["text", 7, [1], {"x": object()}, {"x": math.nan}, {"x": "y" * 5000}, {1: {2, 3}}]


def short(value: object) -> str:
    return repr(value)[:20]


MAKERS: dict[str, Callable[..., Any]] = {
    "lock": lambda client, name, **options: client.lock(name, **options),
    "rlock": lambda client, name, **options: client.rlock(name, **options),
    "rwlock": lambda client, name, **options: client.rwlock(name, **options),
    "semaphore": lambda client, name, **options: client.semaphore(name, 3, **options),
    "locked": lambda client, name, **options: client.locked(name, **options),
}


@pytest.fixture
def clients() -> list[Any]:
    return [lockline.connect("memory:arguments"), aio.connect("memory:arguments")]


def refused(clients: list[Any], option: str, values: list[Any]) -> None:
    """Each client refuses each of these values of an option of each kind of lock."""
    for client, (kind, make), value in itertools.product(clients, MAKERS.items(), values):
        try:
            make(client, "x", **{option: value})
        except ConfigError:
            continue
        pytest.fail(f"{kind} of {client} takes {option}={short(value)}")


def test_a_ttl_that_is_none(clients: list[Any]) -> None:
    refused(clients, "ttl", BAD_TTLS)


def test_a_max_hold_that_is_none(clients: list[Any]) -> None:
    refused(clients, "max_hold", [bad for bad in BAD_TTLS if bad is not None])


def test_a_meta_that_is_none(clients: list[Any]) -> None:
    refused(clients, "meta", BAD_METAS)


def test_a_renew_that_is_neither_true_nor_false(clients: list[Any]) -> None:
    refused(clients, "renew", [None, 0, 1, "yes"])


def test_a_name_that_is_none(clients: list[Any]) -> None:
    for client, make, name in itertools.product(clients, MAKERS.values(), BAD_NAMES):
        with pytest.raises(ConfigError):
            make(client, name)


def test_a_limit_that_is_none(clients: list[Any]) -> None:
    for client, limit in itertools.product(clients, BAD_LIMITS):
        with pytest.raises(ConfigError):
            client.semaphore("x", limit)


def test_a_config_error_is_a_value_error_of_lockline() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, lockline.LocklineError)


def test_a_timeout_that_is_none_is_found_before_any_request(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    for timeout in BAD_TIMEOUTS:
        with pytest.raises(ConfigError):
            alice.lock("x").acquire(timeout=timeout)
        with pytest.raises(ConfigError):
            alice.client.real.locked("x", timeout=timeout)
    assert faults.calls == []


def test_an_extension_that_is_none_is_found_before_any_request(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(alice)
    for ttl in (0, -1, math.nan, True, "x", None):
        with pytest.raises(ConfigError):
            lease.extend(ttl)
    assert "renew" not in faults.calls
    assert lease.valid
    lease.release()


def test_a_question_about_a_name_that_is_none(world: Scene) -> None:
    alice = world.party()
    for call, name in itertools.product((alice.client.inspect, alice.client.evict), ["", None, 7, "x" * 513]):
        with pytest.raises(ConfigError):
            call(name)


def test_a_callback_that_cannot_be_called(world: Scene) -> None:
    alice = world.party()
    with alice.lock("x") as lease:
        for callback in (None, 7, "x"):
            with pytest.raises(ConfigError):
                lease.on_lost(callback)


def test_a_callback_that_would_have_to_be_awaited(world: Scene) -> None:
    alice = world.party()

    async def stop() -> None: ...

    with alice.lock("x") as lease, pytest.raises(ConfigError, match="plain function"):
        lease.on_lost(stop)


def test_good_arguments_of_every_form(world: Scene) -> None:
    alice = world.party()
    alice.lock("x", 61.5).acquire(timedelta(minutes=1)).release()
    alice.lock("x", ttl=timedelta(minutes=1), renew=False, max_hold=timedelta(hours=1), meta={}).acquire(0).release()
    alice.rlock("x", 63, max_hold=62.5, meta={"a": [1, {"b": None}]}).acquire(timeout=A_MINUTE).release()
    if world.world.semaphores:
        alice.semaphore("x", limit=1 << 20).acquire(timeout=A_MINUTE).release()
    lease = alice.lock("x").acquire()
    lease.extend(timedelta(hours=1))
    assert lease.remaining() > 3000
    lease.release()


def test_a_target_that_nobody_knows() -> None:
    targets: list[Any] = ["", "nothing", "x://y", "http://localhost", 7, object(), b"memory:", []]
    for connect, target in itertools.product((lockline.connect, aio.connect), targets):
        with pytest.raises(ConfigError):
            connect(target)


def test_an_owner_that_is_none() -> None:
    owners: list[Any] = ["", 7, "x" * 257, "\ud800", b"me"]
    for connect, owner in itertools.product((lockline.connect, aio.connect), owners):
        with pytest.raises(ConfigError):
            connect("memory:", owner=owner)


def test_an_option_that_the_backend_does_not_know(world: Scene) -> None:
    with pytest.raises(ConfigError, match="option"):
        world.party(no_such_option=1)


def test_the_environment_names_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKLINE_URL", "memory:from-the-environment")
    assert lockline.connect().url == "memory:from-the-environment"
    assert aio.connect().url == "memory:from-the-environment"


def test_a_token_that_is_none(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    for token in (0, -1, True, "7", 1.0, b"1", [1]):
        with pytest.raises(ConfigError):
            alice.client.evict("x", token=token)
    assert faults.count("evict") == 0
