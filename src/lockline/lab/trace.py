"""What happened, in the order of one clock that all processes of a machine share."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "asked", "granted", "refused", "letting go", "released", "read", "wrote", "fence refused", "checked", "gave up",
    "no answer", "at", "froze", "woke", "killed", "clock", "down", "up", "request", "reply", "lost", "held back", "note",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something that a client or a server did or suffered."""

    at: float
    lane: str
    kind: Kind
    text: str = ""
    token: int | None = None
    to: str = ""
    """The other end of a message."""

    def as_json(self, since: float) -> dict[str, Any]:
        """For programs; times from the first event on."""
        row: dict[str, Any] = {"at": round(self.at - since, 4), "lane": self.lane, "kind": self.kind}
        for name in ("text", "token", "to"):
            if getattr(self, name) not in ("", None):
                row[name] = getattr(self, name)
        return row


class Trace:
    """The events of one run."""

    def __init__(self) -> None:
        self._events: list[TraceEvent] = []
        self._mutex = threading.Lock()

    def add(self, lane: str, kind: Kind, text: str = "", *, token: int | None = None, to: str = "") -> TraceEvent:
        """Write down what happens now."""
        event = TraceEvent(time.monotonic(), lane, kind, text, token, to)
        self.take(event)
        return event

    def take(self, event: TraceEvent) -> None:
        """Write down what somebody else saw."""
        with self._mutex:
            self._events.append(event)

    def events(self) -> tuple[TraceEvent, ...]:
        """All, in order."""
        with self._mutex:
            return tuple(sorted(self._events, key=lambda event: event.at))


def short(token: int) -> str:
    """A token for human eyes: of a long one the end, which is where neighbours differ."""
    return str(token) if token < 1_000_000 else f"…{token % 100_000:05d}"
