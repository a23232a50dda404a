"""What the exit code says."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial

import pytest

from lockline.cli import app
from tests.servers.process import free_port, wait_for

from .conftest import MAIN, Shell, end


def redis_is_here() -> bool:
    """Whether the backend can be used at all; a client library may be missing."""
    try:
        return hasattr(importlib.import_module("lockline.backends.redis"), "connect")
    except ImportError:
        return False


@pytest.mark.parametrize("code", [0, 1, 7, 75, 255])
def test_the_exit_code_is_the_commands_own(shell: Shell, code: int) -> None:
    assert shell("run", "job", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize(("name", "number"), [("TERM", 15), ("KILL", 9), ("SEGV", 11)])
def test_a_command_that_dies_by_a_signal_gives_128_plus_its_number(shell: Shell, name: str, number: int) -> None:
    done = shell("run", "job", "--", "sh", "-c", f"kill -{name} $$")
    assert done.returncode == 128 + number
    assert not shell.held()


def test_a_taken_lock_gives_75_without_waiting_and_says_who_has_it(shell: Shell) -> None:
    holder = shell.run("echo $$ > holder; exec sleep 600")
    shell.pid_in("holder")
    done = shell("run", "job", "--no-wait", "--", "touch", "ran")
    assert done.returncode == 75
    assert str(holder.pid) in done.stderr
    assert not (shell.folder / "ran").exists()
    assert shell.waiters() == 0


def test_a_wait_that_times_out_gives_75_and_leaves_the_line(shell: Shell) -> None:
    shell.run("echo $$ > holder; exec sleep 600")
    shell.pid_in("holder")
    done = shell("run", "job", "--timeout", "3s", "--", "touch", "ran")
    assert done.returncode == 75
    assert "stayed taken" in done.stderr
    assert not (shell.folder / "ran").exists()
    assert shell.waiters() == 0


def test_a_quiet_run_says_nothing_of_a_busy_lock_and_gives_the_code_that_was_asked_for(shell: Shell) -> None:
    shell.run("echo $$ > holder; exec sleep 600")
    shell.pid_in("holder")
    ways = ("--no-wait",), ("--timeout", "3s")
    quiet = [shell.start("run", "job", *way, "--quiet", "--busy-code", "0", "--", "touch", "ran") for way in ways]
    loud = [shell.start("run", "job", *way, "--busy-code", "9", "--", "touch", "ran") for way in ways]
    for process in quiet:
        assert end(process) == (0, "", "")
    for process in loud:
        code, _, err = end(process)
        assert (code, "taken" in err) == (9, True)
    assert not (shell.folder / "ran").exists()
    assert "not found" in shell("run", "other", "--quiet", "--", "./there-is-no-such-command").stderr


@pytest.mark.slow
@pytest.mark.skipif(not redis_is_here(), reason="needs a backend that connects to somewhere")
def test_an_unreachable_backend_gives_69(shell: Shell) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    for arguments in (("ls",), ("doctor",)):
        done = shell(*arguments, "--url", url)
        assert done.returncode == 69, (arguments, done.stderr, done.stdout)
    done = shell("run", "job", "--url", url, "--timeout", "1", "--", "touch", "ran")
    assert done.returncode == 69
    assert done.stderr.startswith("lockline: ")
    assert not (shell.folder / "ran").exists()


def test_storage_that_cannot_be_used_gives_69_and_names_the_file(shell: Shell) -> None:
    (shell.folder / "broken.db").write_bytes(b"this is no database" * 1000)
    done = shell("run", "job", "--timeout", "1", "--url", f"local://{shell.folder}/broken.db", "--", "true")
    assert done.returncode == 69
    assert "broken.db" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "nonsense",
        "ls --nonsense",
        "show",
        "run",
        "run job",
        "run job ls -l",
        "run job --no-wait --timeout 1 -- true",
        "run job --shared --limit 2 -- true",
        "run job --limit 0 -- true",
        "run job --limit many -- true",
        "run job --ttl 0 -- true",
        "run job --ttl -1 -- true",
        "run job --ttl nan -- true",
        "run job --ttl soon -- true",
        "run job --timeout -1 -- true",
        "run job --ttl 10 --grace 6 -- true",
        "run job --busy-code 256 -- true",
        "run job --busy-code -1 -- true",
        "run job --require nonsense -- true",
        "ls --url nonsense:",
        "doctor memory: --url memory:",
        "completion tcsh",
    ],
)
def test_wrong_use_gives_64_and_a_reason(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    assert app.run(arguments.split()) == 64
    assert capsys.readouterr().err


@pytest.mark.parametrize("url", ["nonsense:", "memory:"])
def test_a_store_that_no_command_can_use_gives_64_and_a_reason(shell: Shell, url: str) -> None:
    done = shell("run", "job", "--url", url, "--", "true")
    assert done.returncode == 64
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_or_endless_name_gives_64(shell: Shell) -> None:
    assert shell("run", "", "--", "true").returncode == 64
    assert shell("show", "n" * 513).returncode == 64


def test_a_command_that_is_not_there_gives_127_and_frees_the_lock(shell: Shell) -> None:
    done = shell("run", "job", "--", "./there-is-no-such-command")
    assert done.returncode == 127
    assert "not found" in done.stderr
    assert not shell.held()


def test_a_command_that_cannot_be_run_gives_126_and_frees_the_lock(shell: Shell) -> None:
    (shell.folder / "plain").write_text("echo no\n")
    assert shell("run", "job", "--", "./plain").returncode == 126
    assert shell("run", "job", "--", "/").returncode == 126
    assert not shell.held()


def test_without_click_one_sentence_names_the_cure(shell: Shell) -> None:
    (shell.folder / "click.py").write_text("raise ModuleNotFoundError(name='click')\n")
    done = shell.anew("ls", PYTHONPATH=os.pathsep.join([str(shell.folder), *sys.path]))
    assert done.returncode == 64
    assert done.stderr.count("\n") == 1
    assert "pip install 'lockline[cli]'" in done.stderr


def test_waiters_run_one_after_the_other_in_order(shell: Shell) -> None:
    first = shell.run("echo $$ > holder; while [ ! -e go ]; do sleep 0.1; done; echo 0 >> order")
    shell.pid_in("holder")
    others = []
    for number in (1, 2, 3):
        others.append(shell.run(f"echo {number} >> order"))
        wait_for(partial(lambda number: shell.waiters() == number, number), 60, f"{number} waiters")
    (shell.folder / "go").touch()
    assert [end(process)[0] for process in (first, *others)] == [0, 0, 0, 0]
    assert (shell.folder / "order").read_text().split() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "code"), [(["doctor"], 71), (["--help"], 71), (["run", "", "--", "true"], 64), (["nonsense"], 64)]
)
def test_a_full_disk_under_the_output_is_an_exit_code_and_no_traceback(
    shell: Shell, arguments: list[str], code: int
) -> None:
    said = shell.folder / "said"
    with open(os.devnull) as nothing, open("/dev/full", "w") as full, open(said, "w") as errors:
        for file in (errors, full):
            files = (nothing.fileno(), full.fileno(), file.fileno())
            assert shell.forker.start(arguments, shell.env, shell.folder, call=MAIN, files=files).wait(120) == code
    assert "Traceback" not in said.read_text()
