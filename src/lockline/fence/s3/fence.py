"""Objects in S3 behind a fence: a mark in an object of its own, and every put and delete conditional on what was read.

S3 has no condition over two objects. So the mark turns an old holder away at its next step, and the condition on the
object's ETag catches the one act that had passed the check before the mark went up: it lands before the newer holder's
put or not at all, and if it lands, that put is refused with ReadAgain instead of burying it.

The ETag of a plain object is a digest of its content. Where content comes back, byte for byte (or an object is deleted
that was not there before), the condition cannot tell the second time from the first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...errors import BackendUnavailable, ConfigError, LocklineError
from ..rule import Mark, Offer, a_body, a_name, a_resource, offer_of
from ..threads import awaited, to_the_end
from .bucket import ATTEMPTS, CHANGED, Bucket, Doubt, restless, status_of
from .marks import S3Marks

PREFIX: Final = "lockline-fence/"
TOKEN: Final = "lockline-token"
WRITE: Final = "lockline-write"
OTHER: Final = '"0123456789abcdef0123456789abcdef"'
"""An ETag that no object has."""


class ReadAgain(LocklineError):
    """The object is no longer what this holder read: an act of an older one, under way before, landed. Enter again."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        super().__init__(
            f"{resource!r} changed after it was read; the lease is good: enter again, read again, then put"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.resource,)


class ObjectVersion(NamedTuple):
    """An object as it was when looked at."""

    etag: str | None
    """None if there was no object."""
    write: str
    """The number that its put carried, which no other put has."""


NOTHING: Final = ObjectVersion(None, "")


