"""What a client notes of its claims outlives no cut: an exception between any two instructions of the core leaves no entry behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from lockline import AcquireTimeout, BackendUnavailable
from tests.cutting import Cut, CutAt, Misread
from tests.servers.process import wait_for
from tests.tier import sample

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning"
)

TTL = 60.0


@pytest.fixture
def clients() -> Iterator[tuple[lockline.Client, lockline.Client]]:
    with lockline.connect("memory:") as client, lockline.connect("memory:") as other:
        yield client, other


def left(client: lockline.Client) -> dict[str, object]:
    """What the client still has in one of its books, by the name of that."""
    engine = client._engine
    keeper = engine._keeper
    books = {
        "books": keeper.books, "kept": keeper._kept, "mine": engine._mine, "exclusive": engine._exclusive,
        "slots": vars(keeper.hints._mailbox)["_slots"], "early": keeper.hints.early, "debts": keeper.removals._debts,
    }  # fmt: skip
    return {name: dict.fromkeys(book) for name, book in books.items() if book}


def nothing_is_left(client: lockline.Client) -> None:
    """The keeper may have something to give back first."""
    try:
        wait_for(lambda: not left(client), 60, "an end of all claims")
    except AssertionError as problem:
        problem.add_note(str(left(client)))
        raise


def cut_everywhere(
    make: Callable[[str], Callable[[], Any]], after: Callable[[], object] = lambda: None, *, apart: int
) -> None:
    """Do what is made for each name, cut before each instruction of the core in turn: in the full run at each, elsewhere at one of so many."""
    whole = CutAt(-1, inside="/lockline/core/")
    whole.elsewhere(make("whole"))
    after()
    for nth in range(1, whole.seen + 1, sample(apart, 1)):
        work, cut = make(f"x{nth}"), CutAt(nth, inside="/lockline/core/")

        def run(work: Callable[[], Any] = work, cut: CutAt = cut) -> None:
            try:
                cut(work)
            except (Cut, Misread):
                pass

        CutAt(-1).elsewhere(run)
        after()
    gc.collect()


def test_no_book_keeps_a_claim_whose_block_was_cut(clients: tuple[lockline.Client, lockline.Client]) -> None:
    client, _ = clients

    def make(name: str) -> Callable[[], None]:
        def work() -> None:
            with client.lock(name, ttl=TTL):
                pass

        return work

    cut_everywhere(make, apart=3)
    nothing_is_left(client)


@pytest.mark.slow
def test_no_book_keeps_a_claim_whose_wait_was_cut(clients: tuple[lockline.Client, lockline.Client]) -> None:
    client, other = clients
    held: list[lockline.Lease] = []

    def make(name: str) -> Callable[[], None]:
        held.append(other.lock(name, ttl=TTL).acquire())

        def work() -> None:
            try:
                client.lock(name, ttl=TTL).acquire(timeout=0.001)
            except (AcquireTimeout, BackendUnavailable):
                pass

        return work

    cut_everywhere(make, lambda: held.pop().release(), apart=6)
    nothing_is_left(client)


def test_a_lease_that_looks_good_after_its_release_was_cut_is_kept(
    clients: tuple[lockline.Client, lockline.Client],
) -> None:
    """Either it was not begun, and all goes on as before, or it is given back: nothing in between."""
    client, _ = clients
    kept = client._engine._keeper._kept
    leases: list[lockline.Lease] = []
    good: list[bool] = []

    def make(name: str) -> Callable[[], None]:
        lease = client.lock(name, ttl=TTL).acquire()
        leases.append(lease)
        return lease.release

    def look() -> None:
        lease = leases.pop()
        good.append(lease.valid)
        if lease.valid:
            assert lease.id in kept
            lease.release()

    cut_everywhere(make, look, apart=1)
    assert set(good) == {True, False}
    nothing_is_left(client)
