"""Wrong use is a ConfigError before any I/O; it never looks like a lock that is busy."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import lockline
from lockline import ConfigError, aio

from .faults import Faults
from .scene import Scene

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


@pytest.fixture(params=["sync", "asyncio"])
def client(request: pytest.FixtureRequest) -> Any:
    return lockline.connect("memory:arguments") if request.param == "sync" else aio.connect("memory:arguments")


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("ttl", BAD_TTLS, ids=short)
def test_a_ttl_that_is_none(client: Any, make: Callable[..., Any], ttl: Any) -> None:
    with pytest.raises(ConfigError):
        make(client, "x", ttl=ttl)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("max_hold", [bad for bad in BAD_TTLS if bad is not None], ids=short)
def test_a_max_hold_that_is_none(client: Any, make: Callable[..., Any], max_hold: Any) -> None:
    with pytest.raises(ConfigError):
        make(client, "x", max_hold=max_hold)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_a_name_that_is_none(client: Any, make: Callable[..., Any], name: Any) -> None:
    with pytest.raises(ConfigError):
        make(client, name)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("meta", BAD_METAS, ids=lambda meta: repr(meta)[:20])
def test_a_meta_that_is_none(client: Any, make: Callable[..., Any], meta: Any) -> None:
    with pytest.raises(ConfigError):
        make(client, "x", meta=meta)


@pytest.mark.parametrize("renew", [None, 0, 1, "yes"])
def test_a_renew_that_is_neither_true_nor_false(client: Any, renew: Any) -> None:
    with pytest.raises(ConfigError):
        client.lock("x", renew=renew)


@pytest.mark.parametrize("limit", BAD_LIMITS, ids=short)
def test_a_limit_that_is_none(client: Any, limit: Any) -> None:
    with pytest.raises(ConfigError):
        client.semaphore("x", limit)


def test_a_config_error_is_a_value_error_of_lockline() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, lockline.LocklineError)


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS, ids=short)
def test_a_timeout_that_is_none_is_found_before_any_request(world: Scene, timeout: Any) -> None:
    alice = world.party()
    faults = Faults(alice)
    with pytest.raises(ConfigError):
        alice.lock("x").acquire(timeout=timeout)
    with pytest.raises(ConfigError):
        alice.client.real.locked("x", timeout=timeout)
    assert faults.calls == []


@pytest.mark.parametrize("ttl", [0, -1, math.nan, True, "x", None])
def test_an_extension_that_is_none_is_found_before_any_request(world: Scene, ttl: Any) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=30).acquire()
    faults = Faults(alice)
    with pytest.raises(ConfigError):
        lease.extend(ttl)
    assert "renew" not in faults.calls
    assert lease.valid
    lease.release()


@pytest.mark.parametrize("name", ["", None, 7, "x" * 513])
def test_a_question_about_a_name_that_is_none(world: Scene, name: Any) -> None:
    alice = world.party()
    for call in (alice.client.inspect, alice.client.evict):
        with pytest.raises(ConfigError):
            call(name)


@pytest.mark.parametrize("callback", [None, 7, "x"])
def test_a_callback_that_cannot_be_called(world: Scene, callback: Any) -> None:
    alice = world.party()
    with alice.lock("x") as lease, pytest.raises(ConfigError):
        lease.on_lost(callback)


def test_a_callback_that_would_have_to_be_awaited(world: Scene) -> None:
    alice = world.party()

    async def stop() -> None: ...

    with alice.lock("x") as lease, pytest.raises(ConfigError, match="plain function"):
        lease.on_lost(stop)


def test_good_arguments_of_every_form(world: Scene) -> None:
    alice = world.party()
    alice.lock("x", 1.5).acquire(timedelta(seconds=1)).release()
    alice.lock("x", ttl=timedelta(minutes=1), renew=False, max_hold=timedelta(hours=1), meta={}).acquire(0).release()
    alice.rlock("x", 3, max_hold=2.5, meta={"a": [1, {"b": None}]}).acquire(timeout=5).release()
    alice.semaphore("x", limit=1 << 20).acquire(timeout=0.5).release()
    lease = alice.lock("x").acquire()
    lease.extend(timedelta(seconds=90))
    assert lease.remaining() > 80
    lease.release()


@pytest.mark.parametrize("target", ["", "nothing", "x://y", "http://localhost", 7, object(), b"memory:", []])
def test_a_target_that_nobody_knows(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for connect in (lockline.connect, aio.connect):
        with pytest.raises(ConfigError):
            connect(target)


@pytest.mark.parametrize("owner", ["", 7, "x" * 257, "\ud800", b"me"])
def test_an_owner_that_is_none(owner: Any) -> None:
    for connect in (lockline.connect, aio.connect):
        with pytest.raises(ConfigError):
            connect("memory:", owner=owner)


def test_an_option_that_the_backend_does_not_know(world: Scene) -> None:
    with pytest.raises(ConfigError, match="option"):
        world.party(no_such_option=1)


def test_the_environment_names_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKLINE_URL", "memory:from-the-environment")
    assert lockline.connect().url == "memory:from-the-environment"
    assert aio.connect().url == "memory:from-the-environment"


@pytest.mark.parametrize("token", [0, -1, True, "7", 1.0, b"1", [1]], ids=short)
def test_a_token_that_is_none(world: Scene, token: Any) -> None:
    alice = world.party()
    faults = Faults(alice)
    with pytest.raises(ConfigError):
        alice.client.evict("x", token=token)
    assert faults.count("evict") == 0
