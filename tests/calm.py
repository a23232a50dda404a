"""A clock to hold upper bounds against: see lockline.lab.calm."""

from __future__ import annotations

from lockline.lab.calm import PRESSURE as PRESSURE
from lockline.lab.calm import calm as calm
