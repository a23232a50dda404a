"""Exit codes, from sysexits.h where it has one, so that scripts can tell the cases apart."""

from __future__ import annotations

from typing import Final

FINE: Final = 0
DANGEROUS: Final = 1
"""`lockline doctor` found an error."""
USAGE: Final = 64
UNREACHABLE: Final = 69
SYSTEM: Final = 71
"""The system refused something to us: room for our output, another process, another file."""
BUSY: Final = 75
"""The lock was taken, or stayed taken for the whole wait: try again later."""
LOST: Final = 76
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
"""Plus the number of the signal."""
