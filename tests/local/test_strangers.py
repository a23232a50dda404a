"""Beside strangers: nothing that is not ours is touched, a group that shares the file works together, a network is refused."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockline
from lockline import aio
from lockline.backends.local import target

from .conftest import PYTHON
from .programs import ROOT

as_root = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: needs root to become another user")
ALICE, BOB, MALLORY, TEAM, OTHERS = 61001, 61002, 61003, 62000, 62001


def url_of(file: Path) -> str:
    return f"local://{file}"


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    yield
    while _started:
        process = _started.pop()
        process.kill()
        process.communicate()


def program_of(
    user: int, group: int, source: Path, program: str, file: Path, *, also: tuple[int, ...] = ()
) -> subprocess.Popen[str]:
    """A program that runs as that user, with a wide-open umask of 077."""
    if PYTHON is None:
        pytest.skip("NOT TESTED: no interpreter that every user can run")
    process = subprocess.Popen(
        [PYTHON, "-c", f"import os; os.umask(0o077)\nimport lockline, sys\nurl = 'local://{file}'\n" + program],
        env={
            "PYTHONPATH": str(source),
            "PATH": "/usr/bin:/bin",
            "HOME": "/nonexistent",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        user=user,
        group=group,
        extra_groups=list(also),
        cwd="/",
    )
    _started.append(process)
    return process


def said(process: subprocess.Popen[str], say: str = "") -> str:
    out, error = process.communicate(say, timeout=120)
    assert process.returncode == 0, error
    return out.strip()


# -- what was planted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_planted_link_leads_to_a_refusal_and_no_file_behind_it_is_touched(tmp_path: Path, flavour: str) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("thesis.txt", "0123456789abcdef", "fedcba9876543210.keeper"):
        (precious / name).write_text("years of work")
    (tmp_path / "shared.db-peers").symlink_to(precious)

    async def attempt() -> None:
        async with aio.connect(url_of(tmp_path / "shared.db")) as client:
            await client.lock("x").acquire(timeout=1)

    def blocking() -> None:
        with lockline.connect(url_of(tmp_path / "shared.db")) as client:
            client.lock("x").acquire(timeout=1)

    with pytest.raises(lockline.BackendUnavailable, match="link"):
        blocking() if flavour == "sync" else asyncio.run(attempt())
    assert sorted(path.name for path in precious.iterdir()) == [
        "0123456789abcdef",
        "fedcba9876543210.keeper",
        "thesis.txt",
    ]


def test_what_lies_in_the_folder_of_sockets_and_is_none_stays(tmp_path: Path) -> None:
    file = tmp_path / "local.db"
    with lockline.connect(url_of(file)) as client:
        client.lock("x").acquire().release()
    folder = tmp_path / "local.db-peers"
    (folder / "0123456789abcdef").write_text("a file that is called as a socket of ours")
    (folder / "notes").write_text("a file")
    (folder / "fedcba9876543210").symlink_to(folder / "notes")
    with lockline.connect(url_of(file)) as client:
        client.lock("x").acquire().release()
    assert sorted(path.name for path in folder.iterdir()) == ["0123456789abcdef", "fedcba9876543210", "notes"]


@as_root
@pytest.mark.parametrize("planted", ["folder", "file"])
def test_a_folder_that_somebody_else_put_there_is_refused(public: Path, source: Path, planted: str) -> None:
    shared = public / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    trap = shared / "local.db-peers"
    if planted == "folder":
        trap.mkdir()
    else:
        trap.write_text("")
    os.chown(trap, MALLORY, OTHERS)
    trap.chmod(0o777)
    told = said(
        program_of(
            ALICE,
            TEAM,
            source,
            "try:\n    lockline.connect(url).lock('x').acquire(timeout=1)\nexcept lockline.BackendUnavailable as refused:\n    print(refused)",
            shared / "local.db",
        )
    )
    assert "local.db-peers" in told
    assert "another user" in told or "no folder" in told


# -- a file that a group shares --------------------------------------------------------------------------

HOLD = """
client = lockline.connect(url)
lease = client.lock("job", ttl=600).acquire(timeout=60)
print(lease.token, flush=True)
sys.stdin.readline()
lease.release()
client.close()
"""
TRY = """
with lockline.connect(url) as client:
    tried = client.lock("job").try_acquire()
    print(tried is None, [held.token for held in client.inspect("job").holders])
