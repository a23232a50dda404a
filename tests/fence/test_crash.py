"""Writers killed at every step: afterwards the mark and the data agree, and the next holder goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockline import StaleToken
from lockline.fence import FileFence, FileMarks, Offer, RedisFence, S3Fence, SqlFence
from lockline.fence.file.markfile import MarkFile

from ..cli.forked import Forker
from ..servers.postgres import PostgresServer
from ..servers.process import free_port
from ..servers.redis import a_redis
from .objects import an_s3
from .test_http import in_a_child

ROOT = Path(__file__).parents[2]
Died = Callable[..., bool]
OLD, NEW = "OLD CONTENT" * 50, "NEW CONTENT" * 50


class Undertaker:
    """Sees to it that writers die, each in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fence.dying"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def died(self, what: str, step: int, *rest: str) -> bool:
        """Whether the writer was killed at that step; False if it had fewer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, step, *rest]) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        assert code in (0, -signal.SIGKILL), "the writer failed; its error is above"
        return code != 0


@pytest.fixture(scope="module")
def died() -> Iterator[Callable[..., bool]]:
    undertaker = Undertaker()
    yield undertaker.died
    undertaker.process.communicate("", 20)


def at_every_step(story: Callable[[int], bool], least: int) -> int:
    """Tell the story with a death at the first step, the second, ... until it is survived; how many there were."""
    step = 1
    while story(step):
        step += 1
        assert step < 200
    assert step > least, "the deaths came at fewer steps than the write has"
    return step - 1


@pytest.mark.parametrize("what", ["replace", "append", "enter"])
def test_a_file_and_its_mark_agree_after_a_death_at_any_step(what: str, tmp_path: Path, died: Died) -> None:
    fence = FileFence()

    def story(step: int) -> bool:
        file = tmp_path / f"{step}.txt"
        fence.replace(file, 5, OLD, lock="l")
        dead = died(what, step, str(file))
        mark = fence.look(file, "l")
        assert mark in ((5, ""), (6, ""))
        if what == "replace":
            # Other programs read the file as it is: never a part, and never newer than its mark.
            assert file.read_text() in (OLD, NEW)
            assert mark == (6, "") or file.read_text() == OLD
        # The next holder enters, and sees the whole of the last write or nothing of it.
        content = fence.read(file, 7, lock="l").decode()
        assert content in {"replace": (OLD, NEW), "append": (OLD, OLD + NEW), "enter": (OLD,)}[what]
        if not dead:
            assert content == {"replace": NEW, "append": OLD + NEW, "enter": OLD}[what]
        for late in (fence.replace, fence.append):
            with pytest.raises(StaleToken):
                late(file, 6, "late", lock="l")
        fence.append(file, 7, "!", lock="l")
        assert file.read_text() == content + "!"
        # Nothing is left but the file, its marks and what the lock is taken on; a draft at most, until the next write.
        fence.replace(file, 7, "end", lock="l")
        assert sorted(path.name for path in tmp_path.glob(f"*{step}.txt*")) == [
            f".{step}.txt.fence", f".{step}.txt.fence.lock", f"{step}.txt",
        ]  # fmt: skip
        for path in tmp_path.iterdir():
            path.unlink()
        return dead

    steps = at_every_step(story, 5)
    print(f"{what}: {steps} steps")


def test_marks_at_a_door_are_whole_after_a_death_at_any_step(tmp_path: Path, died: Died) -> None:
    marks = FileMarks(tmp_path)

    def story(step: int) -> bool:
        for path in tmp_path.iterdir():
            path.unlink()
        marks.admit("r", Offer("l", 5, ""), writes=True, patience=1)()
        dead = died("marks", step, str(tmp_path))
        assert marks.look("r", "l") in ((5, ""), (6, ""))
        marks.admit("r", Offer("l", 7, ""), writes=True, patience=1)()
        return dead

    at_every_step(story, 5)


class ForgetfulDisk:
    """Records what a write did, in order, to ask what a power cut would have left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, str]] = []
        self.names: dict[int, str] = {}
        for name in ("open", "write", "fsync", "rename", "ftruncate", "close"):
            monkeypatch.setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if name == "open":
                self.names[result] = str(args[0])
            elif name == "rename":
                self.log.append(("rename", f"{args[0]} {args[1]}"))
            elif name != "close":
                self.log.append((name, self.names[args[0]]))
            return result

        return recorded

    def unsafe(self) -> list[str]:
        """What a power cut could have undone or torn at a moment when something later relied on it."""
        found: list[str] = []
        dirty: set[str] = set()
        folders: set[str] = set()
        for what, where in self.log:
            if what in ("write", "ftruncate"):
                # Data may only be touched when all before it (the mark above all) is on the disk.
                found += [f"{where} is written while the folder {folder} is not synced" for folder in folders]
                found += [f"{where} is written while {other} is not synced" for other in dirty if other != where]
                dirty.add(where)
            elif what == "fsync":
                dirty.discard(where)
                folders.discard(where)
            elif what == "rename":
                source, target = where.split()
                found += [f"{source} is renamed before it is synced"] if source in dirty else []
                folders.add(os.path.dirname(target))
        return found + [f"{where} is not synced at the end" for where in (*dirty, *folders)]


