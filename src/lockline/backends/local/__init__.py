"""`local:`, the embedded default: one SQLite file, every process of this machine, no server."""

from __future__ import annotations

from typing import Any

from ...runtime import Runtime
from .backend import LocalBackend
from .target import file_of, url_of


def connect(target: str, runtime: Runtime, **options: Any) -> LocalBackend:
    """The backend for `local:` or `local:///path/file.db`."""
    if options:
        raise TypeError(f"unexpected keyword: {', '.join(options)}")
    file = file_of(target)
    return LocalBackend(file, runtime, url_of(file))
