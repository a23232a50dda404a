"""The mark at S3 never goes back, is there before the object is, and stays when the object has gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lockline import ConfigError, StaleToken
from lockline.fence import AsyncS3Fence, ReadAgain, S3Fence

from .test_s3 import content, key, s3

pytestmark = pytest.mark.server

__all__ = ["key", "s3"]


class Slow:
    """A client whose next put or delete of one key stops at the door of the store until it is let through."""

    def __init__(self, client: Any, key: str, *names: str) -> None:
        self._client = client
        self._key = key
        self._names = names
        self.stopped = threading.Event()
        self.go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._client, name)
        if name not in self._names:
            return act

        def later(**options: Any) -> Any:
            if options["Key"] == self._key and not self.stopped.is_set():
                self.stopped.set()
                assert self.go.wait(60)
            return act(**options)

        return later


class Late:
    """A holder whose act is under way, and ends when it is let through."""

    def __init__(self, client: Slow, act: Callable[[], object]) -> None:
        self._client = client
        self._problem: list[BaseException] = []

        def work() -> None:
            try:
                act()
            except BaseException as problem:
                self._problem.append(problem)

        self._thread = threading.Thread(target=work)
        self._thread.start()
        assert client.stopped.wait(60)

    def lands(self) -> BaseException | None:
        """Let it through; the error it ended with."""
        self._client.go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self._problem[0] if self._problem else None


def test_a_put_that_was_under_way_does_not_take_the_mark_back(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    fence.enter(key, 1).put(b"0")
    slow = Slow(s3, key, "put_object")
    entry = S3Fence(slow, "bucket").enter(key, 5)
    late = Late(slow, lambda: entry.put(b"five, late"))
    newer = fence.enter(key, 7)
    assert newer.body == b"0"
    # It had passed its check before 7 came. It is the last of 5, and 7 is told of it instead of burying it.
    assert late.lands() is None
    assert fence.look(key) == (7, "")
    with pytest.raises(StaleToken):
        entry.put(b"five again")
    for token in (5, 6):
        with pytest.raises(StaleToken):
            fence.put(key, token, b"late")
        with pytest.raises(StaleToken):
            fence.enter(key, token)
    with pytest.raises(ReadAgain):
        newer.put(b"from 0")
    again = fence.enter(key, 7)
    assert again.body == b"five, late"
    again.put(b"seven")
    assert content(s3, key) == b"seven"


def test_a_mark_that_was_on_its_way_does_not_take_a_higher_one_back(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    slow = Slow(s3, f"lockline-fence/{key}", "put_object")
    late = Late(slow, lambda: S3Fence(slow, "bucket").enter(key, 5))
    fence.enter(key, 7)
    assert isinstance(late.lands(), StaleToken)
    assert fence.look(key) == (7, "")


def test_a_newer_holder_of_an_object_that_is_not_there_keeps_older_ones_out(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    old = fence.enter(key, 5)
    newer = fence.enter(key, 7)
    assert newer.body is None
    with pytest.raises(StaleToken):
        old.put(b"late")
    with pytest.raises(StaleToken):
        fence.put(key, 6, b"late")
    assert content(s3, key) is None
    newer.put(b"seven")
    assert content(s3, key) == b"seven"


def test_two_who_create_an_object_do_not_bury_each_other(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    slow = Slow(s3, key, "put_object")
    old = S3Fence(slow, "bucket").enter(key, 5)
    late = Late(slow, lambda: old.put(b"old"))
    newer = fence.enter(key, 6)
    assert late.lands() is None
    with pytest.raises(ReadAgain):
        newer.put(b"new")
    fence.put(key, 6, b"blind")
    with pytest.raises(StaleToken):
        old.put(b"late")
    assert content(s3, key) == b"blind"


def test_a_holder_deletes_and_an_older_one_neither_deletes_nor_writes_again(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    old = fence.enter(key, 5)
    old.put(b"five")
    newer = fence.enter(key, 6)
    for act in (old.delete, lambda: fence.delete(key, 5)):
        with pytest.raises(StaleToken):
            act()
    assert content(s3, key) == b"five"
    newer.delete()
    assert (newer.body, content(s3, key)) == (None, None)
    with pytest.raises(StaleToken):
        fence.put(key, 5, b"late")
    assert fence.look(key) == (6, "")
    newer.put(b"six")
    fence.delete(key, 6)
    fence.delete(key, 6)
    assert content(s3, key) is None
    listed = s3.list_objects_v2(Bucket="bucket", Prefix="lockline-fence/verify-")
    assert "Contents" not in listed, "what was tried once is taken away again"


@pytest.mark.parametrize("blind", [False, True], ids=["of what was read", "of whatever is there"])
def test_a_delete_that_was_under_way_does_not_take_a_newer_put_away(s3: Any, key: str, blind: bool) -> None:
    fence = S3Fence(s3, "bucket")
    fence.put(key, 1, b"0")
    slow = Slow(s3, key, "delete_object")
    old = S3Fence(slow, "bucket")
    entry = old.enter(key, 5)
    late = Late(slow, (lambda: old.delete(key, 5)) if blind else entry.delete)
    fence.enter(key, 7).put(b"seven")
    assert isinstance(late.lands(), StaleToken)
    assert content(s3, key) == b"seven"


class IgnoresDelete:
    """A client of a store that deletes whatever the condition says."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def delete_object(self, **options: Any) -> Any:
        options.pop("IfMatch", None)
        return self._client.delete_object(**options)


def test_no_delete_where_the_store_ignores_its_condition(s3: Any, key: str) -> None:
    fence = S3Fence(IgnoresDelete(s3), "bucket")
    fence.put(key, 5, b"five")
    acts: list[Callable[[], None]] = [lambda: fence.delete(key, 5), fence.enter(key, 5).delete]
    for act in acts:
        with pytest.raises(ConfigError, match="ignores If-Match on a delete"):
            act()
    assert content(s3, key) == b"five"


def test_two_locks_count_apart_at_one_object(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    fence.put(key, 9, b"1", lock="one")
    fence.put(key, 3, b"2", lock="two")
    with pytest.raises(StaleToken):
        fence.put(key, 8, b"late", lock="one")
    assert (fence.look(key, "one"), fence.look(key, "two")) == ((9, ""), (3, ""))


def test_the_same_awaited(s3: Any, key: str) -> None:
    async def story() -> None:
        fence = AsyncS3Fence(s3, "bucket")
        await fence.verify()
        old = await fence.enter(key, 5)
        await old.put(b"one")
        newer = await fence.enter(key, 6)
        with pytest.raises(StaleToken):
            await old.delete()
        with pytest.raises(StaleToken):
            await fence.delete(key, 5)
        await newer.delete()
        assert await fence.look(key) == (6, "")
        await fence.delete(key, 6)
        assert newer.body is None

    asyncio.run(story())