class Entry:
    """One holder inside one object: what it read, and the right to put what follows from that."""

    def __init__(self, fence: S3Fence, key: str, offer: Offer, body: bytes | None, seen: ObjectVersion) -> None:
        self._fence = fence
        self._key = key
        self._offer = offer
        self._seen = seen
        self.body = body
        """The object's content when the holder entered, or as it put it since; None if there is no object."""

    def put(self, /, body: bytes | str, **options: Any) -> None:
        """Replace what was read. StaleToken if a newer holder has entered, ReadAgain if an older one's act landed."""
        content = a_body(body)
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
        self._bucket = Bucket(client, a_name(bucket, "bucket"))
        self._prefix = a_name(prefix, "prefix")
        self._marks = S3Marks(self._bucket, self._prefix)
        self._deletes = False

    def enter(self, key: str, holder: Any, *, lock: str | None = None) -> Entry:
        """Raise the mark, then read the object; put what follows from it by the entry. The object is not touched."""
        offer = self._offer(key, holder, lock)
        self._marks.enter(key, offer)
        found = self._bucket.get(key)
        return Entry(self, key, offer, None if found is None else found["Body"].read(), _seen(found))

    def put(self, /, key: str, holder: Any, body: bytes | str, *, lock: str | None = None, **options: Any) -> None:
        """Replace the object by something that does not depend on what was in it; StaleToken if a newer holder was there.

        It is tried again when another put came first and was an older holder's: nothing was read, so nothing is buried.
        """
        offer = self._offer(key, holder, lock)
        self._put(key, offer, a_body(body), options, None)

    def delete(self, key: str, holder: Any, *, lock: str | None = None) -> None:
        """Take the object away, whatever is in it, if it is there; StaleToken if a newer holder was there. The mark stays."""
        self._delete(key, self._offer(key, holder, lock), None)

    def verify(self, key: str = "lockline-verify") -> None:
        """ConfigError if this store ignores the condition on a put, as some do: then it protects nothing. Once is enough.

        Writes a small object under that name, which must not be in use, and takes it away again.
        """
        place, client = self._bucket.place(a_resource(key)), self._bucket.client
        try:
            client.put_object(**place, Body=b"1", IfNoneMatch="*")
            for condition in ({"IfNoneMatch": "*"}, {"IfMatch": OTHER}):
                try:
                    client.put_object(**place, Body=b"2", **condition)
                except Exception as problem:
                    if status_of(problem) not in CHANGED:
                        raise
                else:
                    raise ConfigError(f"this store ignores {next(iter(condition))} on a put; S3Fence cannot protect it")
        finally:
            client.delete_object(**place)

    def look(self, key: str, lock: str | None = None) -> Mark | None:
        """The mark of this lock at the object; without a lock, of the one named like the object."""
        return self._marks.look(a_resource(key)).get(lock or key)

    # -- one act on one object: the mark, then the condition -----------------------------------------------

    def _offer(self, key: str, holder: Any, lock: str | None) -> Offer:
        if a_resource(key).startswith(self._prefix):
            raise ConfigError(f"{key!r} is where the marks lie; a fence keeps its marks out of reach")
        return offer_of(key, holder, lock)

    def _put(
        self, key: str, offer: Offer, body: bytes, options: dict[str, Any], read: ObjectVersion | None
    ) -> ObjectVersion:
        def put(seen: ObjectVersion) -> ObjectVersion | None:
            write = secrets.token_hex(8)
            # The token is for whoever wonders who wrote this; the fence does not read it.
            metadata = {**options.get("Metadata", {}), TOKEN: str(offer.token), WRITE: write}
            answer = self._bucket.attempt("put_object", key, seen.etag, {**options, "Body": body, "Metadata": metadata})
            if isinstance(answer, Doubt):
                return self._settle("put", key, answer, seen, lambda now: now.write == write)
            return ObjectVersion(answer["ETag"], write)

        return self._act(key, offer, read, put)

    def _delete(self, key: str, offer: Offer, read: ObjectVersion | None) -> None:
        def delete(seen: ObjectVersion) -> ObjectVersion | None:
            if seen.etag is None:
                return NOTHING
            answer = self._bucket.attempt("delete_object", key, seen.etag, {})
            if isinstance(answer, Doubt):
                return self._settle("delete", key, answer, seen, lambda now: now.etag is None)
            return NOTHING

        self._demand_conditional_delete()
        self._act(key, offer, read, delete)

    def _act(
        self, key: str, offer: Offer, read: ObjectVersion | None, act: Callable[[ObjectVersion], ObjectVersion | None]
    ) -> ObjectVersion:
        """The object after the act, which gives None where another was first; ReadAgain if it is no longer what was read."""
        for _ in range(ATTEMPTS):
            self._marks.enter(key, offer)
            done = act(self._look(key) if read is None else read)
            if done is not None:
                return done
            if read is not None and self._look(key) != read:
                self._marks.enter(key, offer)  # StaleToken if that was a newer holder's doing
                raise ReadAgain(key)
        raise restless(key)

    def _settle(
        self, what: str, key: str, doubt: Doubt, seen: ObjectVersion, done: Callable[[ObjectVersion], bool]
    ) -> ObjectVersion | None:
        """The object, if it is as the act leaves it; None if another was first."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            now = self._look(key)
        except (ClientError, BotoCoreError) as silence:
            raise BackendUnavailable(
                f"no answer on what was done to {key!r}: {doubt.problem}; nor on a look at it: {silence}"
            ) from doubt.problem
        if done(now):
            return now
        if now == seen and not doubt.changed:
            raise BackendUnavailable(
                f"no answer on the {what} of {key!r}, and a moment later it had not been done: {doubt.problem}"
            ) from doubt.problem
        return None

    def _demand_conditional_delete(self) -> None:
        """ConfigError if this store ignores the condition on a delete: one that comes late would take a newer put away."""
        from botocore.exceptions import ParamValidationError

        if self._deletes:
            return
        place, client = self._bucket.place(f"{self._prefix}verify-{secrets.token_hex(8)}"), self._bucket.client
        client.put_object(**place, Body=b"1")
        try:
            client.delete_object(**place, IfMatch=OTHER)
        except ParamValidationError as problem:
            raise ConfigError(f"this boto3 knows no condition on a delete; a newer one does ({problem})") from None
        except Exception as problem:
            if status_of(problem) not in CHANGED:
                raise
            self._deletes = True
        finally:
            client.delete_object(**place)
        if not self._deletes:
            raise ConfigError("this store ignores If-Match on a delete; put an empty object instead")

    def _look(self, key: str) -> ObjectVersion:
        return _seen(self._bucket.head(key))


def _seen(answer: dict[str, Any] | None) -> ObjectVersion:
    if answer is None:
        return NOTHING
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    return ObjectVersion(answer["ETag"], metadata.get(WRITE, ""))


class AsyncS3Fence:
    """The same, awaited: boto3 is waited for in a thread. A cancelled put has ended before the cancel goes on."""

    def __init__(self, client: Any, bucket: str, *, prefix: str = PREFIX) -> None:
        self._blocking = S3Fence(client, bucket, prefix=prefix)

    async def enter(self, key: str, holder: Any, *, lock: str | None = None) -> AsyncEntry:
        """Raise the mark, then read the object; put what follows from it by the entry. The object is not touched."""
        return AsyncEntry(await to_the_end(lambda: self._blocking.enter(key, holder, lock=lock)))

    put = awaited(S3Fence.put)
    delete = awaited(S3Fence.delete)
    verify = awaited(S3Fence.verify)
    look = awaited(S3Fence.look)


class AsyncEntry:
    """One holder inside one object, awaited."""

    def __init__(self, entry: Entry) -> None:
        self._blocking = entry

    @property
    def body(self) -> bytes | None:
        """The object's content when the holder entered, or as it put it since; None if there is no object."""
        return self._blocking.body

    put = awaited(Entry.put)
    delete = awaited(Entry.delete)
