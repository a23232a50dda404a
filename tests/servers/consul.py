"""The servers of the laboratory, for tests: see lockline.lab.servers.consul."""

from __future__ import annotations

from lockline.lab.servers.consul import *  # noqa: F403
