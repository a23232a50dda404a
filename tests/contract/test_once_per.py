"""Once per period: in each slot of the store's time one caller runs it, the others find it running or done."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

import lockline
from lockline import AcquireTimeout, ConfigError, LeaseLost, aio

from .faults import Faults
from .parties import LONG, Party
from .scene import A_MINUTE, Scene

A_DAY = "1d"


def refresh() -> None: ...


async def refresh_later() -> None: ...


class OwnError(Exception):
    """What goes wrong in a job."""


class Job:
    """A job that notes its runs, and lasts until it is told to end."""

    def __init__(self, flavour: str, lasts: bool = False) -> None:
        self.flavour = flavour
        self.runs = 0
        self.error: Exception | None = None
        self.over = threading.Event()
        if not lasts:
            self.over.set()

    def on(self, party: Party, *period: Any, **options: Any) -> Callable[[], Any]:
        """The decorated job, begun by this party."""
        decorate = party.client.real.once_per(*period, **{"name": "job", **options})
        return decorate(self._blocking if self.flavour == "sync" else self._looping)  # type: ignore[no-any-return]

    def _blocking(self) -> int:
        self.runs += 1
        self.over.wait(A_MINUTE)
        if self.error is not None:
            raise self.error
        return self.runs

    async def _looping(self) -> int:
        self.runs += 1
        while not self.over.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.002)
        if self.error is not None:
            raise self.error
        return self.runs


@pytest.mark.lacks("keeps_values")
def test_a_store_that_keeps_nothing_says_which_can(world: Scene) -> None:
    with pytest.raises(ConfigError, match=r"redis://.*postgresql://"):
        world.party().client.real.once_per(A_DAY)


@pytest.mark.needs("keeps_values")
def test_one_runs_it_and_the_next_one_finds_it_done(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    job = Job(world.flavour)
    run = alice.do(job.on(alice, A_DAY))
    assert (run.state, run.value, run.missed, bool(run)) == ("ran", 1, None, True)
    again = bob.do(job.on(bob, A_DAY))
    assert (again.state, again.value, again.missed, bool(again)) == ("done", None, 0, False)
    assert again.slot == run.slot == int(time.time() / 86400 + 0.5)
    assert job.runs == 1
    assert world.names() == []


@pytest.mark.needs("keeps_values")
def test_the_others_skip_it_while_it_runs(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    job = Job(world.flavour, lasts=True)
    running = alice.begin(job.on(alice, A_DAY))
    world.wait_for(lambda: job.runs == 1)
    assert bob.do(job.on(bob, A_DAY)).state == "running"
    with pytest.raises(AcquireTimeout, match="alice"):
        bob.do(job.on(bob, A_DAY, on_busy="raise"))
    job.over.set()
    assert running.result().state == "ran"
    assert job.runs == 1


@pytest.mark.needs("keeps_values")
def test_one_who_waits_finds_it_done_when_the_run_ends(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    job = Job(world.flavour, lasts=True)
    running = alice.begin(job.on(alice, A_DAY))
    world.wait_for(lambda: job.runs == 1)
    waiting = bob.begin(job.on(bob, A_DAY, on_busy="wait"))
    world.wait_for_line("job", waiters=1)
    job.over.set()
    assert running.result().state == "ran"
    assert waiting.result().state == "done"
    assert job.runs == 1


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_a_run_that_failed_frees_its_slot(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    job = Job(world.flavour)
    job.error = OwnError("not today")
    with pytest.raises(OwnError):
        alice.do(job.on(alice, A_DAY))
    job.error = None
    assert bob.do(job.on(bob, A_DAY)).state == "ran"
    assert job.runs == 2


@pytest.mark.needs("keeps_values")
def test_the_next_slot_is_run_again_and_says_how_many_were_missed(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    job = Job(world.flavour)
    first = alice.do(job.on(alice, 0.1))
    time.sleep(0.35)
    second = bob.do(job.on(bob, 0.1))
    assert (first.state, second.state) == ("ran", "ran")
    assert second.missed == second.slot - first.slot - 1 >= 2


@pytest.mark.needs("keeps_values")
def test_slots_of_ones_own_are_made_of_the_stores_time(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    job = Job(world.flavour)
    asked: list[datetime] = []

    def month(now: datetime) -> str:
        asked.append(now)
        return f"{now:%Y-%m}"

    run = alice.do(job.on(alice, slot=month))
    assert (run.state, run.slot) == ("ran", f"{asked[0]:%Y-%m}")
    assert abs(asked[0].timestamp() - time.time()) < 60
    assert asked[0].utcoffset() is not None
    assert bob.do(job.on(bob, slot=month)).state == "done"
    assert bob.do(job.on(bob, slot=lambda now: "another")).state == "ran"


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_whole_numbers_of_ones_own_may_begin_again(world: Scene) -> None:
    """The day of the month, the hour: after 31 comes 1, and it is no slot that was done."""
    alice, bob = world.party(), world.party()
    job = Job(world.flavour)
    for slot in (30, 31, 1, 2):
        assert alice.do(job.on(alice, slot=lambda now, slot=slot: slot)).state == "ran"
        assert bob.do(job.on(bob, slot=lambda now, slot=slot: slot)).state == "done"


@pytest.mark.needs("keeps_values")
def test_an_old_run_cannot_say_that_it_is_done_once_another_one_has_begun(world: Scene) -> None:
    """The holder loses its lease in the middle; the next one has arrived, and not finished yet, when it wakes."""
    alice, bob = world.party(), world.party()
    old, new = Job(world.flavour, lasts=True), Job(world.flavour, lasts=True)
    frozen = alice.begin(old.on(alice, A_DAY, ttl=LONG))
    world.wait_for(lambda: old.runs == 1)
    # So that nothing tells it of the loss, as if it were frozen.
    Faults(alice).fail("renew", times=None)
    world.evict("job")
    running = bob.begin(new.on(bob, A_DAY))
    world.wait_for(lambda: new.runs == 1)
    old.over.set()
    with pytest.raises(LeaseLost):
        frozen.result()
    assert world.line("job").holders, "the new run goes on"
    new.over.set()
    assert running.result().state == "ran"


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_names_keep_jobs_apart(world: Scene) -> None:
    alice = world.party()
    job = Job(world.flavour)
    for name in ("one", "two", lambda: "three", lambda: "one"):
        alice.do(job.on(alice, A_DAY, name=name))
    assert job.runs == 3


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_a_function_has_a_name_of_its_own(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    function = refresh if world.flavour == "sync" else refresh_later
    for party, state in ((alice, "ran"), (bob, "done")):
        decorated = party.client.real.once_per(A_DAY)(function)
        assert decorated.__name__ == function.__name__
        assert party.do(decorated).state == state


@pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
def test_what_is_wrong_is_said_before_any_request(connect: type) -> None:
    client = connect("memory:once-per")
    for period in (None, 0, -1, "", "15", "15 minutes", "-1h", True, "1w"):
        if period != "15":
            with pytest.raises(ConfigError):
                client.once_per(period)
    for wrong in ({"slot": str}, {"on_busy": "later"}, {"name": ""}, {"name": 5}, {"ttl": 0}, {"timeout": -1}):
        with pytest.raises(ConfigError):
            client.once_per("15m", **wrong)
    with pytest.raises(ConfigError):
        client.once_per(slot=5)

    async def coroutine() -> None: ...

    def function() -> None: ...

    def generator() -> Any:
        yield

    for wrong_kind in (generator, 5, function if connect is aio.connect else coroutine):
        with pytest.raises(ConfigError):
            client.once_per("15m")(wrong_kind)
