"""The servers of the laboratory, for tests: see lockline.lab.servers.pgbouncer."""

from __future__ import annotations

from lockline.lab.servers.pgbouncer import *  # noqa: F403
