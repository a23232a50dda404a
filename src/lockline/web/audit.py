"""Who took what away from whom, and why: one line of JSON for each step, to the log and to a file."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from typing import Literal

log = logging.getLogger("lockline.web.audit")


@dataclass(frozen=True, slots=True)
class Eviction:
    """What somebody asked for."""

    store: str
    name: str
    token: int
    owner: str
    """Whom the page showed as the holder; empty if it showed nobody."""
    who: str
    """Who asked: the login in front of the page, or else what the person said."""
    address: str
    reason: str


Outcome = Literal["asked", "evicted", "held no more", "unanswered"]


class Audit:
    """Where the lines go. One that cannot be written is an OSError, and nobody is evicted without a line."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        if path is not None:
            # Found out now, not at the first eviction.
            os.close(self._open(path))

    def write(self, eviction: Eviction, outcome: Outcome) -> None:
        """One line, whole or not at all: appended by a single call, so several servers may share the file."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"at": when, "outcome": outcome, **asdict(eviction)})
        if self._path is not None:
            file = self._open(self._path)
            try:
                os.write(file, line.encode() + b"\n")
            finally:
                os.close(file)
        log.warning("%s", line)

    @staticmethod
    def _open(path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY, 0o600)
