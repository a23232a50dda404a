"""The servers of the laboratory, for tests: see lockline.lab.servers.mysql."""

from __future__ import annotations

from lockline.lab.servers.mysql import *  # noqa: F403
