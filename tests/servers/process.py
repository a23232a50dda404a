"""What every server of the tests is: a process of the laboratory, and a skipped test where its program is missing."""

from __future__ import annotations

import os

import pytest

from lockline.lab.servers.process import *  # noqa: F403


def missing(reason: str) -> None:
    """Skip at home, where the runner names what is missing at the end; fail in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(f"MISSING: {reason}")
