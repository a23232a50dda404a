"""The servers of the laboratory, for tests: see lockline.lab.servers.etcd."""

from __future__ import annotations

from lockline.lab.servers.etcd import *  # noqa: F403
