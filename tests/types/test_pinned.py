"""The files beside this one pin every public name, so that none comes or goes without a word."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import pytest

import lockline
from lockline import aio, drop_in, fence

PINS = "\n".join(file.read_text() for file in sorted(Path(__file__).parent.glob("public_*.py")))


@pytest.mark.parametrize("house", [lockline, fence])
def test_every_name_that_is_exported_is_pinned(house: ModuleType) -> None:
    short = house.__name__.rpartition(".")[2]
    assert [name for name in house.__all__ if f"{short}.{name}" not in PINS] == []


@pytest.mark.parametrize(
    "kind",
    [
        lockline.Client, lockline.Lock, lockline.RWLock, lockline.Lease, lockline.Line, lockline.Standing, lockline.Guarantees,
        aio.Client, aio.Lock, aio.RWLock, aio.Lease, drop_in.Lock, drop_in.AsyncLock,
        fence.SqlFence, fence.RedisFence, fence.FileFence, fence.AsyncFileFence, fence.S3Fence, fence.AsyncS3Fence, fence.HttpFence,
    ],
    ids=lambda kind: f"{kind.__module__}.{kind.__name__}",
)  # fmt: skip
def test_every_public_method_and_property_is_pinned(kind: type) -> None:
    inside = {"in_hand"}  # for the core, which keeps handles
    names = [name for name, _ in inspect.getmembers(kind) if not name.startswith("_") and name not in inside]
    assert names
    assert [name for name in names if f".{name}" not in PINS] == []
