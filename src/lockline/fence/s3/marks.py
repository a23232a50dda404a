"""The marks of objects in S3, each in a small object of its own.

Not in the metadata of what it protects: there every put of the object writes the mark too, and one that was under way
when the mark went up takes it back, because S3 compares the ETag, which is a digest of the content alone. Here the mark
*is* the content. No two marks of a resource are the same bytes, so a put on condition of the ETag raises it or fails.
"""

from __future__ import annotations

import json

from ...errors import BackendUnavailable, ConfigError
from ..file.markfile import marks_from, marks_text
from ..rule import Mark, Offer, passed
from .bucket import ATTEMPTS, Bucket, Doubt, restless


class S3Marks:
    """The marks of one bucket, under a prefix."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix

    def enter(self, key: str, offer: Offer) -> None:
        """Make the offer the mark, if it is not; StaleToken if it may not pass."""
        doubt: Doubt | None = None
        for _ in range(ATTEMPTS):
            marks, etag = self._read(key)
            mark = passed(key, marks.get(offer.lock), offer, writes=True, exact=False)
            if mark == marks.get(offer.lock):
                return
            body = marks_text(key, {**marks, offer.lock: mark})
            document = {"Body": body, "ContentType": "application/json"}
            answer = self._bucket.attempt("put_object", self._prefix + key, etag, document)
            if not isinstance(answer, Doubt):
                return
            # One that is still under way can land later, and only where it raises the mark.
            doubt = answer
        if doubt is not None and not doubt.changed:
            raise BackendUnavailable(f"no answer on the mark of {key!r}: {doubt.problem}") from doubt.problem
        raise restless(key)

    def look(self, key: str) -> dict[str, Mark]:
        """The marks by lock."""
        return self._read(key)[0]

    def _read(self, key: str) -> tuple[dict[str, Mark], str | None]:
        found = self._bucket.get(self._prefix + key)
        if found is None:
            return {}, None
        try:
            return marks_from(json.loads(found["Body"].read())).by_lock, found["ETag"]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError(
                f"{self._prefix + key!r} holds no marks that this version of Lockline wrote; nothing was changed"
            ) from None
