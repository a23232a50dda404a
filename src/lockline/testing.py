"""For the tests of programs that lock: a pytest plugin with a client of this process alone, and leases that are lost on demand.

`lockline[pytest]` installs it; pytest finds it by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from . import aio, sync

_rooms = itertools.count(1)


class LoseLease(Protocol):
    """Makes leases be lost; what the fixture `lose_lease` gives."""

    def __call__(
        self,
        what: sync.Lease | aio.Lease | str,
        reason: Literal["expired", "evicted"] = "expired",
        *,
        client: sync.Client | aio.Client | None = None,
    ) -> int: ...


@pytest.fixture
def lockline_url(monkeypatch: pytest.MonkeyPatch) -> str:
    """A `memory:` store of this test alone; also LOCKLINE_URL while it runs, for code that connects by itself."""
    url = f"memory:test-{next(_rooms)}"
    monkeypatch.setenv("LOCKLINE_URL", url)
    return url


@pytest.fixture
def lockline_client(lockline_url: str) -> Iterator[sync.Client]:
    """A client on that store."""
    from .sync import connect

    with connect(lockline_url) as client:
        yield client


@pytest.fixture
def lose_lease(request: pytest.FixtureRequest) -> LoseLease:
    """Loses a lease, or all that `lockline_client` (or `client`) holds of a name; how many there were."""

    def lose(what: Any, reason: Literal["expired", "evicted"] = "expired", *, client: Any = None) -> int:
        if not isinstance(what, str):
            return lose_now(what._engine, [what._live], reason)
        holder = request.getfixturevalue("lockline_client") if client is None else client
        held = [live for live in holder._engine._keeper.kept() if live.claim.name == what and live.remaining() > 0]
        if not held:
            raise LookupError(f"{what!r} is not held by {holder!r}")
        return lose_now(holder._engine, held, reason)

    return lose


def lose_now(engine: Any, claims: list[Any], reason: Literal["expired", "evicted"]) -> int:
    """End these claims as if they had been lost, in the store and here, before this returns; how many still held."""
    from .backends.memory import MemoryBackend
    from .errors import ConfigError
    from .runtime import blocking

    if reason not in ("expired", "evicted"):
        raise ConfigError(f"a lease is lost as 'expired' or 'evicted', not {reason!r}")
    if not isinstance(engine.backend, MemoryBackend):
        raise ConfigError(
            f"lose_lease is for tests on memory:, not on {engine.backend.url}; evict does it on a real store"
        )
    held = [live for live in claims if live.remaining() > 0]
    for live in held:
        live.note_loss(reason)
        # What `memory:` does needs no waiting, in either world.
        blocking.run(engine.backend.evict(live.claim.name, float("inf"), live.token))
        engine._keeper.drop(live)
        engine._keeper.strike(live.claim)
        engine._forget(live)
        live.tell()
    return len(held)
