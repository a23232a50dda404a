"""What `lockline doctor` says in the same words about every store of consensus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...core.backend import Finding
from ..url import Endpoint

SLOW: Final = 0.1


def took(what: str, seconds: float, cure: str) -> Finding:
    """How long that took, and what to do if it was long."""
    text = f"{what} took {seconds * 1000:.1f} ms"
    return Finding("ok", text) if seconds < SLOW else Finding("warning", text, cure)


def voters(count: int, one: str, many: str) -> Finding:
    """How many of them may fail."""
    if count == 1:
        return Finding("warning", f"one {one}: while it is away, nobody gets a lock", "run three or five")
    if count % 2 == 0:
        return Finding("warning", f"{count} {many} tolerate no more losses than {count - 1}", "run an odd number")
    return Finding("ok", f"{count} {many}; {count // 2} may fail")


def in_the_clear(endpoints: Iterable[Endpoint], what: str, cure: str) -> list[Finding]:
    """A warning, if without TLS something leaves this machine."""
    if all(end.host in ("localhost", "127.0.0.1", "::1") for end in endpoints):
        return []
    return [Finding("warning", f"requests and {what} travel in the clear", cure)]
