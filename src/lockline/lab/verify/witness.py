"""Looks at the lines from beside and writes down whom it sees waiting: only so can anybody say who came first."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from ...errors import LocklineError
from ...runtime.clock import now
from .history import Pen
from .plan import Names

EVERY: Final = 0.02
"""Seconds between two looks: a bounded load on somebody else's server."""
NUMBER: Final = -1
"""Its history stands beside those of the workers."""


class Witness:
    """Looks while the block lasts."""

    def __init__(self, client: Any, names: Names, folder: Path, has_lines: bool) -> None:
        self._client = client
        self._names = [*names.locks[:3], *names.read_write]
        self._pen = Pen(folder, NUMBER)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lockline-verify-witness", daemon=True)
        self._looks = has_lines

    def __enter__(self) -> Witness:
        if self._looks:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._looks:
            self._thread.join(5)
        self._pen.close()

    def _work(self) -> None:
        seen: set[str] = set()
        number = 0
        while not self._over.wait(EVERY):
            name = self._names[number % len(self._names)]
            number += 1
            try:
                line = self._client.inspect(name)
            except LocklineError:
                continue
            # From after the answer: whoever is in it stood there before.
            at = now()
            for claim in line.waiters:
                op = (claim.meta or {}).get("op")
                if op is not None and op not in seen:
                    seen.add(op)
                    self._pen.note("s", op, at)
