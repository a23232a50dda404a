"""Objects in S3 behind a fence: the token travels in the object's metadata, and every put is conditional.

S3 compares one thing, the ETag, and for a plain object that is a digest of its *content*: raising the mark in the
metadata alone does not change it. So the mark turns an old holder away at its next step, and the condition on the
content catches the one that had looked before the mark went up: its put lands first or not at all, and the newer
holder's put, made from what it read before, is refused with ReadAgain instead of burying it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from ..errors import BackendUnavailable, ConfigError, LocklineError
from .file import some_bytes
from .rule import Mark, Offer, a_name, a_resource, offer_of, passed
from .sequencer import SAFE, read_number
from .threads import to_the_end

ATTEMPTS: Final = 5
TOKEN: Final = "lockline-token"
LOCK: Final = "lockline-lock"
GRANT: Final = "lockline-grant"
WRITE: Final = "lockline-write"
CHANGED: Final = (409, 412)
"""Another put came first (412), or was under way at the same time (409)."""


class ReadAgain(LocklineError):
    """The object is no longer what this holder read: a put of an older one, under way before, landed. Enter again."""

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
    mark: Mark | None
    write: str
    metadata: dict[str, str]
    headers: dict[str, Any]


KEPT: tuple[str, ...] = (
    "ContentType", "ContentEncoding", "ContentLanguage", "ContentDisposition", "CacheControl", "StorageClass",
    "ServerSideEncryption", "SSEKMSKeyId",
)  # fmt: skip
"""What an object keeps when it is written once more to carry the mark. Tags and ACL are not among what S3 tells."""


class Entry:
    """One holder inside one object: what it read, and the right to put what follows from that."""

    def __init__(self, fence: S3Fence, key: str, offer: Offer, body: bytes | None, seen: _Seen) -> None:
        self._fence = fence
        self._key = key
        self._offer = offer
        self._seen = seen
        self.body = body
        """The object's content when the holder entered; None if there was no object."""

    def put(self, body: bytes | str, **options: Any) -> None:
        """Replace what was read. StaleToken if a newer holder has entered, ReadAgain if an older one's put landed."""
        content = some_bytes(body)
        self._seen = self._fence._put(self._key, self._offer, content, self._seen, options, again=False)
        self.body = content


