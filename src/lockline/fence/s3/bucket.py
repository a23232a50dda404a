"""One bucket of S3: reads that find nothing, and acts of which nobody can say whether they were done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...errors import BackendUnavailable

ATTEMPTS: Final = 5
CHANGED: Final = (409, 412)
"""Another put came first (412), or was under way at the same time (409)."""


class Doubt(NamedTuple):
    """An act that may have been done, or not, or not yet: the object itself tells."""

    problem: Exception
    changed: bool
    """Whether the store said that the object is another; else no answer came, or none that says anything."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The objects of one bucket, by a client of boto3."""

    client: Any
    _name: str

    def place(self, key: str) -> dict[str, str]:
        """Where this object is, as every request says it."""
        return {"Bucket": self._name, "Key": key}

    def get(self, key: str) -> dict[str, Any] | None:
        """The object with its body; None if there is no such object in a bucket that is there."""
        try:
            found: dict[str, Any] = self.client.get_object(**self.place(key))
        except Exception as problem:
            if status_of(problem) != 404 or problem.response["Error"]["Code"] == "NoSuchBucket":  # type: ignore[attr-defined]
                raise
            return None
        return found

    def head(self, key: str) -> dict[str, Any] | None:
        """The object without its body; None if there is none."""
        try:
            found: dict[str, Any] = self.client.head_object(**self.place(key))
        except Exception as problem:
            if status_of(problem) != 404:  # a HEAD has no body that could say more
                raise
            return None
        return found

    def attempt(self, act: str, key: str, etag: str | None, arguments: dict[str, Any]) -> dict[str, Any] | Doubt:
        """Put or delete on condition that the object is the one with this ETag (None: that there is none).

        The answer, or a doubt: no answer came, or boto3 sent it twice and the second found the first. A refusal comes out as it is.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            answer: dict[str, Any] = getattr(self.client, act)(**{**arguments, **self.place(key), **condition})
        except (ClientError, BotoCoreError) as problem:
            status = status_of(problem)
            if 400 <= status < 500 and status not in (404, 408, *CHANGED):
                raise
            return Doubt(problem, status in CHANGED)
        return answer


def status_of(problem: Exception) -> int:
    """The status of the answer, 0 if there was none."""
    response: dict[str, Any] = getattr(problem, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def restless(key: str) -> BackendUnavailable:
    """The error for an object that others changed each time."""
    return BackendUnavailable(f"{key!r} was changed by others {ATTEMPTS} times in a row; try again")
