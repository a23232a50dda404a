"""The file of `local:`: private, refused when it is not ours, and clear about what is wrong with the disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline.backends.local import commands, inspection, keeping, schema, target
from lockline.core.claim import Claim, Gone, Grant
from lockline.runtime import clock

from .conftest import PYTHON

NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "local.db"


@pytest.fixture
def client(file: Path) -> Iterator[lockline.Client]:
    with lockline.connect(f"local://{file}") as client:
        yield client


def take(file: Path) -> int:
    """One grant, and its token."""
    with lockline.connect(f"local://{file}") as client, client.lock("x") as lease:
        return lease.token


def refusal(file: Path) -> str:
    """The error text of an acquire that the storage refuses."""
    with (
        lockline.connect(f"local://{file}") as client,
        pytest.raises(lockline.BackendUnavailable) as refused,
    ):
        client.lock("x").acquire(timeout=1)
    return str(refused.value)


def ask(client: lockline.Client, statement: str) -> Any:
    """The first row that the client's own connection gives."""
    steps: Any = client._engine.backend._steps  # type: ignore[attr-defined]
    return steps.read(lambda db: db.execute(statement).fetchone())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_it_makes_is_private_to_the_user(file: Path, client: lockline.Client) -> None:
    with client.lock("x"):
        assert mode(file.parent) == 0o700
        made = sorted(path for path in file.parent.rglob("*"))
        assert len(made) >= 4  # the file, its log, its shared memory, the folder of sockets
        assert {path.name: mode(path) & 0o077 for path in made} == {path.name: 0 for path in made}


def test_a_long_path_is_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a-rather-long-folder-name"] * 8)
    with lockline.connect(f"local://{folder}/local.db") as client:
        lease = client.lock("x").acquire()
        assert client.lock("x").try_acquire() is None
        lease.release()


def test_the_default_file_is_in_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("LOCKLINE_URL", raising=False)
    with lockline.connect() as client, client.lock("x"):
        assert (tmp_path / "lockline" / "local.db").exists()


@pytest.mark.parametrize("url", ["local:relative.db", "local://host/x.db", "local:///", "local:///x?y=1"])
def test_a_url_that_names_no_file_is_refused_before_any_io(url: str) -> None:
    with pytest.raises(lockline.ConfigError):
        lockline.connect(url)


def test_a_file_of_a_newer_version_is_refused(file: Path) -> None:
    take(file)
    with sqlite3.connect(file) as db:
        db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    db.close()
    text = refusal(file)
    assert str(file) in text
    assert "newer Lockline" in text
    assert "upgrade" in text


def test_a_database_of_another_program_is_left_alone(file: Path) -> None:
    file.parent.mkdir()
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = file.read_bytes()
    assert "another program" in refusal(file)
    assert file.read_bytes() == before


def test_a_file_that_is_no_database_is_left_alone(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"these are my notes\n" * 100)
    text = refusal(file)
    assert str(file) in text
    assert "move it away" in text
    assert file.read_bytes() == b"these are my notes\n" * 100


def test_a_corrupt_file_is_named_with_the_cure(file: Path) -> None:
    with lockline.connect(f"local://{file}") as client:
        held = [client.lock(f"name-{number}", meta={"filler": "x" * 500}).acquire() for number in range(200)]
    assert not any(lease.valid for lease in held)
    whole = file.read_bytes()
    file.write_bytes(whole[:1024] + os.urandom(len(whole) - 1024))
    text = refusal(file)
    assert str(file) in text
    assert "move it away" in text


def test_a_full_disk_is_named_with_the_cure(file: Path) -> None:
    take(file)
    with lockline.connect(f"local://{file}") as client:
        client.lock("x").acquire().release()
        (pages,) = ask(client, "PRAGMA page_count")
        ask(client, f"PRAGMA max_page_count = {pages}")
        with pytest.raises(lockline.BackendUnavailable) as refused:
            _ = [client.lock(f"n-{n}", meta={"filler": "x" * 900}).acquire(timeout=1) for n in range(1000)]
        assert str(file) in str(refused.value)
        assert "disk is full" in str(refused.value)
        ask(client, "PRAGMA max_page_count = 1000000")
        client.lock("afterwards").acquire(timeout=20).release()


