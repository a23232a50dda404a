"""A disk that is full: the error says so, what is held stays held, and it goes on when there is room again.

The data of the server lies in a small file system of its own, in memory; only root can make one.
"""

from __future__ import annotations

import os
import pwd
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable
from lockline.backends import mysql
from tests.postgresql.template import CopiedPostgres
from tests.servers.mysql import MariadbServer
from tests.servers.process import wait_for

pytestmark = pytest.mark.server
META = {"why": random.Random(1).randbytes(1900).hex()}
"""What a claim brings along, so that few of them need a new page."""


def mount(at: Path, megabytes: int, owner: str | None = None) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a small file system: the story of a full disk was NOT told")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "lockline-test", str(at)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no file system could be mounted, the story of a full disk was NOT told: {made.stderr.decode()}")
    if owner is not None:
        user = pwd.getpwnam(owner)
        os.chown(at, user.pw_uid, user.pw_gid)
        at.chmod(0o700)


class SmallPostgres(CopiedPostgres):
    """One whose data lies on a small disk."""

    def _make_data(self, data: Path) -> None:
        data.mkdir()
        mount(data, 120, "postgres")
        super()._make_data(data)


class SmallMariadb(MariadbServer):
    """The same."""

    def _make_system_tables(self) -> None:
        mount(self.data, 200)
        super()._make_system_tables()


@pytest.fixture(params=["postgresql", "mysql"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    server: Any = SmallPostgres() if request.param == "postgresql" else SmallMariadb(tmp_path / "home")
    try:
        server.start()
        if request.param == "mysql":
            mysql.tables(server.url).make()
        yield server
    finally:
        server.stop()
        subprocess.run(["umount", str(server.data)], check=True)
        server.remove()


def fill(folder: Path) -> Path:
    """Take what room is left there."""
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            pass
    return ballast


@pytest.mark.timeout(180)
def test_a_full_disk_is_told_and_nothing_is_lost(small: Any) -> None:
    with lockline.connect(small.url) as client:
        held = client.lock("held", ttl=600).acquire()
        ballast = fill(small.data)
        taken: list[lockline.Lease] = []

        def take_all() -> None:
            for number in range(len(taken), 3000):
                taken.append(client.lock(f"n{number}", ttl=600, meta=META).acquire(timeout=2))

        with pytest.raises(BackendUnavailable) as first:
            take_all()
        told = [str(first.value)]

        def is_named() -> bool:
            if "disk is full" not in told[-1]:
                with pytest.raises(BackendUnavailable) as again:
                    take_all()
                told.append(str(again.value))
            return "disk is full" in told[-1]

        # A server that is busy may need longer to say so than an acquire waits here.
        wait_for(is_named, 60, "the reason")
        assert held.valid
        ballast.unlink()
        # All that was granted is there, once, under its token; what was refused is not.
        for number, lease in enumerate(taken):
            (claim,) = client.inspect(f"n{number}").claims
            assert claim.token == lease.token
        wait_for(lambda: client.inspect(f"n{len(taken)}").claims == (), 60, "the end of what was refused")
        again = client.lock(f"n{len(taken)}", meta=META).acquire(timeout=60)
        assert all(again.token > lease.token for lease in taken)
        held.extend(600)
        for lease in (held, again, *taken):
            lease.release()
        assert client.list() == []
