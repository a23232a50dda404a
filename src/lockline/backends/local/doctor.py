"""What is good and what is dangerous about the file as it lies there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from ...core.backend import Finding, Findings


def findings(file: Path, names: Collection[str], looks_every: float) -> Findings:
    """What its permissions, its disk and this system say; the names are those in use."""
    found = [Finding("ok", f"{file} is readable and writable; {len(names)} names are in use")]
    with contextlib.suppress(OSError):
        mode = file.stat().st_mode
        if mode & 0o007:
            found.append(Finding("warning", "everybody may read or write the file", f"chmod o= {file}"))
        elif mode & 0o070:
            found.append(Finding("ok", "its group shares the file", f"chmod 600 {file}, if it should not"))
        space = os.statvfs(file)
        if space.f_bavail * space.f_frsize < 16 << 20:
            found.append(Finding("warning", "the disk is nearly full", "free some space on it"))
    if not hasattr(os, "pidfd_open"):
        found.append(Finding("warning", f"a killed holder is noticed within {looks_every} s, not at once"))
    return found