AS_NOBODY = """
import sys, lockline
try:
    with lockline.connect("local://" + sys.argv[1]) as client:
        client.lock("x").acquire(timeout=1).release()
except lockline.BackendUnavailable as refused:
    print(refused)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("what", ["read-only file", "unreadable file", "folder without write permission"])
def test_a_file_that_this_user_may_not_use_is_named_with_the_cure(public: Path, source: Path, what: str) -> None:
    file = public / "state" / "local.db"
    take(file)
    file.parent.chmod(0o777)
    file.chmod(0o444 if what == "read-only file" else 0o000)
    if what.startswith("folder"):
        shutil.rmtree(file.parent)
        file.parent.mkdir(mode=0o755)
    if PYTHON is None:
        pytest.skip("no interpreter that every user can run")
    ran = subprocess.run(
        [PYTHON, "-c", AS_NOBODY, str(file)],
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        user=NOBODY,
        group=NOBODY,
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert str(file) in ran.stdout, ran.stderr
    assert "permissions" in ran.stdout or "writable" in ran.stdout


def test_a_file_that_was_replaced_under_us_is_noticed(file: Path, client: lockline.Client) -> None:
    lease = client.lock("x", ttl=5).acquire()
    for path in file.parent.glob("local.db*"):
        if path.is_file():
            path.unlink()
    with lockline.connect(f"local://{file}") as other:
        taken = other.lock("x").acquire(timeout=60)
        assert taken.token > lease.token
        assert lease.lost.wait(60)
        with pytest.raises(lockline.LeaseLost):
            lease.release()
        with pytest.raises(lockline.AcquireTimeout):
            client.lock("x").acquire(timeout=0.1)
        taken.release()
        client.lock("x").acquire(timeout=60).release()


def test_tokens_go_on_rising_when_the_power_fails(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last transactions are lost; numbering goes on above everything that was ever given out."""
    take(file)
    with lockline.connect(f"local://{file}") as client:
        client.lock("x").acquire().release()
        synced = {path: path.read_bytes() for path in file.parent.glob("local.db*") if path.is_file()}
        held = client.lock("held", ttl=600).acquire()
        with client.lock("x") as lease:
            highest = max(lease.token, held.token)
    for path in file.parent.glob("local.db*"):
        if path.is_file():
            path.unlink()
    for path, content in synced.items():
        if not path.name.endswith("-shm"):
            path.write_bytes(content)
    monkeypatch.setattr(schema, "boot_id", lambda: "the next boot")
    assert take(file) > highest
    with lockline.connect(f"local://{file}") as client:
        assert client.list() == []


def test_a_used_up_block_of_tickets_is_synced_before_the_next(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "BLOCK", 10)
    tokens = [take(file) for _ in range(3)]
    with lockline.connect(f"local://{file}") as client:
        for _ in range(50):
            with client.lock("x") as lease:
                tokens.append(lease.token)
                last, ceiling = ask(client, commands.LAST_TICKET)
                assert last == lease.token <= ceiling
    assert tokens == sorted(set(tokens))
    monkeypatch.setattr(schema, "boot_id", lambda: "the next boot")
    assert take(file) > ceiling


def test_the_wall_clock_may_step_by_hours(file: Path, client: lockline.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    real = time.time
    lease = client.lock("x", ttl=60).acquire()
    for hours in (-5, 5):
        monkeypatch.setattr(time, "time", lambda hours=hours: real() + hours * 3600)
        assert 30 < lease.remaining() <= 60
        with lockline.connect(f"local://{file}") as other:
            assert other.lock("x").try_acquire() is None
            assert 30 < other.inspect("x").holders[0].remaining <= 60
    lease.release()


def test_the_boot_id_is_one_per_boot() -> None:
    assert target.boot_id() == target.boot_id() != ""


def test_a_claim_whose_step_was_undone_never_takes_another_ones_place(file: Path) -> None:
    """Its ticket goes to the next who comes: withdrawing or renewing the one must not touch the other."""

    class Undone(Exception):
        pass

    ours, theirs = commands.SqliteSteps(file, clock.now), commands.SqliteSteps(file, clock.now)
    claim = Claim("x", "ours-1", "me", "lock", 1, 1, 30.0, 0.0, "")

    def cut_short(db: sqlite3.Connection) -> None:
        ours._enter(db, claim, True, "0" * 16, 1)
        raise Undone

    with pytest.raises(Undone):
        ours.step(cut_short)
    granted, _ = theirs.enter(claim._replace(id="theirs-1"), True, "1" * 16, 2)
    assert isinstance(granted, Grant)
    assert ours._places[claim.id][0] == granted.token
    assert isinstance(ours.standing(claim)[0], Gone)
    assert ours.renew([claim])[0] == [Gone()]
    assert ours.leave(claim) == (False, [])
    assert ours.leave_all([claim]) == ([False], [])
    assert [held.id for held in inspection.look(theirs, "x").holders] == ["theirs-1"]
    ours.close()
    theirs.close()


def test_nothing_is_left_when_the_claims_are_gone(file: Path) -> None:
    with lockline.connect(f"local://{file}") as client:
        for number in range(50):
            with client.lock(f"name-{number}"):
                pass
        assert ask(client, "SELECT count(*) FROM claims") == (0,)
        assert client.list() == []
    assert sorted(path.name for path in file.parent.iterdir()) == ["local.db", "local.db-peers"]
    assert list((file.parent / "local.db-peers").iterdir()) == []


def test_what_a_crash_left_on_an_unused_name_is_swept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = (
        "import os, lockline\n"
        f"client = lockline.connect('local://{file}')\n"
        "lease = client.lock('never used again', ttl=0.3).acquire()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run(["python3", "-c", child], env={**os.environ, "PYTHONPATH": str(Path(lockline.__file__).parents[1])})
    monkeypatch.setattr(commands, "SWEEP_EVERY", 0.0)
    with lockline.connect(f"local://{file}") as client:
        lease = client.lock("x", ttl=5.0).acquire()
        until = lease._live.runtime.now() + 120
        while ask(client, "SELECT count(*) FROM claims WHERE name = 'never used again'") != (0,):
            assert lease._live.runtime.now() < until
            lease.lost.wait(0.05)
        lease.release()
    assert list((file.parent / "local.db-peers").iterdir()) == []


def test_to_clear_away_what_is_kept_no_longer_does_not_look_at_all_that_is(client: lockline.Client, file: Path) -> None:
    client.once("key", lambda: "value", fresh=60)
    db = sqlite3.connect(file)
    (plan,) = db.execute("EXPLAIN QUERY PLAN " + keeping.SWEEP, (0,))
    db.close()
    assert "INDEX kept_until" in plan[-1]
