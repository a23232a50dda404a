"""`lockline lab` on the command line."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockline.cli.file_to_write import write

from ..servers.process import wait_for

RUN = [sys.executable, "-m", "lockline.cli", "lab"]


def run(folder: Path, *words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TMPDIR": str(folder), "COLUMNS": "100", **({"PATH": path} if path else {})}
    return subprocess.run([*RUN, *words], env=env, capture_output=True, text=True, timeout=120)


def processes_of(folder: Path) -> dict[int, str]:
    """Every process that works in this folder, or was started with it for its temporary files."""
    found = {}
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


def test_it_names_its_locks_and_failures(tmp_path: Path) -> None:
    told = json.loads(run(tmp_path, "list", "--json").stdout)
    assert len(told["locks"]) >= 30
    assert len(told["failures"]) == 19
    assert "redlock-as-published" in run(tmp_path, "list").stdout


@pytest.mark.parametrize(
    "words", [("show", "nonsense", "frozen"), ("show", "setnx", "nonsense"), ("--lock", "nonsense"), ("--failure", "x")]
)
def test_an_unknown_name_is_wrong_use_and_starts_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 64
    assert "lockline lab list" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pace", ["nan", "inf", "0", "-1", "21"])
def test_a_pace_that_is_none_is_wrong_use_and_starts_nothing(tmp_path: Path, pace: str) -> None:
    done = run(tmp_path, "--pace", pace)
    assert done.returncode == 64
    assert "0.5<=x<=20" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("--html",), "nowhere/lab.html"),
        (("show", "setnx", "frozen", "--svg"), ""),
    ],
)
def test_a_file_that_cannot_be_written_is_wrong_use_and_starts_nothing(
    tmp_path: Path, words: tuple[str, ...], place: str
) -> None:
    done = run(tmp_path, *words, str(tmp_path / place))
    assert done.returncode == 64
    assert str(tmp_path / place) in done.stderr
    assert list(tmp_path.iterdir()) == []


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
    wait_for(lambda: processes_of(tmp_path) == {}, 10, "the end of all processes")


@pytest.mark.server
def test_a_missing_server_greys_its_cells_with_the_command_that_installs_it(tmp_path: Path) -> None:
    nowhere = tmp_path / "bin"
    nowhere.mkdir()
    done = run(tmp_path, "--lock", "setnx", "--failure", "holder-crashes", path=str(nowhere))
    assert done.returncode == 0, done.stderr
    assert "apt-get install redis-server" in done.stdout


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_leaves_no_process_and_no_folder(tmp_path: Path, number: signal.Signals) -> None:
    lab = subprocess.Popen(
        [*RUN, "--lock", "setnx", "--lock", "redlock-as-published", "--lock", "lockline-redis"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: sum("redis-server" in words for words in processes_of(tmp_path).values()) > 6, 60, "servers")
        time.sleep(1.0)  # in the middle: some clients are frozen, some wait
        lab.send_signal(number)
        assert lab.wait(60) == 128 + signal.SIGINT
        wait_for(lambda: processes_of(tmp_path) == {}, 10, "the end of all processes")
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

    wait_for(of_both_kinds, 60, "clients and a server")
    lab.kill()
    lab.wait()
    wait_for(lambda: processes_of(tmp_path) == {}, 10, "the end of its clients and servers")
    wait_for(lambda: list(tmp_path.iterdir()) == [], 10, "the end of its folder")


def test_a_server_that_was_stopped_is_nobody_to_the_watcher(tmp_path: Path) -> None:
    """Its number may be another's by the time that the program is killed."""
    others = subprocess.Popen(["sleep", "60"])
    program = (
        "import os, signal, sys\n"
        "from lockline.lab.servers.watcher import WATCHER\n"
        "WATCHER.guards(int(sys.argv[1])); WATCHER.guards(int(sys.argv[2])); WATCHER.forgets(int(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    guarded = subprocess.Popen(["sleep", "60"])
    try:
        subprocess.run([sys.executable, "-c", program, str(others.pid), str(guarded.pid)], check=False)
        assert guarded.wait(30) == -signal.SIGKILL
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
        wait_for(lambda: not folder.exists(), 10, "the end of the folder")
    assert (other / "inside").is_dir()
