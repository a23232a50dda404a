"""The servers of the laboratory, for tests: see lockline.lab.servers.proxy."""

from __future__ import annotations

from lockline.lab.servers.proxy import *  # noqa: F403
