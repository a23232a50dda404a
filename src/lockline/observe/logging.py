"""What happens, in the log: logger `lockline`, on by default.

Warnings need no setting: a lease that was lost, with its cause; a renewal that came late; a store that is silent, and that is back;
a fence that refused. They are told beside the work, and an acquire or a release that goes well has no part in it. The
rest is DEBUG. A client tells it if the logger is enabled for DEBUG when it connects, or if it has another listener.

Every record has the event's fields as `extra`, each with `lockline_` before its name. Names are escaped: one record is one line.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from ..core import events
from ..core.telling import Stream
from ..errors import printable
from ..runtime.clock import clock_time

if TYPE_CHECKING:
    from ..core.backend import Backend
    from ..core.events import Event, Listener
    from ..runtime import Runtime

log: Final = logging.getLogger("lockline")

TEMPLATES: Final[dict[type[events.Event], tuple[int, str]]] = {
    events.Asked: (logging.DEBUG, "{name}: asked for, as a {kind} with a ttl of {ttl:g} s"),
    events.Waiting: (logging.DEBUG, "{name}: waits, {ahead} ahead"),
    events.Granted: (logging.DEBUG, "{name}: granted after {took:.3f} s, token {token}"),
    events.Renewed: (logging.DEBUG, "{name}: renewed in {took:.3f} s with {margin:.3f} s left, token {token}"),
    events.RenewalLate: (
        logging.WARNING,
        "{name}: renewed late, with {margin:.3f} s left of the usual {usual:.3f} (token {token}, the answer took {took:.3f} s): "
        "the store is slow, or this process is; a longer ttl gives more room",
    ),
    events.Lost: (
        logging.WARNING,
        "{name}: the lease was lost (token {token}, {reason}{cause}): {detail}; its writes may no longer be the only ones",
    ),
    events.Released: (logging.DEBUG, "{name}: {end} after {held:.3f} s, token {token}"),
    events.Withdrawn: (logging.DEBUG, "{name}: withdrawn after {took:.3f} s: {why}"),
    events.Evicted: (logging.WARNING, "{name}: evicted by {owner}: {holders} held it"),
    events.StoreSilent: (logging.WARNING, "{store} is silent since {since}: {problem}; leases are good until their own deadlines"),
    events.StoreBack: (logging.WARNING, "{store} answers again, after {silent:.3f} s"),
    events.FenceRefused: (
        logging.WARNING,
        "{resource}: a fence refused token {offered} of {lock}, {highest} has been seen: its holder has lost its lease and still writes",
    ),
}  # fmt: skip
"""The level and the words for each event."""
QUIET: Final = ("closed", "max_hold", "unrenewed")
"""Causes of a loss that the program itself asked for: no warning."""


def stream_for(backend: Backend, runtime: Runtime, listeners: Sequence[Listener]) -> Stream:
    """What a new client tells: to the log, and to these."""
    whole = bool(listeners) or log.isEnabledFor(logging.DEBUG)
    return Stream([log_event, *listeners], store=backend.url, runtime=runtime, whole=whole)


def log_event(event: Event) -> None:
    """Write one event to the log."""
    level, words = TEMPLATES[type(event)]
    if isinstance(event, events.Lost) and event.cause in QUIET:
        level = logging.INFO
    if not log.isEnabledFor(level):
        return
    said = {field.name: getattr(event, field.name) for field in fields(event) if field.repr}
    text = words.format(**{key: _shown(key, value) for key, value in said.items()}, since=clock_time(event.at))
    log.log(level, "%s", text, extra={"lockline_event": event.what, **{f"lockline_{key}": _safe(value) for key, value in said.items()}})  # fmt: skip


def _shown(key: str, value: Any) -> Any:
    if key == "cause":
        return f", {value}" if value else ""
    return repr(value) if key in ("name", "lock", "resource") and isinstance(value, str) else _safe(value)


def _safe(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value
