"""A clock to hold upper bounds against: see lockline.lab.calm."""

from __future__ import annotations

import time

from lockline.lab.calm import PRESSURE as PRESSURE
from lockline.lab.calm import calm as calm


class Busy:
    """How many of the seconds since it was made the calm clock did not count, for bounds between moments that others noted."""

    def __init__(self) -> None:
        self._began, self._calmly = time.monotonic(), calm()

    def __call__(self) -> float:
        return (time.monotonic() - self._began) - (calm() - self._calmly)
