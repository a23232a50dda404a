"""Processes in different time namespaces have different boot clocks, and cannot share a file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lockline
from tests.servers.process import missing

STORY = """
import sys, lockline
with lockline.connect(sys.argv[1]) as client:
    try:
        with client.lock("x", timeout=60):
            print("held")
    except lockline.ConfigError as problem:
        print("another time namespace" in str(problem))
"""


def elsewhere(url: str, offset: int) -> str:
    """What a process says whose boot clock is so many seconds ahead."""
    if shutil.which("unshare") is None:
        missing("unshare")
    inside = ["unshare", "--time", "--boottime", str(offset), "--fork", sys.executable, "-c", STORY, url]
    ran = subprocess.run(inside, capture_output=True, text=True, timeout=60)
    if "Operation not permitted" in ran.stderr:
        missing("the right to make a time namespace")
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("offset", [3600, -30])
def test_a_file_with_claims_of_another_time_namespace_is_refused(tmp_path: Path, offset: int) -> None:
    url = f"local://{tmp_path}/locks.db"
    with lockline.connect(url) as client, client.lock("x", ttl=600):
        assert elsewhere(url, offset) == "True\n"


def test_a_file_without_claims_is_used(tmp_path: Path) -> None:
    url = f"local://{tmp_path}/locks.db"
    with lockline.connect(url) as client, client.lock("x") as lease:
        pass
    assert elsewhere(url, 3600) == "held\n"
    with lockline.connect(url) as client, client.lock("x") as after:
        assert after.token > lease.token
