"""The check where the data is: each fence refuses a holder whose time is over, in one line of code per resource.

A name is imported when it is first used, so each fence needs only the library of its own store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import StaleToken

if TYPE_CHECKING:
    from .file.fence import AsyncFileFence, FileFence
    from .file.marks import FileMarks
    from .http.fence import HttpFence, raise_if_stale
    from .redis.fence import RedisFence
    from .redis.marks import RedisMarks
    from .rule import Mark, Offer
    from .s3.fence import AsyncS3Fence, ReadAgain, S3Fence
    from .sequencer import Sequencer, parse_sequencer
    from .sql.fence import SqlFence
    from .sql.marks import SqlMarks

HOME = {
    "file.fence": ("AsyncFileFence", "FileFence"),
    "file.marks": ("FileMarks",),
    "http.fence": ("HttpFence", "raise_if_stale"),
    "redis.fence": ("RedisFence",),
    "redis.marks": ("RedisMarks",),
    "rule": ("Mark", "Offer"),
    "s3.fence": ("AsyncS3Fence", "ReadAgain", "S3Fence"),
    "sequencer": ("Sequencer", "parse_sequencer"),
    "sql.fence": ("SqlFence",),
    "sql.marks": ("SqlMarks",),
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
    for module, names in HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
