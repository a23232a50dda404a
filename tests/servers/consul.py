"""Consul for tests: one server, or a cluster of three, on free ports of this machine with folders of their own."""

from __future__ import annotations

import os

from lockline.lab.servers.consul import *  # noqa: F403

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where a server that is only asked many things keeps its data: on a disk, each write takes twice as long and nobody learns more."""