"""


@as_root
@pytest.mark.parametrize("first", ["a folder that hands its group on", "a file made for the group"])
def test_two_users_of_a_group_exclude_and_wake_each_other(public: Path, source: Path, first: str) -> None:
    team = public / "team"
    team.mkdir()
    os.chown(team, ALICE, TEAM)
    file = team / "local.db"
    if first.startswith("a folder"):
        team.chmod(0o2770)
    else:
        team.chmod(0o770)
        file.touch()
        os.chown(file, ALICE, TEAM)
        file.chmod(0o660)
    alice = program_of(ALICE, OTHERS, source, HOLD, file, also=(TEAM,))
    assert alice.stdout is not None
    token = int(alice.stdout.readline() or said(alice))
    assert said(program_of(BOB, OTHERS, source, TRY, file, also=(TEAM,))) == f"True [{token}]"
    bob = program_of(BOB, OTHERS, source, HOLD, file, also=(TEAM,))
    assert alice.stdin is not None
    alice.stdin.write("\n")
    alice.stdin.flush()
    assert bob.stdout is not None
    assert int(bob.stdout.readline() or said(bob)) > token
    # Bob is woken, and is noticed when he is killed, by the other user.
    bob.kill()
    bob.communicate()
    said(alice)
    assert said(
        program_of(
            ALICE,
            OTHERS,
            source,
            "print(lockline.connect(url).lock('job').acquire(timeout=60).token)",
            file,
            also=(TEAM,),
        )
    )
    outsider = program_of(MALLORY, OTHERS, source, TRY, file)
    outsider.communicate(timeout=120)
    assert outsider.returncode != 0
    for path in (file, team / "local.db-peers"):
        assert not path.stat().st_mode & 0o007
        assert path.stat().st_gid == TEAM


@as_root
def test_what_the_superuser_makes_beside_a_users_file_is_the_users(public: Path, source: Path) -> None:
    home = public / "home"
    home.mkdir(mode=0o700)
    file = home / "local.db"
    file.touch(mode=0o600)
    for path in (home, file):
        os.chown(path, ALICE, OTHERS)
    with lockline.connect(url_of(file)) as client, client.lock("job"):
        assert said(program_of(ALICE, OTHERS, source, TRY, file)).startswith("True")
    assert said(program_of(ALICE, OTHERS, source, TRY, file)).startswith("False")


def test_a_file_in_a_plain_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    folder.chmod(0o777)
    old = os.umask(0)
    try:
        with lockline.connect(url_of(folder / "local.db")) as client, client.lock("x"):
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in folder.rglob("*")}
    finally:
        os.umask(old)
    assert set(modes.values()) == {0}


# -- where it cannot work --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "lustre", "virtiofs"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    shared = tmp_path / "a shared \u00e4 place"
    shared.mkdir()
    table = tmp_path / "mounts"
    escaped = str(shared).replace(" ", "\\040")
    table.write_text(
        f"/dev/vda / ext4 rw 0 0\nserver:/export {escaped} {kind} rw 0 0\ntmpfs {escaped}-not tmpfs rw 0 0\n"
    )
    monkeypatch.setattr(target, "MOUNTS", table)
    with lockline.connect(url_of(shared / "local.db")) as client:
        with pytest.raises(lockline.ConfigError, match="network file system"):
            client.lock("x").acquire(timeout=1)
        with pytest.raises(lockline.ConfigError, match="network file system"):
            client.list()
    assert list(shared.iterdir()) == []
    with lockline.connect(url_of(tmp_path / "here.db")) as client:
        client.lock("x").acquire(timeout=60).release()


def test_a_file_that_came_with_a_network_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "local.db"
    with lockline.connect(url_of(file)) as client:
        client.lock("x").acquire().release()
    table = tmp_path / "mounts"
    table.write_text(f"server:/export {tmp_path} nfs rw 0 0\n")
    monkeypatch.setattr(target, "MOUNTS", table)
    with lockline.connect(url_of(file)) as client, pytest.raises(lockline.ConfigError):
        client.lock("x").acquire(timeout=1)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(no_home))
    with pytest.raises(lockline.ConfigError, match="XDG_STATE_HOME"):
        lockline.connect("local:")


@as_root
def test_a_user_whom_the_system_does_not_know_is_told_what_to_set(source: Path, public: Path) -> None:
    process = program_of(
        MALLORY, OTHERS, source,
        "del os.environ['HOME']\ntry:\n    lockline.connect('local:')\nexcept lockline.ConfigError as refused:\n    print(refused)",
        public / "x.db",
    )  # fmt: skip
    assert "XDG_STATE_HOME" in said(process)


OUT_OF_HANDLES = """
import os, resource, sys
import lockline
from lockline import aio
import asyncio, lockline.backends.local
url, warm = sys.argv[1], sys.argv[2] == "warm"
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
outcomes = set()
client = lockline.connect(url)
if warm:
    client.lock("warm").acquire().release()
    held = client.lock("held", ttl=60).acquire()
for leave in range(12):
    spare = []
    try:
        while True:
            spare.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(leave):
        os.close(spare.pop())
    one = client if warm else lockline.connect(url)
    for ask in (lambda: one.lock("x").acquire(timeout=0.2).release(), lambda: one.lock("held").try_acquire(), one.list, lambda: one.inspect("x")):
        try:
            ask()
            outcomes.add("ok")
        except lockline.LocklineError as error:
            outcomes.add(type(error).__name__)
        except BaseException as error:
            outcomes.add("RAW " + repr(error))
    for handle in spare:
        os.close(handle)
client.lock("after").acquire(timeout=60).release()
print(sorted(outcomes))
"""


@pytest.mark.parametrize("state", ["fresh", "warm"])
def test_running_out_of_handles_is_a_typed_error_and_passes(tmp_path: Path, state: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OUT_OF_HANDLES, url_of(tmp_path / "local.db"), state],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "RAW" not in ran.stdout
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_home_that_is_no_absolute_path_is_refused(flavour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder that a program is started in would have a store of its own, without a word."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(lockline.ConfigError, match="no absolute path"):
        (lockline.connect if flavour == "sync" else lockline.aio.connect)("local:")
