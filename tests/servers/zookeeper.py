"""The servers of the laboratory, for tests: see lockline.lab.servers.zookeeper."""

from __future__ import annotations

from lockline.lab.servers.zookeeper import *  # noqa: F403
