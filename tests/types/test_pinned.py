"""The files beside this one pin every public name, so that none comes or goes without a word."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType

import pytest

import lockline
from lockline import aio, drop_in, fence, observe, testing, web

PINS = "\n".join(file.read_text() for file in sorted(Path(__file__).parent.glob("public_*.py")))


@pytest.mark.parametrize("house", [lockline, fence, observe, web])
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


@pytest.mark.parametrize(
    "kind", [getattr(observe, name) for name in observe.__all__ if is_dataclass(getattr(observe, name))]
)
def test_every_field_of_every_event_is_pinned(kind: type) -> None:
    assert [field.name for field in fields(kind) if f".{field.name}" not in PINS] == []


def test_every_name_of_the_plugin_is_pinned() -> None:
    names = [name for name, value in vars(testing).items() if getattr(value, "__module__", "") == testing.__name__]
    assert [name for name in names if name != "lose_now" and f"testing.{name}" not in PINS] == []