def test_nothing_relies_on_what_a_power_cut_could_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = ForgetfulDisk(monkeypatch)
    fence = FileFence()
    file = tmp_path / "file.txt"
    fence.replace(file, 5, "x", lock="l")
    fence.append(file, 6, "y", lock="l")
    fence.append(file, 6, "z", lock="l")
    fence.replace(file, 7, "w", lock="l")
    FileMarks(tmp_path).admit("r", Offer("l", 6, ""), writes=True, patience=1)()
    assert len(disk.log) > 20
    assert disk.unsafe() == []


@pytest.mark.parametrize("torn", [0, 1, 5, 9, 10])
def test_an_append_that_was_torn_is_cut_off_and_one_that_was_whole_stays(
    torn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, marks = tmp_path / "log.txt", tmp_path / ".log.txt.fence"
    fence = FileFence()
    fence.replace(file, 5, "first\n", lock="l")
    seen: list[bytes] = []
    write = MarkFile.write

    def recorded(place: MarkFile, value: Any) -> None:
        write(place, value)
        seen.append(marks.read_bytes())

    monkeypatch.setattr(MarkFile, "write", recorded)
    fence.append(file, 5, "0123456789", lock="l")
    monkeypatch.undo()
    intent, _ = seen
    # As a power cut would leave it: the intent on the disk, and so much of the append.
    marks.write_bytes(intent)
    file.write_bytes(b"first\n" + b"0123456789"[:torn])
    whole = b"first\n0123456789" if torn == 10 else b"first\n"
    assert fence.read(file, 6, lock="l") == whole
    fence.append(file, 6, "more", lock="l")
    assert file.read_bytes() == whole + b"more"


def sql_story(died: Died, what: str, where: str, connect: Callable[[], Any], step: int) -> bool:
    fence = SqlFence()
    with contextlib.closing(connect()) as connection:
        connection.execute("DROP TABLE IF EXISTS counter")
        connection.execute("DROP TABLE IF EXISTS lockline_fence")
        connection.execute("CREATE TABLE counter (value bigint)")
        connection.execute("INSERT INTO counter VALUES (5)")
        fence.create(connection)
        fence.enter(connection, "r", 5, lock="l")
        connection.commit()
    dead = died(what, step, where)
    with contextlib.closing(connect()) as connection:
        value = connection.execute("SELECT value FROM counter").fetchone()[0]
        assert fence.look(connection, "r", "l") == (value, ""), "the mark and the data are of one transaction"
        connection.rollback()
        fence.enter(connection, "r", 7, lock="l")
        connection.commit()
    return dead


def test_sqlite_and_its_mark_agree_after_a_death_at_any_step(tmp_path: Path, died: Died) -> None:
    path = str(tmp_path / "data.db")
    assert at_every_step(lambda step: sql_story(died, "sqlite", path, lambda: sqlite3.connect(path), step), 4) == 5


@pytest.mark.server
def test_postgresql_and_its_mark_agree_after_a_death_at_any_step(postgres: PostgresServer, died: Died) -> None:
    import psycopg

    def connect() -> Any:
        connection = psycopg.connect(postgres.url)
        connection.execute("SET lock_timeout = '20s'")
        return connection

    assert at_every_step(lambda step: sql_story(died, "postgresql", postgres.url, connect, step), 4) == 5


@pytest.mark.server
def test_postgresql_itself_may_die() -> None:
    import psycopg

    server = PostgresServer()
    fence = SqlFence()
    try:
        server.start()
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE counter (value bigint)")
            connection.execute("INSERT INTO counter VALUES (5)")
            fence.create(connection)
            fence.enter(connection, "r", 5)
        connection = psycopg.connect(server.url)
        fence.enter(connection, "r", 6)
        connection.execute("UPDATE counter SET value = 6")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        connection.close()
        (server.data / "postmaster.pid").unlink(missing_ok=True)
        server.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT value FROM counter").fetchone() == (5,)
            assert fence.look(connection, "r") == (5, "")
            with pytest.raises(StaleToken):
                fence.enter(connection, "r", 4)
    finally:
        server.remove()


@pytest.mark.server
def test_redis_and_its_mark_agree_after_the_server_died() -> None:
    with a_redis(keeps_data=True) as server:
        with contextlib.closing(server.client()) as client:
            fence = RedisFence(client)
            for token in range(1, 50):
                fence.set("k", token, token)
        server.kill()
        server.start()
        with contextlib.closing(server.client()) as client:
            fence = RedisFence(client)
            assert client.get("k") == "49"
            assert fence.look("k") == (49, "")
            with pytest.raises(StaleToken):
                fence.set("k", 48, "late")


@pytest.mark.server
def test_an_object_and_its_mark_agree_after_a_death_at_any_step(s3_url: str, died: Died) -> None:
    with contextlib.closing(an_s3(s3_url)) as client:
        client.create_bucket(Bucket="bucket")
        fence = S3Fence(client, "bucket")

        def story(step: int) -> bool:
            key = f"crash-{step}"
            fence.put(key, 5, b"5", lock="l")
            dead = died("s3", step, s3_url, key)
            mark = fence.look(key, "l")
            assert mark in ((5, ""), (6, ""))
            entry = fence.enter(key, 7, lock="l")
            assert entry.body in ((b"5",) if mark == (5, "") else (b"5", b"6"))
            entry.put(b"7")
            with pytest.raises(StaleToken):
                fence.put(key, 6, b"late", lock="l")
            return dead

        # Look at the mark, raise it, read, look at the mark, put: each may have been answered or not.
        assert at_every_step(story, 5) == 10


@pytest.mark.server
@pytest.mark.parametrize("at", ["before the write", "after the write"])
def test_a_served_application_that_dies_inside_leaves_the_mark(at: str, tmp_path: Path, forker: Forker) -> None:
    import httpx

    port = free_port()
    (tmp_path / "marks").mkdir()
    value = tmp_path / "value"
    argv = (str(port), str(value), str(tmp_path / "marks"), at)
    url = f"http://127.0.0.1:{port}/r"
    with in_a_child(forker, "dying", port, *argv, folder=tmp_path) as server:
        assert httpx.put(url, headers={"Fencing-Token": "5"}).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.put(url, headers={"Fencing-Token": "6"})
        assert server.wait(120) == -signal.SIGKILL
    assert value.exists() == (at == "after the write")
    with in_a_child(forker, "dying", port, *argv, folder=tmp_path):
        # Whether the work was done or not, the older holder is out.
        assert httpx.put(url, headers={"Fencing-Token": "5"}).status_code == 412
        assert httpx.put(url, headers={"Fencing-Token": "7"}).status_code == 200
