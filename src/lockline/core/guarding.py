"""What a store itself can check in the caller's own transaction."""

from __future__ import annotations

from ..errors import ConfigError
from .backend import Backend, Guarding, GuardingCommits
from .claim import Claim


def guard(backend: Backend, claim: Claim, token: int, connection: object) -> object:
    """What makes the caller's own transaction fail once the claim is gone; ConfigError where the store has none."""
    if isinstance(backend, GuardingCommits):
        if connection is None:
            raise ConfigError("guard() takes your connection, in the middle of your transaction: guard(connection)")
        return backend.guard_commit(claim, token, connection)
    if not isinstance(backend, Guarding):
        raise ConfigError(f"{backend.url} has no transactions that could check a lease; use lockline.fence")
    if connection is not None:
        raise ConfigError(
            f"guard() takes no connection on {backend.url}: it returns what your transaction has to check"
        )
    return backend.guard(claim, token)