class S3Fence:
    """Objects of one bucket, by a boto3 client of a store that honours If-Match and If-None-Match on put.

    The client's own errors come out as they are, except where it is not known whether a put was done.
    """

    def __init__(self, client: Any, bucket: str) -> None:
        if not hasattr(client, "put_object"):
            raise ConfigError(f"S3Fence takes an S3 client of boto3, not {type(client).__name__}")
        self._client = client
        self._bucket = a_name(bucket, "bucket")

    def enter(self, key: str, holder: Any, *, lock: str | None = None) -> Entry:
        """Raise the mark and read the object; put what follows from it by the entry.

        The object is written once more with the same content, to carry the mark. One that is not there carries none.
        """
        offer = offer_of(a_resource(key), holder, lock)
        for _ in range(ATTEMPTS):
            body, seen = self._read(key)
            self._same_lock(key, offer, seen)
            mark = passed(key, seen.mark, offer, writes=False, exact=False)
            if body is None or mark == seen.mark:
                return Entry(self, key, offer, body, seen)
            raised = self._try_put(key, offer, body, seen, {**seen.headers, "Metadata": seen.metadata})
            if raised is not None:
                return Entry(self, key, offer, body, raised)
        raise self._restless(key)

    def put(self, key: str, holder: Any, body: bytes | str, *, lock: str | None = None, **options: Any) -> None:
        """Replace the object by something that does not depend on what was in it; StaleToken if a newer holder was there.

        It is tried again when another put came first and was an older holder's: nothing was read, so nothing is buried.
        """
        offer = offer_of(a_resource(key), holder, lock)
        self._put(key, offer, some_bytes(body), NOTHING, options, again=True)

    def verify(self, key: str = "lockline-verify") -> None:
        """ConfigError if this store ignores the condition on a put, as some do: then it protects nothing. Once is enough.

        Writes a small object under that name, which must not be in use, and takes it away again.
        """
        from botocore.exceptions import ClientError

        place = {"Bucket": self._bucket, "Key": a_resource(key)}
        try:
            self._client.put_object(**place, Body=b"1", IfNoneMatch="*")
            for condition in ({"IfNoneMatch": "*"}, {"IfMatch": '"0123456789abcdef0123456789abcdef"'}):
                try:
                    self._client.put_object(**place, Body=b"2", **condition)
                except ClientError as problem:
                    if _status(problem) in CHANGED:
                        continue
                    raise
                raise ConfigError(f"this store ignores {next(iter(condition))} on a put; S3Fence cannot protect it")
        finally:
            self._client.delete_object(**place)

    def look(self, key: str, lock: str | None = None) -> Mark | None:
        """The mark at the object. It is that of the lock whose holder came last: an object has one fence."""
        seen = self._look(a_resource(key))
        return seen.mark if lock is None or unquote(seen.metadata.get(LOCK, "")) == lock else None

    def _put(self, key: str, offer: Offer, body: bytes, seen: _Seen, options: dict[str, Any], *, again: bool) -> _Seen:
        for _ in range(ATTEMPTS):
            # Looked at right before the put, since the condition on the content does not see a mark that went up.
            now = self._look(key)
            self._same_lock(key, offer, now)
            passed(key, now.mark, offer, writes=True, exact=False)
            if not again and now.etag != seen.etag:
                raise ReadAgain(key)
            done = self._try_put(key, offer, body, now, options)
            if done is not None:
                return done
        raise self._restless(key)

    def _try_put(self, key: str, offer: Offer, body: bytes, seen: _Seen, options: dict[str, Any]) -> _Seen | None:
        """The object as put, or None if another was first."""
        from botocore.exceptions import BotoCoreError, ClientError

        write = secrets.token_hex(8)
        metadata = {
            **{name: value for name, value in options.get("Metadata", {}).items() if not name.startswith("lockline-")},
            TOKEN: str(offer.token),
            LOCK: quote(offer.lock, safe=SAFE),
            GRANT: quote(offer.grant, safe=SAFE),
            WRITE: write,
        }
        condition = {"IfNoneMatch": "*"} if seen.etag is None else {"IfMatch": seen.etag}
        try:
            answer = self._client.put_object(
                **{**options, "Bucket": self._bucket, "Key": key, "Body": body, "Metadata": metadata, **condition}
            )
        except (ClientError, BotoCoreError) as problem:
            status = _status(problem)
            if 400 <= status < 500 and status not in (404, 408, *CHANGED):
                raise
            # Not known whether it was done: no answer came, or boto3 sent it twice and the second found the first.
            # The object itself tells, by a number that no other put has.
            try:
                now = self._look(key)
            except (ClientError, BotoCoreError) as silence:
                raise BackendUnavailable(
                    f"no answer on the put of {key!r}: {problem}; look again: {silence}"
                ) from problem
            if now.write == write:
                return now
            if status in CHANGED or (status == 404 and seen.etag is not None):
                return None
            if now.etag == seen.etag and now.write == seen.write:
                raise BackendUnavailable(
                    f"no answer on the put of {key!r}, and a moment later it had not been done: {problem}"
                ) from problem
            return None
        headers = {name: options[name] for name in KEPT if name in options}
        return _Seen(answer["ETag"], Mark(offer.token, offer.grant), write, metadata, headers)

    def _read(self, key: str) -> tuple[bytes | None, _Seen]:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
        except ClientError as problem:
            if _status(problem) == 404 and problem.response["Error"]["Code"] != "NoSuchBucket":
                return None, NOTHING
            raise
        return answer["Body"].read(), _seen(key, answer)

    def _look(self, key: str) -> _Seen:
        from botocore.exceptions import ClientError

        try:
            return _seen(key, self._client.head_object(Bucket=self._bucket, Key=key))
        except ClientError as problem:
            if _status(problem) == 404:
                return NOTHING
            raise

    def _same_lock(self, key: str, offer: Offer, seen: _Seen) -> None:
        name = seen.metadata.get(LOCK)
        if name is not None and unquote(name) != offer.lock:
            raise ConfigError(
                f"{key!r} is fenced by the lock {unquote(name)!r}, not {offer.lock!r}: an object has room for one mark"
            )

    def _restless(self, key: str) -> BackendUnavailable:
        return BackendUnavailable(f"{key!r} was changed by others {ATTEMPTS} times in a row; try again")


NOTHING: Final = _Seen(None, None, "", {}, {})


def _seen(key: str, answer: dict[str, Any]) -> _Seen:
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    mark = None
    if TOKEN in metadata:
        try:
            mark = Mark(read_number(metadata[TOKEN]), unquote(metadata.get(GRANT, "")))
        except ConfigError:
            raise ConfigError(f"the mark at {key!r} is of another shape; nothing was changed") from None
    headers = {name: answer[name] for name in KEPT if answer.get(name)}
    return _Seen(answer["ETag"], mark, metadata.get(WRITE, ""), metadata, headers)


def _status(problem: Exception) -> int:
    response: dict[str, Any] = getattr(problem, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


class AsyncS3Fence:
    """The same, awaited: boto3 is waited for in a thread. A cancelled put has ended before the cancel goes on."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._fence = S3Fence(client, bucket)

    async def enter(self, key: str, holder: Any, *, lock: str | None = None) -> AsyncEntry:
        """Raise the mark and read the object; put what follows from it by the entry."""
        return AsyncEntry(await to_the_end(lambda: self._fence.enter(key, holder, lock=lock)))

    async def put(self, key: str, holder: Any, body: bytes | str, *, lock: str | None = None, **options: Any) -> None:
        """Replace the object by something that does not depend on what was in it."""
        await to_the_end(lambda: self._fence.put(key, holder, body, lock=lock, **options))


class AsyncEntry:
    """One holder inside one object, awaited."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    @property
    def body(self) -> bytes | None:
        """The object's content when the holder entered, or as it put it since; None if there is no object."""
        return self._entry.body

    async def put(self, body: bytes | str, **options: Any) -> None:
        """Replace what was read. StaleToken if a newer holder has entered, ReadAgain if an older one's put landed."""
        await to_the_end(lambda: self._entry.put(body, **options))
