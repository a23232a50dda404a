"""The marks of objects in S3, each in a small object of its own.

Not in the metadata of what it protects: there every put of the object writes the mark too, and one that was under way
when the mark went up takes it back, because S3 compares the ETag, which is a digest of the content alone. Here the mark
*is* the content. No two marks of a resource are the same bytes, so a put on condition of the ETag raises it or fails.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ..errors import BackendUnavailable, ConfigError
from .markfile import marks_from, marks_text
from .rule import Mark, Offer, passed

ATTEMPTS: Final = 5
CHANGED: Final = (409, 412)
"""Another put came first (412), or was under way at the same time (409)."""


class S3Marks:
    """The marks of one bucket, under a prefix."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def enter(self, key: str, offer: Offer) -> None:
        """Make the offer the mark, if it is not; StaleToken if it may not pass."""
        from botocore.exceptions import BotoCoreError, ClientError

        unanswered: Exception | None = None
        for _ in range(ATTEMPTS):
            marks, etag = self._read(key)
            mark = passed(key, marks.get(offer.lock), offer, writes=True, exact=False)
            if mark == marks.get(offer.lock):
                return
            condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
            body = marks_text(key, {**marks, offer.lock: mark})
            try:
                self._client.put_object(**self._place(key), Body=body, ContentType="application/json", **condition)
                return
            except (ClientError, BotoCoreError) as problem:
                status = status_of(problem)
                if 400 <= status < 500 and status not in (404, 408, *CHANGED):
                    raise
                # Whether it was done, the object itself tells. One that is still under way can land later, and only
                # where it raises the mark.
                unanswered = None if status in CHANGED else problem
        if unanswered is not None:
            raise BackendUnavailable(f"no answer on the mark of {key!r}: {unanswered}") from unanswered
        raise restless(key)

    def look(self, key: str) -> dict[str, Mark]:
        """The marks by lock."""
        return self._read(key)[0]

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _read(self, key: str) -> tuple[dict[str, Mark], str | None]:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.get_object(**self._place(key))
        except ClientError as problem:
            if is_missing(problem):
                return {}, None
            raise
        try:
            return marks_from(json.loads(answer["Body"].read())).by_lock, answer["ETag"]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError(
                f"{self._prefix + key!r} holds no marks that this version of Lockline wrote; nothing was changed"
            ) from None


def status_of(problem: Exception) -> int:
    """The status of the answer, 0 if there was none."""
    response: dict[str, Any] = getattr(problem, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_missing(problem: Any) -> bool:
    """Whether there is no such object, in a bucket that is there."""
    return status_of(problem) == 404 and problem.response["Error"]["Code"] != "NoSuchBucket"


def restless(key: str) -> BackendUnavailable:
    """The error for an object that others changed each time."""
    return BackendUnavailable(f"{key!r} was changed by others {ATTEMPTS} times in a row; try again")
