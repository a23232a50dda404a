"""SQLite's -wal and -shm files are removed while a process uses the locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockline

OTHER_PROCESS = """
import sys, lockline
with lockline.connect(sys.argv[1]) as client:
    print(client.lock("x").try_acquire() is not None)
"""


@pytest.mark.parametrize("removed", [("-wal",), ("-shm",), ("-wal", "-shm")], ids=" ".join)
def test_a_process_whose_log_was_removed_loses_its_lease_and_says_why(tmp_path: Path, removed: tuple[str, ...]) -> None:
    file = tmp_path / "locks.db"
    with lockline.connect(f"local://{file}") as client:
        lease = client.lock("x", ttl=1).acquire()
        for suffix in removed:
            Path(f"{file}{suffix}").unlink()
        # It sees nothing of what was in the log only, or finds the file damaged.
        subprocess.run([sys.executable, "-c", OTHER_PROCESS, client.url], capture_output=True, timeout=60)
        assert lease.lost.wait(60)
        with pytest.raises(lockline.LeaseLost):
            lease.release()
        with pytest.raises(lockline.BackendUnavailable, match=r"-wal or -shm .* start this process again"):
            client.lock("y").try_acquire()


def test_another_process_may_remove_the_log_as_the_last_one(tmp_path: Path) -> None:
    """A fork closes the connections of its parent."""
    with lockline.connect(f"local://{tmp_path}/locks.db") as client:
        for _ in range(3):
            with client.lock("y"):
                pass
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)
            other = [sys.executable, "-c", OTHER_PROCESS, client.url]
            assert subprocess.run(other, check=True, capture_output=True, timeout=60).stdout == b"True\n"
            assert not Path(f"{tmp_path}/locks.db-wal").exists()
