"""Objects in S3 behind a fence: a mark in an object of its own, and every put and delete conditional on what was read.

S3 has no condition over two objects. So the mark turns an old holder away at its next step, and the condition on the
object's ETag catches the one act that had passed the check before the mark went up: it lands before the newer holder's
put or not at all, and if it lands, that put is refused with ReadAgain instead of burying it.

The ETag of a plain object is a digest of its content. Where content comes back, byte for byte (or an object is deleted
that was not there before), the condition cannot tell the second time from the first.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from ..errors import BackendUnavailable, ConfigError, LocklineError
from .file import some_bytes
from .rule import Mark, Offer, a_name, a_resource, offer_of
from .s3marks import ATTEMPTS, CHANGED, S3Marks, is_missing, restless, status_of
from .threads import to_the_end

PREFIX: Final = "lockline-fence/"
TOKEN: Final = "lockline-token"
WRITE: Final = "lockline-write"


class ReadAgain(LocklineError):
    """The object is no longer what this holder read: an act of an older one, under way before, landed. Enter again."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        super().__init__(
            f"{resource!r} changed after it was read; the lease is good: enter again, read again, then put"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.resource,)


@dataclass(frozen=True, slots=True)
class _Seen:
    """An object as it was when looked at."""

    etag: str | None
    """None if there was no object."""
    write: str
    """The number that its put carried, which no other put has."""


NOTHING: Final = _Seen(None, "")


class Entry:
    """One holder inside one object: what it read, and the right to put what follows from that."""

    def __init__(self, fence: S3Fence, key: str, offer: Offer, body: bytes | None, seen: _Seen) -> None:
        self._fence = fence
        self._key = key
        self._offer = offer
        self._seen = seen
        self.body = body
        """The object's content when the holder entered, or as it put it since; None if there is no object."""

    def put(self, body: bytes | str, **options: Any) -> None:
        """Replace what was read. StaleToken if a newer holder has entered, ReadAgain if an older one's act landed."""
        content = some_bytes(body)
        self._seen = self._fence._put(self._key, self._offer, content, options, self._seen)
        self.body = content

    def delete(self) -> None:
        """Take away what was read. StaleToken if a newer holder has entered, ReadAgain if an older one's act landed."""
        self._fence._delete(self._key, self._offer, self._seen)
        self._seen, self.body = NOTHING, None


