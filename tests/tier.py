"""The tiers of the test run: `make test` takes a sample where `make test-full` takes the whole."""

from __future__ import annotations

import os
from typing import Final, TypeVar

FULL: Final = bool(os.environ.get("LOCKLINE_FULL"))
SEED: Final = int(os.environ.get("LOCKLINE_SEED", "1"))
"""Every random choice of the tests follows from it; `make test` prints it, and CI fixes it."""
T = TypeVar("T")


def sample(normal: T, full: T) -> T:
    """Return `full` under `make test-full`, and `normal` otherwise."""
    return full if FULL else normal
