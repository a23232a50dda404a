"""Where marks are kept: what a restart, a fork and a cleaning hand do to them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from lockline import BackendUnavailable, StaleToken
from lockline.fence import FileMarks, Offer, RedisMarks, SqlMarks

from ..servers.postgres import PostgresServer
from ..servers.process import wait_for
from ..servers.redis import RedisServer


def offer(token: int) -> Offer:
    return Offer("l", token, "")


@pytest.mark.slow
@pytest.mark.server
def test_a_restart_of_the_database_is_not_noticed_at_the_door() -> None:
    server = PostgresServer()
    try:
        server.start()
        marks = SqlMarks(server.url)
        leaves = [marks.admit(f"r{number}", offer(5), writes=True, patience=5) for number in range(4)]
        for leave in leaves:
            leave()
        server.stop()
        server.start()
        for _ in range(5):
            marks.admit("r0", offer(6), writes=True, patience=5)()
        with pytest.raises(StaleToken):
            marks.admit("r0", offer(5), writes=True, patience=5)
        server.stop()
        with pytest.raises(BackendUnavailable, match="cannot be reached"):
            marks.admit("r0", offer(7), writes=True, patience=5)
        marks.close()
    finally:
        server.remove()


@pytest.mark.server
def test_a_child_does_not_use_the_connections_of_its_parent(postgres: PostgresServer, tmp_path: Path) -> None:
    marks, others = SqlMarks(postgres.url), SqlMarks(postgres.url)
    mine, theirs = f"mine-{tmp_path.name}", f"theirs-{tmp_path.name}"
    marks.admit(mine, offer(5), writes=True, patience=5)()
    entered, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            marks.admit(theirs, offer(6), writes=True, patience=5)
            os.write(entered[1], b"x")
            os.read(go[0], 1)
        os._exit(0)
    try:
        assert os.read(entered[0], 1) == b"x"
        marks.admit(mine, offer(6), writes=True, patience=5)()
        with pytest.raises(BackendUnavailable, match="stayed inside"):
            others.admit(theirs, offer(7), writes=True, patience=0.1)
    finally:
        os.write(go[1], b"x")
        os.waitpid(child, 0)
        for end in (*entered, *go):
            os.close(end)
    # The server may take a while to see that the child has gone.
    others.admit(theirs, offer(7), writes=True, patience=120)()
    marks.close()
    others.close()


def locks_of(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.name.endswith(".lock")]


def test_a_lock_on_a_file_that_was_taken_away_lets_nobody_in(tmp_path: Path) -> None:
    marks = FileMarks(tmp_path)
    leave = marks.admit("r", offer(5), writes=True, patience=5)
    (lock,) = locks_of(tmp_path)
    inode = lock.stat().st_ino
    went_in, let_out = threading.Event(), threading.Event()

    def waits() -> None:
        out = FileMarks(tmp_path).admit("r", offer(6), writes=True, patience=60)
        went_in.set()
        let_out.wait(60)
        out()

    thread = threading.Thread(target=waits)
    thread.start()
    try:
        wait_for(lambda: opened(inode) >= 2, 60, "the next one waits at the file")
        lock.unlink()
        newcomer = marks.admit("r", offer(6), writes=True, patience=60)
        leave()
        assert not went_in.wait(0.3), "two are inside"
        newcomer()
        assert went_in.wait(60)
    finally:
        let_out.set()
        thread.join(60)


def opened(inode: int) -> int:
    """How many descriptors of this process are open on the file."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.stat(f"/proc/self/fd/{name}").st_ino == inode
    return found


def test_marks_that_nobody_raised_for_long_are_swept_and_the_others_stay(tmp_path: Path) -> None:
    marks = FileMarks(tmp_path)
    (tmp_path / "notes.fence").write_text("not a mark")
    for resource in ("old", "busy", "new"):
        marks.admit(resource, offer(5), writes=True, patience=5)()
    long_ago = time.time() - 1000
    for file in tmp_path.iterdir():
        os.utime(file, (long_ago, long_ago))
    marks.admit("new", offer(6), writes=True, patience=5)()
    leave = marks.admit("busy", offer(5), writes=True, patience=5)
    assert marks.sweep(500) == 1
    assert [marks.look(resource, "l") for resource in ("old", "busy", "new")] == [None, (5, ""), (6, "")]
    leave()
    assert marks.sweep(500) == 1
    assert marks.sweep(500) == 0
    assert len(list(tmp_path.iterdir())) == 3, "two files of the one that is in use, and what is not ours"
    marks.admit("old", offer(1), writes=True, patience=5)()


def test_sweeping_among_entrants_lets_nobody_in_beside_another(tmp_path: Path) -> None:
    marks = FileMarks(tmp_path)
    inside: list[int] = []
    most: list[int] = []
    end = threading.Event()

    def enter() -> None:
        mine = FileMarks(tmp_path)
        for _ in range(150):
            leave = mine.admit("r", offer(5), writes=True, patience=60)
            inside.append(1)
            most.append(len(inside))
            time.sleep(0)
            inside.pop()
            leave()

    def sweep() -> None:
        while not end.is_set():
            for file in tmp_path.iterdir():
                with contextlib.suppress(OSError):
                    os.utime(file, (0, 0))
            marks.sweep(1)

    threads = [threading.Thread(target=enter) for _ in range(3)]
    sweeper = threading.Thread(target=sweep)
    for thread in (*threads, sweeper):
        thread.start()
    for thread in threads:
        thread.join(60)
    end.set()
    sweeper.join(60)
    assert len(most) == 450
    assert max(most) == 1


@pytest.mark.server
def test_marks_in_redis_may_be_kept_for_a_time(redis_server: RedisServer, tmp_path: Path) -> None:
    with contextlib.closing(redis_server.client()) as client:
        RedisMarks(client, prefix=f"{tmp_path.name}:", keep=60).admit("r", offer(5), writes=True, patience=1)()
        (key,) = client.keys(f"{tmp_path.name}:*")
        assert 0 < client.ttl(key) <= 60
