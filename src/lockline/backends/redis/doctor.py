"""What is good and what is dangerous about a Redis as it is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.backend import Finding

if TYPE_CHECKING:
    from .backend import RedisBackend


async def examine(backend: RedisBackend, until: float) -> list[Finding]:
    return []
