"""A wall clock that can be stepped, for one server alone: libfaketime, loaded before libc."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from .process import NotInstalled

LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")


class StepClock:
    """The offset stands in a file that the server's libfaketime reads at each look at the clock."""

    def __init__(self, file: Path) -> None:
        found = [path for pattern in LIBRARIES for path in glob.glob(pattern)]
        if not found:
            raise NotInstalled("faketime", "apt-get install faketime")
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        self.env = {
            "LD_PRELOAD": found[0],
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.step(0)

    def step(self, seconds: int) -> None:
        """Be so far off from now on."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+d}\n")
        draft.chmod(0o644)
        os.replace(draft, self._file)
