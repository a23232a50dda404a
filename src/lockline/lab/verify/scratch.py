"""The folder of one run, and the end of those that were left by runs that were killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "lockline-verify-"
YOUNG: Final = 60.0
"""Seconds; a folder that is younger may be about to be locked by the one who has made it."""


@contextmanager
def a_folder() -> Iterator[Path]:
    """A folder that goes with the block; whoever may not run its end, because he was killed, is swept up after by the next."""
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # The kernel lets go of it with this process, however that ends.
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        # Gone meanwhile, somebody else's, or in use.
        with contextlib.suppress(OSError):
            found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                about = os.fstat(found)
                if about.st_uid == os.getuid() and time.time() - about.st_mtime > YOUNG:
                    fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(found)
