"""Leaders in processes of their own: on SIGTERM the next one leads at once, and whatever happens no two lead at a time."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest

import lockline
from tests.servers.process import freeze, wait_for

from ..tier import sample
from .conftest import Start, Store, line_of


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_on_sigterm_the_next_one_leads_and_waits_for_no_ttl(start: Start, url: str, flavour: str) -> None:
    ttl = 600
    first = start("leading", flavour, url, ttl)
    term = int(line_of(first))
    second = start("leading", flavour, url, ttl)
    with lockline.connect(url) as client:
        wait_for(lambda: client.inspect("boss").waiters, 60, "one who stands behind")
    first.send_signal(signal.SIGTERM)
    assert int(line_of(second)) > term
    assert first.wait(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_sigterm_while_it_stands_in_the_line_leaves_nothing_there(start: Start, url: str, flavour: str) -> None:
    with lockline.connect(url) as client, client.lock("boss"):
        standing = start("leading", flavour, url, 60)
        wait_for(lambda: client.inspect("boss").waiters, 60, "one who stands behind")
        standing.send_signal(signal.SIGTERM)
        assert standing.wait(60) == 128 + signal.SIGTERM
        wait_for(lambda: not client.inspect("boss").waiters, 60, "an empty line")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "flavour"),
    [
        ("local", "sync"),
        pytest.param("redis", "asyncio", marks=pytest.mark.server),
        *sample([], [("local", "asyncio"), pytest.param("redis", "sync", marks=pytest.mark.server)]),
    ],
    indirect=["store"],
)
def test_no_two_terms_are_valid_at_once_whoever_is_killed_or_frozen(
    start: Start, store: Store, flavour: str, tmp_path: Path
) -> None:
    # Where a server ends claims by a wall clock that may be stepped, so long that no step ends one that lives.
    ttl, rounds = (1.0, sample(8, 16)) if store.url.startswith("local") else (6.0, sample(4, 16))
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    deeds = ["kill", "freeze", "restart", "term"] * (rounds // 4)
    chance.shuffle(deeds)
    files = [tmp_path / f"terms-{number}" for number in range(rounds + 4)]
    spare = iter(files)
    running = [start("leading", flavour, store.url, ttl, next(spare)) for _ in range(4)]
    struck = [0]

    def has_written(token: int) -> bool:
        return any(f"{token} " in file.read_text() for file in files if file.exists())

    with lockline.connect(store.url) as client:

        def wait_for_a_leader() -> None:
            # The store may still show one that is dead: only a term after the last that was struck is one to strike.
            # And it has begun its work: on a busy machine one could be struck down before it wrote a line.
            wait_for(
                lambda: (now := client.leader("boss")) and now.token > struck[-1] and has_written(now.token),
                60,
                f"a leader (seed {seed})",
            )

        for what in deeds:
            wait_for_a_leader()
            leader = client.leader("boss")
            chosen = next((p for p in running if leader and f":{p.pid}" in leader.owner), chance.choice(running))
            if what != "restart" and leader and f":{chosen.pid}" in leader.owner:
                struck.append(leader.token)
            if what == "restart":
                store.restart()
            elif what == "freeze":
                freeze(chosen.pid)
                time.sleep(1.5 * ttl)  # longer than it may trust its term, by its own clock
                os.kill(chosen.pid, signal.SIGCONT)
            else:
                chosen.send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
                chosen.wait(60)
                running[running.index(chosen)] = start("leading", flavour, store.url, ttl, next(spare))
        wait_for_a_leader()
    for process in running:
        process.kill()
        process.wait()
    judge([line for file in files if file.exists() for line in file.read_text().splitlines()], seed)


def judge(lines: list[str], seed: int) -> None:
    """Nobody found its term valid after somebody else had found a higher one valid."""
    seen: dict[int, tuple[float, float]] = {}
    for line in lines:
        words = line.split()
        if len(words) != 3:
            continue  # cut short by a kill
        token, before, after = int(words[0]), float(words[1]), float(words[2])
        last, first = seen.get(token, (before, after))
        seen[token] = max(last, before), min(first, after)
    terms = sorted(seen)
    assert len(terms) > 3, f"seed {seed}"
    for lower, higher in itertools.pairwise(terms):
        assert seen[lower][0] <= seen[higher][1], f"{lower} was valid after {higher} (seed {seed})"


def test_the_judge_finds_two_who_led_at_once() -> None:
    fine = ["1 1.0 1.1", "2 2.0 2.1", "3 3.0 3.1", "4 4.0 4.1"]
    judge(fine, 0)
    with pytest.raises(AssertionError, match="2 was valid after 3"):
        judge([*fine, "2 3.5 3.6"], 0)
