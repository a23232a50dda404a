"""The servers of the laboratory, for tests: see lockline.lab.servers.postgres."""

from __future__ import annotations

from lockline.lab.servers.postgres import *  # noqa: F403
