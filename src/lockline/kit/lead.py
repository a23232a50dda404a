"""One leader: who stands for it goes on standing, whatever the store does; who does not lead sees who does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..core.claim import Standing
from ..core.engine import Engine
from ..core.handle import H, Handle
from ..core.live import LiveClaim
from ..core.shells import gives_instead
from ..core.terms import Terms
from ..errors import BackendUnavailable, ClientClosed, ConfigError, LeaseLost

PAUSE: Final = 0.25
"""How long one whose store was silent for a whole ttl waits before it stands again."""


async def stand(engine: Engine, terms: Terms, make: Callable[[LiveClaim], H]) -> H:
    """The handle once this client leads, however long the store is away; a store that says no is an error."""
    while True:
        try:
            handle = await engine.acquire(terms, None, make)
        except BackendUnavailable as away:
            if _is_final(away):
                raise
            await engine.runtime.sleep(PAUSE)
            continue
        assert handle is not None
        return handle


def is_the_end_of(term: Handle | None, problem: BaseException) -> bool:
    """Whether the error is the loss of this very term, and not of another lease that the leader had."""
    return (
        term is not None and isinstance(problem, LeaseLost) and (problem.name, problem.token) == (term.name, term.token)
    )


async def leader_of(engine: Engine, name: str) -> Standing | None:
    """Who holds it, or None."""
    line = await engine.ask(lambda until: engine.backend.look(name, until))
    return line.holders[0] if line.holders else None


def _is_final(away: BackendUnavailable) -> bool:
    return away.permanent or isinstance(away, ClientClosed)


def a_main(main: object, *, awaited: bool) -> None:
    """ConfigError for what this shell cannot run."""
    if not callable(main):
        raise ConfigError(f"lead() takes a function that is called with the term, not {main!r}")
    gives = gives_instead(main)
    if "generator" in gives:
        raise ConfigError(f"lead() cannot run what gives {gives}: nobody would ever begin it")
    if gives and not awaited:
        raise ConfigError("this client blocks: it would never await that; use a client of lockline.aio")
