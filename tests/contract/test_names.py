"""Names are any non-empty text up to 512 bytes of UTF-8, and each is its own line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from .scene import A_MINUTE, Scene

NAMES = {
    "slashes": "orders/42/items",
    "braces": "{order}:{42}",
    "one brace": "a}b{c",
    "empty braces": "{}x{}",
    "spaces": " a  name with\tspaces ",
    "new lines": "one\ntwo\r\nthree",
    "unicode": "заказ-№42-注文-🔒",
    "combining": "e\u0301 is not \u00e9",
    "nul": "a\x00b",
    "percent": "100%25 %s %d",
    "quotes": 'it\'s "quoted" `so` $HOME; DROP TABLE claims; --',
    "glob": "a*b?[c]",
    "dots": "../../etc/passwd",
    "dot": ".",
    "slash": "/",
    "backslash": "a\\b",
    "underscore": "_",
    "512 bytes": "x" * 512,
    "512 bytes of unicode": "ü" * 256,
    "512 bytes of emoji": "🔒" * 128,
}


@pytest.fixture
def tried() -> Iterator[list[str]]:
    """The names that were tried, for a failing test to tell the last of them."""
    names: list[str] = []
    yield names
    if names and names[-1] != list(NAMES)[-1]:
        print(f"with {names[-1]}")


def test_a_name_of_any_kind(world: Scene, tried: list[str]) -> None:
    alice, bob = world.party(), world.party()
    for kind, name in NAMES.items():
        tried.append(kind)
        lease = alice.lock(name).acquire(timeout=A_MINUTE)
        assert lease.name == name
        assert bob.lock(name).try_acquire() is None
        (waits,) = world.queue_up(name, partial(bob.lock(name).acquire.start))
        assert world.names() == [name]
        line = world.line(name)
        assert line.name == name
        assert [claim.holds for claim in line.claims] == [True, False]
        lease.release()
        granted = waits.result()
        assert granted.token > lease.token
        assert world.evict(name) == 1
        with pytest.raises(Exception, match="lost"):
            granted.release()
        alice.rlock(name).acquire(timeout=A_MINUTE).release()
        assert world.names() == []


@pytest.mark.needs("read_write", "semaphores")
def test_readers_writers_and_permits_of_a_name_of_any_kind(world: Scene, tried: list[str]) -> None:
    alice = world.party()
    for kind, name in NAMES.items():
        tried.append(kind)
        for lock in (alice.read(name), alice.write(name), alice.semaphore(name, limit=2)):
            lock.acquire(timeout=A_MINUTE).release()
        assert world.names() == []


def test_names_that_look_alike_are_different_lines(world: Scene) -> None:
    alice = world.party()
    names = ["a", "A", "a ", " a", "a/", "/a", "a\x00", "{a}", "a:", "é", "e\u0301", "a/b", "a%2Fb", "b"]
    leases = [alice.lock(name).acquire(timeout=A_MINUTE) for name in names]
    assert world.names() == sorted(names)
    for lease in leases:
        lease.release()


def test_list_takes_a_prefix_to_the_letter(world: Scene) -> None:
    alice = world.party()
    names = ["app/a", "app/b", "app", "apple", "other", "app*", "%", "_x", "ap_"]
    leases = [alice.lock(name).acquire() for name in names]
    assert alice.client.list() == sorted(names)
    assert alice.client.list("app/") == ["app/a", "app/b"]
    assert alice.client.list(prefix="app") == sorted(["app/a", "app/b", "app", "apple", "app*"])
    assert alice.client.list("app*") == ["app*"]
    assert alice.client.list("%") == ["%"]
    assert alice.client.list("_") == ["_x"]
    assert alice.client.list("nobody") == []
    for lease in leases:
        lease.release()
    assert alice.client.list() == []
