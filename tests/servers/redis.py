"""The servers of the laboratory, for tests: see lockline.lab.servers.redis."""

from __future__ import annotations

from lockline.lab.servers.redis import *  # noqa: F403
