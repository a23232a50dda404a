"""An operator takes a lock away; where the store keeps something beside a line, the victim finds there by whom.

The note is written before the eviction, so that it is there when the victim hears of it, and only where one holder is meant by its token.
It is a courtesy: without it, or too late, a lock is taken away all the same, and the victim only knows that it is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import LocklineError, printable
from .backend import Backend, Keeping

if TYPE_CHECKING:
    from .engine import Engine

NOTE: Final = "evicted-{token}"
"""Each under its own: a note for a token that nobody has would else keep those for lower ones out, as at a fence."""
KEPT_FOR: Final = 60.0
"""Seconds: a victim asks as soon as it hears of its loss, or with its next renewal."""
COURTESY: Final = 1.0
"""How long the note may keep the eviction waiting."""
BEYOND: Final = 1 << 63
"""No store grants a token like that, and not every one can write it down."""
LONGEST: Final = 300
"""Characters of who it was, and why."""


async def evict(engine: Engine, name: str, token: int | None, by: str = "") -> int:
    """Take the lock away from whoever holds it, or from that holder, and tell of it; how many there were."""
    by = by or engine.owner
    if token is not None:
        await _leave_note(engine, name, token, by[:LONGEST].encode("utf-8", "replace"))
    holders = await engine.ask(lambda until: engine.backend.evict(name, until, token))
    if token is not None and not holders:
        # Nobody has it, and on some stores somebody may yet: who did nothing to that one.
        await _leave_note(engine, name, token, b"")
    if engine.stream is not None:
        engine.stream.evicted(name, by, holders, token)
    return holders


async def _leave_note(engine: Engine, name: str, token: int, said: bytes) -> None:
    backend = engine.backend
    if token >= BEYOND or not isinstance(backend, Keeping):
        return
    note = NOTE.format(token=token)
    try:
        await engine.ask(
            lambda until: backend.keep(name, note, said, token, KEPT_FOR, min(until, engine.runtime.now() + COURTESY))
        )
    except LocklineError:
        pass  # whether the store answers at all, the eviction itself finds out


async def evictor_of(backend: Backend, name: str, token: int | None, until: float) -> str:
    """Who took the lock away from that holder, as far as it was left there; on one line."""
    if not isinstance(backend, Keeping):
        return ""
    try:
        note = await backend.kept(name, NOTE.format(token=token), until)
    except LocklineError:
        return ""
    return printable(note.value.decode("utf-8", "replace")) if note.value else ""
