"""Every backend does, step by step, what `memory:` does.

`pytest tests/property --backend redis` runs one of them. A failure prints the program that shows the difference;
`--hypothesis-seed=N` repeats a run, `LOCKLINE_SHRINK=1` looks for the shortest program that fails, and `LOCKLINE_EXAMPLES=5000`
makes a long search of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from lockline.core.claim import WHOLE
from tests.contract.opened import Opened, chosen

from .model import CLIENTS, LONG, SHORT, Duel

EXAMPLES = int(os.environ.get("LOCKLINE_EXAMPLES", "0"))
"""Programs per backend and flavour; by default as many as a few seconds allow."""
SHRINK = bool(os.environ.get("LOCKLINE_SHRINK"))

clients = st.integers(0, CLIENTS - 1)
names = st.sampled_from(["a", "a", "a", "b{}/ü"])
which = st.integers(0, 15)
# A lock, permits of several limits, readers and writers: all on the same names, so that they also meet each other.
wishes = st.sampled_from(
    [
        ("lock", 1, 1),
        ("permit", 1, 2),
        ("permit", 1, 3),
        ("read", 1, WHOLE),
        ("read", 1, WHOLE),
        ("write", WHOLE, WHOLE),
    ]
)
enter = st.tuples(st.just("enter"), clients, names, wishes, st.sampled_from([SHORT, SHORT, LONG]), st.booleans())
other = st.one_of(
    st.tuples(st.just("enter again"), which),
    st.tuples(st.just("leave"), which),
    st.tuples(st.just("leave"), which),
    st.tuples(st.just("leave"), which),
    st.tuples(st.just("renew"), clients, st.sets(which, max_size=4), st.booleans()),
    st.tuples(st.just("evict"), clients, names),
    st.tuples(st.just("hand over"), clients, which),
    st.tuples(st.just("time passes")),
    st.tuples(st.just("crash"), clients),
)


@st.composite
def programs(draw: Any, longest: int) -> list[tuple[Any, ...]]:
    """As many steps as the first number says: lists of hypothesis' own are mostly too short to fill a line."""
    # Half of all steps let somebody in: a line of one tells nothing about the rule.
    return [draw(enter if draw(st.booleans()) else other) for _ in range(draw(st.integers(0, longest)))]


def perform(duel: Duel, step: tuple[Any, ...]) -> None:
    match step:
        case ("enter", client, name, (kind, weight, capacity), ttl, wait):
            duel.enter(client, name, kind, weight, capacity, ttl, wait)
        case ("enter again", number) if duel.claims:
            duel.enter_again(duel.claims[number % len(duel.claims)])
        case ("leave", number) if duel.claims:
            duel.leave(duel.claims[number % len(duel.claims)])
        case ("hand over", client, number) if duel.claims:
            duel.hand_over(client, duel.claims[number % len(duel.claims)])
        case ("renew", client, numbers, lighter) if duel.claims:
            some = {number % len(duel.claims) for number in numbers}
            duel.renew(client, [duel.claims[number] for number in sorted(some)], lighter)
        case ("evict", client, name):
            duel.evict(client, name)
        case ("time passes",):
            duel.pass_time()
        case ("crash", client):
            duel.crash(client)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    params = [
        pytest.param(
            (name, flavour),
            id=f"{name}-{flavour}",
            marks=world.marks if world.runtime_clock else (*world.marks, pytest.mark.slow),
        )
        for name, world in chosen(metafunc.config).items()
        if world.has_lines
        for flavour in world.flavours
    ]
    metafunc.parametrize("duel", params, indirect=True)


@pytest.fixture
def duel(request: pytest.FixtureRequest, opened_worlds: Opened) -> Iterator[Duel]:
    name, flavour = request.param
    duel = Duel(opened_worlds.get(name), flavour)
    yield duel
    duel.close()


def test_random_programs_find_no_difference_to_memory(duel: Duel) -> None:
    @settings(
        max_examples=EXAMPLES or (150 if duel.virtual else 6),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        # To find the shortest program that fails can take minutes; without being asked, the first one will do.
        phases=list(Phase) if SHRINK else [Phase.explicit, Phase.generate],
    )
    @given(programs(longest=40 if duel.virtual else 25))
    def search(program: list[tuple[Any, ...]]) -> None:
        duel.begin()
        try:
            for step in program:
                perform(duel, step)
                duel.compare()
        except AssertionError:
            if duel.out_of_step():
                reject()
            raise
        finally:
            duel.end()

    search()
