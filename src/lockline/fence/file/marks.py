"""Marks alone, in a folder: for resources that are checked at a door (HTTP, a script) and not where they lie."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from functools import lru_cache

from ...core.arguments import Seconds, a_flag, a_ttl
from ...errors import ConfigError
from ..door import Door
from ..rule import Mark, Offer, a_resource, passed
from .markfile import Entrant, MarkFile, unlock


class FileMarks(Door):
    """Marks in a folder of this machine, two small files per resource; many processes may share it.

    One resource's entrant keeps only the others of the same resource waiting.
    """

    def __init__(self, folder: str | os.PathLike[str], *, exact: bool = False) -> None:
        self.folder = os.path.realpath(os.fspath(folder))
        self.exact = a_flag(exact, "exact")
        if not os.path.isdir(self.folder):
            raise ConfigError(f"the folder {self.folder!r} for the marks does not exist")

    def admit(self, resource: str, offer: Offer, *, writes: bool, patience: float) -> Callable[[], None]:
        """Raise the mark and keep all others out until what is returned is called; StaleToken if it may not pass."""
        return self._place(resource).admit(offer, writes=writes, exact=self.exact, patience=patience)

    def admit_at_once(self, resource: str, offer: Offer, *, writes: bool) -> Callable[[], None] | None:
        """The same if nobody is inside and the mark need not be raised; else None."""
        place = self._place(resource)
        file = place.lock(None)
        if file is None:
            return None
        try:
            marks = place.read()
            before = marks.by_lock.get(offer.lock)
            mark = passed(resource, before, offer, writes=writes, exact=self.exact)
        except BaseException:
            unlock(file)
            raise
        if mark != before:
            unlock(file)
            return None
        return Entrant(file, marks)

    def look(self, resource: str, lock: str) -> Mark | None:
        """The mark of this lock at the resource."""
        return self._place(resource).read().by_lock.get(lock)

    def sweep(self, unused: Seconds) -> int:
        """Take away the marks that have not gone up for so long; how many there were.

        Not for less than a holder can sleep, nor than one grant is in use: whoever comes late after that finds no mark.
        """
        before = time.time() - a_ttl(unused, "unused")
        swept = 0
        for entry in os.listdir(self.folder):
            if MARKS.fullmatch(entry):
                swept += MarkFile(self.folder, entry[1 : -len(".fence")], entry).forget(before)
        return swept

    def _place(self, resource: str) -> MarkFile:
        return _place(self.folder, a_resource(resource))


MARKS = re.compile(r"\.[0-9a-f]{40}\.fence")
"""The files that `_place` names; whatever else lies in the folder is not ours."""


@lru_cache(maxsize=1024)
def _place(folder: str, resource: str) -> MarkFile:
    # A resource's name may hold what a file's may not; the name itself stands inside the file.
    return MarkFile(folder, hashlib.sha256(resource.encode()).hexdigest()[:40], resource)