class S3Fence:
    """Objects of one bucket, by a boto3 client of a store that honours If-Match and If-None-Match on put.

    The client's own errors come out as they are, except where it is not known whether an act was done.
    """

    def __init__(self, client: Any, bucket: str, *, prefix: str = PREFIX) -> None:
        """`prefix` is where the marks lie, in the same bucket: one small object for each that was ever entered."""
        if not hasattr(client, "put_object"):
            raise ConfigError(f"S3Fence takes an S3 client of boto3, not {type(client).__name__}")
        self._client = client
        self._bucket = a_name(bucket, "bucket")
        self._prefix = a_name(prefix, "prefix")
        self._marks = S3Marks(client, self._bucket, self._prefix)
        self._deletes = False

    def enter(self, key: str, holder: Any, *, lock: str | None = None) -> Entry:
        """Raise the mark, then read the object; put what follows from it by the entry. The object is not touched."""
        offer = self._offer(key, holder, lock)
        self._marks.enter(key, offer)
        return Entry(self, key, offer, *self._read(key))

    def put(self, key: str, holder: Any, body: bytes | str, *, lock: str | None = None, **options: Any) -> None:
        """Replace the object by something that does not depend on what was in it; StaleToken if a newer holder was there.

        It is tried again when another put came first and was an older holder's: nothing was read, so nothing is buried.
        """
        offer = self._offer(key, holder, lock)
        self._put(key, offer, some_bytes(body), options, None)

    def delete(self, key: str, holder: Any, *, lock: str | None = None) -> None:
        """Take the object away, whatever is in it, if it is there; StaleToken if a newer holder was there. The mark stays."""
        self._delete(key, self._offer(key, holder, lock), None)

    def verify(self, key: str = "lockline-verify") -> None:
        """ConfigError if this store ignores the condition on a put, as some do: then it protects nothing. Once is enough.

        Writes a small object under that name, which must not be in use, and takes it away again.
        """
        from botocore.exceptions import ClientError

        place = self._place(a_resource(key))
        try:
            self._client.put_object(**place, Body=b"1", IfNoneMatch="*")
            for condition in ({"IfNoneMatch": "*"}, {"IfMatch": OTHER}):
                try:
                    self._client.put_object(**place, Body=b"2", **condition)
                except ClientError as problem:
                    if status_of(problem) in CHANGED:
                        continue
                    raise
                raise ConfigError(f"this store ignores {next(iter(condition))} on a put; S3Fence cannot protect it")
        finally:
            self._client.delete_object(**place)

    def look(self, key: str, lock: str | None = None) -> Mark | None:
        """The mark of this lock at the object; without a lock, of the one named like the object."""
        return self._marks.look(a_resource(key)).get(lock or key)

    # -- one act on one object: the mark, then the condition -----------------------------------------------

    def _offer(self, key: str, holder: Any, lock: str | None) -> Offer:
        if a_resource(key).startswith(self._prefix):
            raise ConfigError(f"{key!r} is where the marks lie; a fence keeps its marks out of reach")
        return offer_of(key, holder, lock)

    def _put(self, key: str, offer: Offer, body: bytes, options: dict[str, Any], read: _Seen | None) -> _Seen:
        for _ in range(ATTEMPTS):
            self._marks.enter(key, offer)
            seen = self._look(key) if read is None else read
            done = self._try_put(key, offer, body, seen, options)
            if done is not None:
                return done
            self._still(key, offer, read)
        raise restless(key)

    def _delete(self, key: str, offer: Offer, read: _Seen | None) -> None:
        self._demand_conditional_delete()
        for _ in range(ATTEMPTS):
            self._marks.enter(key, offer)
            seen = self._look(key) if read is None else read
            if seen.etag is None or self._try_delete(key, seen):
                return
            self._still(key, offer, read)
        raise restless(key)

    def _still(self, key: str, offer: Offer, read: _Seen | None) -> None:
        """ReadAgain if the object is no longer what was read; StaleToken if that was a newer holder's doing."""
        if read is not None and self._look(key) != read:
            self._marks.enter(key, offer)
            raise ReadAgain(key)

    def _try_put(self, key: str, offer: Offer, body: bytes, seen: _Seen, options: dict[str, Any]) -> _Seen | None:
        """The object as put, or None if another was first."""
        from botocore.exceptions import BotoCoreError, ClientError

        write = secrets.token_hex(8)
        # The token is for whoever wonders who wrote this; the fence does not read it.
        metadata = {**options.get("Metadata", {}), TOKEN: str(offer.token), WRITE: write}
        condition = {"IfNoneMatch": "*"} if seen.etag is None else {"IfMatch": seen.etag}
        try:
            answer = self._client.put_object(
                **{**options, **self._place(key), "Body": body, "Metadata": metadata, **condition}
            )
        except (ClientError, BotoCoreError) as problem:
            if _is_final(problem):
                raise
            # Not known whether it was done: no answer came, or boto3 sent it twice and the second found the first.
            # The object itself tells, by a number that no other put has.
            now = self._look_after(key, problem)
            if now.write == write:
                return now
            if now == seen and status_of(problem) not in CHANGED:
                raise BackendUnavailable(
                    f"no answer on the put of {key!r}, and a moment later it had not been done: {problem}"
                ) from problem
            return None
        return _Seen(answer["ETag"], write)

    def _try_delete(self, key: str, seen: _Seen) -> bool:
        """Whether the object is gone; False if it is no longer what was seen."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.delete_object(**self._place(key), IfMatch=seen.etag)
        except (ClientError, BotoCoreError) as problem:
            if _is_final(problem):
                raise
            now = self._look_after(key, problem)
            if now.etag is None:
                return True
            if now == seen and status_of(problem) not in CHANGED:
                raise BackendUnavailable(
                    f"no answer on the delete of {key!r}, and a moment later it had not been done: {problem}"
                ) from problem
            return False
        return True

    def _demand_conditional_delete(self) -> None:
        """ConfigError if this store ignores the condition on a delete: one that comes late would take a newer put away."""
        from botocore.exceptions import ClientError, ParamValidationError

        if self._deletes:
            return
        place = self._place(f"{self._prefix}verify-{secrets.token_hex(8)}")
        self._client.put_object(**place, Body=b"1")
        try:
            self._client.delete_object(**place, IfMatch=OTHER)
        except ParamValidationError as problem:
            raise ConfigError(f"this boto3 knows no condition on a delete; a newer one does ({problem})") from None
        except ClientError as problem:
            if status_of(problem) not in CHANGED:
                raise
            self._deletes = True
        finally:
            self._client.delete_object(**place)
        if not self._deletes:
            raise ConfigError("this store ignores If-Match on a delete; put an empty object instead")

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": key}

    def _read(self, key: str) -> tuple[bytes | None, _Seen]:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.get_object(**self._place(key))
        except ClientError as problem:
            if is_missing(problem):
                return None, NOTHING
            raise
        return answer["Body"].read(), _seen(answer)

    def _look(self, key: str) -> _Seen:
        from botocore.exceptions import ClientError

        try:
            return _seen(self._client.head_object(**self._place(key)))
        except ClientError as problem:
            if status_of(problem) == 404:  # a HEAD has no body that could say more
                return NOTHING
            raise

    def _look_after(self, key: str, problem: Exception) -> _Seen:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return self._look(key)
        except (ClientError, BotoCoreError) as silence:
            raise BackendUnavailable(
                f"no answer on what was done to {key!r}: {problem}; nor on a look at it: {silence}"
            ) from problem


OTHER: Final = '"0123456789abcdef0123456789abcdef"'
"""An ETag that no object has."""


def _seen(answer: dict[str, Any]) -> _Seen:
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    return _Seen(answer["ETag"], metadata.get(WRITE, ""))


def _is_final(problem: Exception) -> bool:
    """Whether the store said no, and nothing was done."""
    status = status_of(problem)
    return 400 <= status < 500 and status not in (404, 408, *CHANGED)


class AsyncS3Fence:
    """The same, awaited: boto3 is waited for in a thread. A cancelled put has ended before the cancel goes on."""

    def __init__(self, client: Any, bucket: str, *, prefix: str = PREFIX) -> None:
        self._fence = S3Fence(client, bucket, prefix=prefix)

    async def enter(self, key: str, holder: Any, *, lock: str | None = None) -> AsyncEntry:
        """Raise the mark, then read the object; put what follows from it by the entry. The object is not touched."""
        return AsyncEntry(await to_the_end(lambda: self._fence.enter(key, holder, lock=lock)))

    async def put(self, key: str, holder: Any, body: bytes | str, *, lock: str | None = None, **options: Any) -> None:
        """Replace the object by something that does not depend on what was in it."""
        await to_the_end(lambda: self._fence.put(key, holder, body, lock=lock, **options))

    async def delete(self, key: str, holder: Any, *, lock: str | None = None) -> None:
        """Take the object away, whatever is in it, if it is there; StaleToken if a newer holder was there."""
        await to_the_end(lambda: self._fence.delete(key, holder, lock=lock))

    async def verify(self, key: str = "lockline-verify") -> None:
        """ConfigError if this store ignores the condition on a put, as some do: then it protects nothing."""
        await to_the_end(lambda: self._fence.verify(key))

    async def look(self, key: str, lock: str | None = None) -> Mark | None:
        """The mark of this lock at the object; without a lock, of the one named like the object."""
        return await to_the_end(lambda: self._fence.look(key, lock))


class AsyncEntry:
    """One holder inside one object, awaited."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    @property
    def body(self) -> bytes | None:
        """The object's content when the holder entered, or as it put it since; None if there is no object."""
        return self._entry.body

    async def put(self, body: bytes | str, **options: Any) -> None:
        """Replace what was read. StaleToken if a newer holder has entered, ReadAgain if an older one's act landed."""
        await to_the_end(lambda: self._entry.put(body, **options))

    async def delete(self) -> None:
        """Take away what was read. StaleToken if a newer holder has entered, ReadAgain if an older one's act landed."""
        await to_the_end(self._entry.delete)
