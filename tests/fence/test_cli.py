"""`lockline fence`: the check in shell scripts."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

import lockline
from lockline.cli import app
from lockline.fence import FileFence, FileMarks, Offer, SqlFence, SqlMarks

from ..cli.conftest import MAIN
from ..cli.forked import Forker, piped
from ..servers.redis import RedisServer, a_redis


class Answer(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app.run(["fence", *arguments])
    return Answer(code, out.getvalue(), err.getvalue())


@pytest.fixture(params=["file", "folder", pytest.param("redis", marks=pytest.mark.server)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.command("FLUSHALL")
        return server.url
    return str(tmp_path if request.param == "folder" else tmp_path / "marks.db")


def test_enter_leaves_with_0_or_77(where: str) -> None:
    assert run("enter", where, "orders/42", "5").returncode == 0
    assert run("enter", where, "orders/42", "5").returncode == 0
    assert run("enter", where, "orders/42", "6").returncode == 0
    late = run("enter", where, "orders/42", "5")
    assert late.returncode == 77
    assert "token 5 is stale at 'orders/42': 6 has been seen" in late.stderr
    assert run("enter", where, "orders/43", "5").returncode == 0


def test_a_sequencer_is_read_and_checked(tmp_path: Path) -> None:
    where = str(tmp_path / "marks.db")
    with lockline.connect("memory:") as client:
        with client.lock("orders/42") as lease:
            old = lease.sequencer()
        with client.lock("orders/42") as lease:
            new = lease.sequencer()
    read = run("check", new)
    assert (read.returncode, read.stdout) == (0, f"orders/42\tlock\t{lease.token}\n")
    assert run("check", new, where, "r").returncode == 0
    assert run("check", old, where, "r").returncode == 0
    assert run("enter", where, "r", new).returncode == 0
    assert run("check", new, where, "r").returncode == 0
    assert run("check", old, where, "r").returncode == 77
    assert run("enter", where, "r", old).returncode == 77
    assert SqlMarks(where).look("r", "orders/42") == (lease.token, lease.id)


def test_wrong_use_leaves_with_64(tmp_path: Path) -> None:
    where = str(tmp_path / "marks.db")
    for arguments in (
        ("enter", where, "r", "0"), ("enter", where, "r", "-1"), ("enter", where, "r", "x"), ("enter", where, "r", "1.5"),
        ("enter", where, "r", "9223372036854775808"), ("enter", where, "", "5"), ("enter", where, "r"),
        ("check", "orders:lock:5:g:00000000"), ("check",), ("enter", str(tmp_path / "no" / "marks.db"), "r", "5"),
        ("enter", "mongodb://x", "r", "5"), ("nonsense",),
    ):  # fmt: skip
        answer = run(*arguments)
        assert answer.returncode == 64, (arguments, answer)
        assert "Traceback" not in answer.stderr
    assert not (tmp_path / "marks.db").exists()


def test_no_marks_to_be_reached_leaves_with_69() -> None:
    assert run("enter", "redis://127.0.0.1:1", "r", "5").returncode == 69


def test_a_command_runs_inside(tmp_path: Path, forker: Forker) -> None:
    def run(*arguments: str) -> int:
        # In a process of its own: it takes over the signals.
        process = piped(forker, ["fence", *arguments], os.environ, tmp_path, call=MAIN)
        process.communicate(120)
        return process.returncode

    data = tmp_path / "data"
    marks = tmp_path / "marks"
    marks.mkdir()
    inside = ["enter", str(marks), "r"]
    assert run(*inside, "5", "--", "sh", "-c", f"echo five >> {data}; exit 3") == 3
    assert run(*inside, "4", "--", "sh", "-c", f"echo four >> {data}") == 77
    assert data.read_text() == "five\n"
    assert run(*inside, "6", "--", "no-such-command-here") == 127
    late: list[object] = []

    # The command itself starts the newer holder's attempt by making a file, and writes once more after that.
    begun = tmp_path / "begun"

    def enter() -> None:
        wait(begun)
        FileMarks(marks).admit("r", Offer("r", 8, ""), writes=True, patience=60)()
        late.append(data.read_text())

    script = f"touch {begun}; sleep 0.3; echo seven >> {data}"
    thread = threading.Thread(target=enter)
    thread.start()
    assert run(*inside, "7", "--", "sh", "-c", script) == 0
    thread.join(120)
    assert late == ["five\nseven\n"]


def wait(file: Path) -> None:
    from ..servers.process import wait_for

    wait_for(file.exists, 120)


def test_ddl_prints_what_create_makes() -> None:
    for dialect in ("sqlite", "postgresql", "mysql", "other"):
        assert run("ddl", dialect).stdout == SqlFence().ddl(dialect) + ";\n"
    assert "CREATE TABLE IF NOT EXISTS app.fences" in run("ddl", "postgresql", "--table", "app.fences").stdout


def test_the_marks_of_a_file_fence_are_not_those_of_the_command(tmp_path: Path) -> None:
    # A file that is fenced by FileFence is data, not a place for marks: the command must not write over it.
    file = tmp_path / "data.txt"
    FileFence().replace(file, 5, "hello " * 100)
    assert run("enter", str(file), "r", "6").returncode == 64
    assert file.read_text() == "hello " * 100


def test_marks_at_a_url_that_cannot_be_read_are_wrong_use_and_show_no_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for url in ("redis://:s3cret/x@h", "redis://:s3cret@h:port"):
        assert app.run(["fence", "enter", url, "orders/42", "5"]) == 64
        told = capsys.readouterr().err
        assert told.startswith("lockline: ")
        assert "s3cret" not in told


@pytest.mark.server
def test_the_password_of_the_marks_need_not_stand_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_redis("--requirepass", "secret") as server:
        monkeypatch.setenv("REDISCLI_AUTH", "secret")
        assert run("enter", server.url, "r", "5").returncode == 0
        assert run("enter", server.url, "r", "4").returncode == 77
        wrong = server.url.replace("//", "//:other@")
        assert run("enter", wrong, "r", "5").returncode == 69
