"""Every backend does, step by step, what `memory:` does.

`pytest tests/property --backend redis` runs one of them. A failure prints the program that shows the difference;
`LOCKLINE_SEED=N` repeats a run, `LOCKLINE_SHRINK=1` looks for the shortest program that fails, and `LOCKLINE_EXAMPLES=5000`
makes a long search of it.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from lockline.core.claim import WHOLE
from tests.contract.conftest import flavours
from tests.contract.opened import Opened, chosen
from tests.contract.worlds import World
from tests.tier import SEED, sample

from .model import CLIENTS, LONG, SHORT, Duel

EXAMPLES = int(os.environ.get("LOCKLINE_EXAMPLES", "0"))
"""Programs per backend and flavour; by default as many as a few seconds allow."""
SHRINK = bool(os.environ.get("LOCKLINE_SHRINK"))
SIDE_BY_SIDE = 8
"""Programs that run beside each other on a store with a clock of its own: most of their time they wait for a ttl to pass."""

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
        for flavour in flavours(world, [], "property")
    ]
    metafunc.parametrize("duels", params, indirect=True)


@pytest.fixture
def duels(request: pytest.FixtureRequest, opened_worlds: Opened) -> Iterator[Duels]:
    name, flavour = request.param
    with Duels(opened_worlds.get(name), flavour) as duels:
        yield duels


class Duels:
    """Duels on one store: one at a time where both sides run on a virtual clock, and several beside each other where time is real."""

    def __init__(self, world: World, flavour: str) -> None:
        self._world, self._flavour = world, flavour
        self._free: queue.SimpleQueue[Duel] = queue.SimpleQueue()
        self._made: list[Duel] = []
        self.virtual = world.runtime_clock

    def __enter__(self) -> Duels:
        for _ in range(1 if self.virtual else SIDE_BY_SIDE):
            self._made.append(Duel(self._world, self._flavour))
            self._free.put(self._made[-1])
        return self

    def __exit__(self, *_: object) -> None:
        for duel in self._made:
            duel.close()

    def fight(self, program: list[tuple[Any, ...]]) -> bool:
        """Run one program; False where the machine was too slow for it to show anything."""
        duel = self._free.get()
        try:
            duel.begin()
            for step in program:
                perform(duel, step)
                duel.compare()
        except AssertionError as difference:
            if duel.out_of_step():
                return False
            difference.add_note(f"seed {SEED}, program {program}")
            raise
        finally:
            duel.end()
            self._free.put(duel)
        return True


def test_random_programs_find_no_difference_to_memory(duels: Duels) -> None:
    drawn: list[list[tuple[Any, ...]]] = []

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES or (sample(150, 1000) if duels.virtual else sample(12, 100)),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        # To find the shortest program that fails can take minutes; without being asked, the first one will do.
        phases=list(Phase) if SHRINK else [Phase.explicit, Phase.generate],
    )
    @given(programs(longest=40 if duels.virtual else 25))
    def draw(program: list[tuple[Any, ...]]) -> None:
        if SHRINK:
            duels.fight(program)
        else:
            drawn.append(program)

    draw()
    with ThreadPoolExecutor(1 if duels.virtual else SIDE_BY_SIDE) as pool:
        for _ in pool.map(duels.fight, drawn):
            pass
