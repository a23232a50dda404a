"""`lockline lab` on the command line."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest

from lockline.cli import app
from lockline.cli.file_to_write import write
from lockline.lab import runner

from ..servers.process import state_of, wait_for
from ..tier import sample

RUN = [sys.executable, "-m", "lockline.cli", "lab"]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TMPDIR": str(folder), "COLUMNS": "100"}
    return subprocess.run([*RUN, *words], env=env, capture_output=True, text=True, timeout=240)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a laboratory of this process would have its folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def processes_of(folder: Path) -> dict[int, str]:
    """Every process that works in this folder, or was started with it for its temporary files."""
    found = {}
    time.sleep(0.1)  # it is asked again and again, and reads of every process of the machine
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ, words = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            here = (entry / "cwd").readlink()
        except OSError:
            continue
        # A server may have written its title over its environment; but it works in its own folder.
        if words and (f"TMPDIR={folder}".encode() in environ.split(b"\0") or here.is_relative_to(folder)):
            found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return found


def stands_still(pid: int) -> bool:
    try:
        return state_of(Path(f"/proc/{pid}/stat")) in "tT"
    except OSError:
        return False


def test_it_names_its_locks_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["lab", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["locks"]) >= 30
    assert len(told["failures"]) == 19
    assert app.run(["lab", "list"]) == 0
    assert "redlock-as-published" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [("show", "nonsense", "frozen"), ("show", "setnx", "nonsense"), ("--lock", "nonsense"), ("--failure", "x")]
)
def test_an_unknown_name_is_wrong_use_and_starts_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert app.run(["lab", *words]) == 64
    assert "lockline lab list" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("pace", ["nan", "inf", "0", "-1", "21"])
def test_a_pace_that_is_none_is_wrong_use_and_starts_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], pace: str
) -> None:
    assert app.run(["lab", "--pace", pace]) == 64
    assert "0.5<=x<=20" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("--html",), "nowhere/lab.html"),
        (("show", "setnx", "frozen", "--svg"), ""),
    ],
)
def test_a_file_that_cannot_be_written_is_wrong_use_and_starts_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], place: str
) -> None:
    assert app.run(["lab", *words, str(here / place)]) == 64
    assert str(here / place) in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_disk_that_is_full_is_said_and_leaves_no_half_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not write(Path("/dev/full"), "page")
    assert "No space left" in capsys.readouterr().err
    assert Path("/dev/full").exists()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        assert not write(tmp_path / "lab.html", "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.server
def test_one_cell_is_run_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "cell.svg"
    done = run(tmp_path, "show", "redlock-as-published", "one-of-five-restarts-empty", "--svg", str(picture))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost update" in done.stdout
    assert "second majority" in done.stdout
    assert "Redis 3" in done.stdout
    assert "<svg" in picture.read_text()
    picture.unlink()
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: processes_of(tmp_path) == {}, 120, "the end of all processes")


@pytest.mark.server
def test_a_missing_server_greys_its_cells_with_the_command_that_installs_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "Nursery", mock.Mock)  # no client is started
    monkeypatch.setenv("PATH", str(here / "bin"))
    monkeypatch.setenv("COLUMNS", "100")
    assert app.run(["lab", "--lock", "setnx", "--failure", "holder-crashes"]) == 0
    assert "apt-get install redis-server" in capsys.readouterr().out


@pytest.mark.server
@pytest.mark.parametrize("number", sample([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_a_signal_in_the_middle_leaves_no_process_and_no_folder(tmp_path: Path, number: signal.Signals) -> None:
    lab = subprocess.Popen(
        [
            *RUN, *("--lock", "set-nx-ex", "--lock", "lockline-redis"), *sample((), ("--lock", "redlock-as-published")),
            "--failure", "frozen", "--pace", "20",
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        # In the middle, and long before a ttl is over: some clients are frozen, and others wait.
        wait_for(lambda: any(map(stands_still, processes_of(tmp_path))), 120, "a client that is frozen")
        lab.send_signal(number)
        assert lab.wait(240) == 128 + signal.SIGINT
        wait_for(lambda: processes_of(tmp_path) == {}, 120, "the end of all processes")
        assert list(tmp_path.iterdir()) == []
    finally:
        lab.kill()


@pytest.mark.server
def test_neither_clients_nor_servers_nor_folders_outlive_a_laboratory_that_is_killed(tmp_path: Path) -> None:
    lab = subprocess.Popen(
        [*RUN, "--lock", "setnx", "--failure", "frozen"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def of_both_kinds() -> bool:
        running = processes_of(tmp_path).values()
        return any("redis-server" in words for words in running) and len(running) > 3

    wait_for(of_both_kinds, 120, "clients and a server")
    lab.kill()
    lab.wait()
    wait_for(lambda: processes_of(tmp_path) == {}, 120, "the end of its clients and servers")
    wait_for(lambda: list(tmp_path.iterdir()) == [], 120, "the end of its folder")


def test_a_server_that_was_stopped_is_nobody_to_the_watcher(tmp_path: Path) -> None:
    """Its number may be another's by the time that the program is killed."""
    others = subprocess.Popen(["sleep", "600"])
    program = (
        "import os, signal, sys\n"
        "from lockline.lab.servers.watcher import WATCHER\n"
        "WATCHER.guards(int(sys.argv[1])); WATCHER.guards(int(sys.argv[2])); WATCHER.forgets(int(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    guarded = subprocess.Popen(["sleep", "600"])
    try:
        subprocess.run([sys.executable, "-c", program, str(others.pid), str(guarded.pid)], check=False)
        assert guarded.wait(120) == -signal.SIGKILL
        assert others.poll() is None
    finally:
        for each in (others, guarded):
            each.kill()
            each.wait()


@pytest.mark.parametrize("name", ["plain", "with spaces and 'quotes' $HOME", "with\na second line"])
def test_a_folder_goes_with_the_program_and_nothing_else_does(tmp_path: Path, name: str) -> None:
    folder, other = tmp_path / name, tmp_path / "other"
    for each in (folder, other):
        (each / "inside").mkdir(parents=True)
    program = (
        "import os, pathlib, signal, sys\n"
        "from lockline.lab.servers.watcher import WATCHER\n"
        "WATCHER.takes_away(pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    if "\n" not in name:
        wait_for(lambda: not folder.exists(), 120, "the end of the folder")
    assert (other / "inside").is_dir()
