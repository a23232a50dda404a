"""The check where the data is: each fence refuses a holder whose time is over, in one line of code per resource.

A name is imported when it is first used, so each fence needs only the library of its own store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import StaleToken

if TYPE_CHECKING:
    from .file import AsyncFileFence, FileFence
    from .filemarks import FileMarks
    from .http import HttpFence, raise_if_stale
    from .redis import RedisFence, RedisMarks
    from .rule import Mark, Offer
    from .s3 import AsyncS3Fence, ReadAgain, S3Fence
    from .sequencer import Sequencer, parse_sequencer
    from .sql import SqlFence
    from .sql.marks import SqlMarks

HOME = {
    "AsyncFileFence": "file",
    "AsyncS3Fence": "s3",
    "FileFence": "file",
    "FileMarks": "filemarks",
    "HttpFence": "http",
    "Mark": "rule",
    "Offer": "rule",
    "ReadAgain": "s3",
    "RedisFence": "redis",
    "RedisMarks": "redis",
    "S3Fence": "s3",
    "Sequencer": "sequencer",
    "SqlFence": "sql.fence",
    "SqlMarks": "sql.marks",
    "parse_sequencer": "sequencer",
    "raise_if_stale": "http",
}

__all__ = [
    "AsyncFileFence",
    "AsyncS3Fence",
    "FileFence",
    "FileMarks",
    "HttpFence",
    "Mark",
    "Offer",
    "ReadAgain",
    "RedisFence",
    "RedisMarks",
    "S3Fence",
    "Sequencer",
    "SqlFence",
    "SqlMarks",
    "StaleToken",
    "parse_sequencer",
    "raise_if_stale",
]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
