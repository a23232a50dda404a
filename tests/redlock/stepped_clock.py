"""Servers whose wall clock can be stepped: see lockline.lab.servers.clock."""

from __future__ import annotations

from lockline.lab.servers.clock import Clock as Clock
from lockline.lab.servers.clock import library as library
