"""Redlock in the contract suite: a majority of three, and of five, independent servers."""

from __future__ import annotations

import os
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.redlock.servers import Servers

from .worlds import World, joins

NOT_PROMISED = {
    "test_a_grant_that_is_pushed_is_trusted_only_as_far_as_the_last_renewal": "a waiter wins by a request of its own",
    "test_a_grant_that_was_evicted_before_it_was_heard_of_is_no_loss": "a waiter wins by a request of its own, and hears at once",
    "test_a_waiter_is_not_evicted_by_its_ticket": "a waiter stands in no line, and so has no ticket",
    "test_a_thousand_locks_and_a_thousand_waiters_are_granted_in_order": "redlock has no order",
}
"""Tests of what redlock does not promise (`guarantees.fifo` is False), each with the reason why it cannot."""


class RedlockWorld(World):
    """Each test has a prefix of its own. Semaphores and read-write locks are refused."""

    marks = (pytest.mark.server,)
    lacks: ClassVar[frozenset[str]] = frozenset({"semaphore", "read-write lock"})
    has_lines = False
    patience = 3.0
    size: ClassVar[int]

    def open(self) -> None:
        self.servers = Servers(self.folder, self.size).start().set_up(longest=60 * 86400.0)

    def close(self) -> None:
        self.servers.stop()

    def place(self) -> str:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2].partition("[")[0]
        if test in NOT_PROMISED:
            pytest.skip(NOT_PROMISED[test])
        return f"{self.servers.url}?prefix={self.unique()}/"

    def debris(self, place: str) -> list[str]:
        """Whatever stays at any node; tombstones have a ttl and no name, so they are not seen here."""
        (prefix,) = parse_qs(urlsplit(place).query)["prefix"]
        return sorted({key for keys in self.servers.left_over(f"lockline:redlock:*:{prefix}*") for key in keys})


@joins
class RedlockOfThree(RedlockWorld):
    name = "redlock-3"
    size = 3


@joins
class RedlockOfFive(RedlockWorld):
    name = "redlock-5"
    size = 5
