"""`ls`, `show`, `evict`, `doctor`, `completion`: for people and for programs."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockline
from lockline.cli import COMMANDS, app
from lockline.cli.text import duration, ordinal, printable, table
from tests.servers.process import free_port, wait_for

from .conftest import LOCKLINE, OnScreen, Shell, end
from .forked import Forker

CLAIM = {
    "id",
    "owner",
    "kind",
    "token",
    "holds",
    "weight",
    "capacity",
    "ttl",
    "remaining",
    "enqueued_at",
    "granted_at",
    "meta",
    "detached",
}


def made_busy(shell: Shell) -> Shell:
    """`job` is held and waited for; `jobs/other` is held."""
    shell.run("echo $$ > holder; exec sleep 600", "--ttl", "30")
    shell.run("echo $$ > other; exec sleep 600", "--ttl", "30", name="jobs/other")
    shell.pid_in("holder")
    shell.pid_in("other")
    shell.run("true", "--ttl", "30")
    wait_for(lambda: shell.waiters() == 1, 60, "a waiter")
    return shell


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, forker: Forker) -> Iterator[Shell]:
    """For tests that only look."""
    shell = Shell(tmp_path_factory.mktemp("busy"), forker)
    yield made_busy(shell)
    shell.clean()


@pytest.fixture
def own_busy(shell: Shell) -> Shell:
    """For tests that evict."""
    return made_busy(shell)


def test_ls_lists_what_is_held(busy: Shell) -> None:
    head, first, second = busy("ls").stdout.splitlines()
    assert head.split() == ["NAME", "KIND", "TOKEN", "FOR", "WAITING", "HELD", "BY"]
    assert re.match(r"job +lock +\d+ +\d+(\.\d)?s +1 +\S+:\d+ \(sh\)$", first)
    assert re.match(r"jobs/other +lock +\d+ +\d+(\.\d)?s +0 +\S+:\d+ \(sh\)$", second)
    assert len(busy("ls", "jobs/").stdout.splitlines()) == 2
    assert head.index("KIND") == first.index("lock") == second.index("lock")


def test_ls_in_json(busy: Shell) -> None:
    first, second = busy.json("ls")
    assert set(first) == {"name", "holders", "waiting"}
    assert (first["name"], first["waiting"]) == ("job", 1)
    assert (second["name"], second["waiting"]) == ("jobs/other", 0)
    assert set(first["holders"][0]) == CLAIM
    assert [line["name"] for line in busy.json("ls", "jobs/")] == ["jobs/other"]


def test_ls_of_nothing(shell: Shell) -> None:
    done = shell("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing is held" in done.stderr
    assert shell.json("ls") == []


WIDE = {"备份": 4, "e\u0301te\u0301": 3, "🚀": 2, "plain": 5}
"""Names, and the columns that they take."""


def test_ls_aligns_names_of_wide_characters(shell: Shell) -> None:
    for number, name in enumerate(WIDE):
        shell.run(f"echo $$ > holder{number}; exec sleep 600", name=name)
        shell.pid_in(f"holder{number}")
    head, *rows = shell("ls").stdout.splitlines()
    for row in rows:
        name = next(name for name in WIDE if row.startswith(name))
        assert row.index(" lock ") - len(name) + WIDE[name] + 1 == head.index("KIND"), row


def test_a_person_gets_what_the_doctor_says_in_lines_broken_between_words(shell: Shell, on_screen: OnScreen) -> None:
    whole = shell("doctor").stdout
    assert max(map(len, whole.splitlines())) > 100
    screen = on_screen(*LOCKLINE, "doctor", NO_COLOR="1")
    assert screen.code() == 0
    assert max(map(len, screen.text.splitlines())) <= 100

    def words(text: str) -> list[str]:
        return re.sub(r"answered in \S+ ms", "", text).split()

    assert words(screen.text) == words(whole)


def test_the_doctor_promises_nothing_for_a_store_that_is_not_there(shell: Shell) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    done = shell("doctor", url)
    assert done.returncode == 69
    assert "unreachable" in done.stdout
    assert "guarantees" not in done.stdout
    assert json.loads(shell("doctor", url, "--json").stdout)["guarantees"] is None


def test_the_doctor_names_no_cure_for_what_is_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lockline.backends.memory import MemoryBackend
    from lockline.cli.app import run
    from lockline.core.backend import Finding

    async def examine(self: object, until: float) -> list[Finding]:
        return [Finding("ok", "it is warm", "cool it"), Finding("warning", "it smokes", "open a window")]

    monkeypatch.setattr(MemoryBackend, "examine", examine)
    assert run(["doctor", "memory:"]) == 0
    said = capsys.readouterr().out
    assert "cool it" not in said
    assert "cure: open a window" in said
    assert run(["doctor", "memory:", "--json"]) == 0
    assert [found["cure"] for found in json.loads(capsys.readouterr().out)["findings"]] == ["", "open a window"]


@pytest.mark.parametrize(
    "backend", ["memory", "local", "redis", "redlock", "zookeeper", "etcd", "postgresql", "consul", "mysql"]
)
def test_the_doctor_and_the_readme_say_the_same_about_the_wake_up(backend: str) -> None:
    from lockline.cli.doctor import wake_up

    module = importlib.import_module(f"lockline.backends.{backend}" + ("" if backend == "memory" else ".backend"))
    scheme = {"zookeeper": "zk"}.get(backend, backend)
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (row,) = re.findall(rf"^\| `{scheme}:.*$", readme, re.MULTILINE)
    assert row.split("|")[4].strip(" ¹²³⁴⁵⁶") == wake_up(module.GUARANTEES)


def test_show_tells_the_line_in_order(busy: Shell) -> None:
    title, head, first, second = busy("show", "job").stdout.splitlines()
    assert title == "job: 1 holder, 1 waiting"
    assert head.split() == ["WHO", "KIND", "TOKEN", "FOR", "EXPIRES", "IN"]
    assert re.match(r"holds +\S+:\d+ \(sh\) +lock +\d+ +\S+ +\d+s$", first)
    assert re.match(r"1st in line +\S+:\d+ \(sh\) +lock +- +\S+ +\S+s$", second)


def test_show_in_json(busy: Shell) -> None:
    line = busy.json("show", "job")
    assert set(line) == {"name", "holders", "waiters"}
    (holder,), (waiter,) = line["holders"], line["waiters"]
    assert set(holder) == set(waiter) == CLAIM
    assert holder["holds"] is True
    assert waiter["holds"] is False
    assert waiter["token"] > holder["token"] > 0
    assert holder["ttl"] == 30
    assert 0 < holder["remaining"] <= 30
    assert holder["meta"] == {"command": "sh"}


def test_show_of_a_free_name(shell: Shell) -> None:
    assert shell("show", "free").stdout == "free is free: nobody holds it or waits for it\n"
    assert shell.json("show", "free") == {"name": "free", "holders": [], "waiters": []}


def test_a_name_cannot_steer_the_terminal(shell: Shell) -> None:
    name = "a\x1b[31mb\nc"
    shell.run("echo $$ > holder; exec sleep 600", name=name)
    shell.pid_in("holder")
    assert shell("ls").stdout.splitlines()[1].startswith(r"a\x1b[31mb\nc ")
    assert "\x1b" not in shell("show", name).stdout
    assert shell.json("ls")[0]["name"] == name


def test_an_owner_cannot_steer_the_terminal_of_those_who_look(shell: Shell, on_screen: OnScreen) -> None:
    evil = "\x1b]0;mine\x07\u202e\nroot"
    with lockline.connect(shell.url, owner=evil) as client, client.lock("job", meta={"command": evil}):
        waiting = on_screen(*LOCKLINE, "run", "job", "--timeout", "3", "--", "true", NO_COLOR="1")
        all_words = (
            ("ls",),
            ("show", "job"),
            ("run", "job", "--no-wait", "--", "true"),
            ("run", "job", "--timeout", "3s", "--", "true"),
        )
        started = [shell.start(*words) for words in all_words]
        screen = on_screen(*LOCKLINE, "evict", "job", NO_COLOR="1")
        screen.wait_for("Take it away")
        screen.type("n\n")
        screen.code()
        said = ["".join(end(process)[1:]) for process in started]
        waiting.code()
        assert "held by" in waiting.text
        said += [screen.text, waiting.text]
    for text in said:
        assert "mine" in text
        assert "\x1b]0" not in text
        assert "\x07" not in text
        assert "\u202e" not in text
        assert "\nroot" not in text.replace("\\nroot", "")


def test_evict_lets_in_the_next(own_busy: Shell) -> None:
    done = own_busy.json("evict", "job")
    assert set(done) == {"name", "evicted", "holders"}
    assert done["evicted"] == 1
    assert set(done["holders"][0]) == CLAIM
    wait_for(lambda: not own_busy.held(), 60, "the end of the one who waited")
    assert own_busy("evict", "job").stdout == "job: nobody held it\n"


def test_evict_takes_the_holder_with_that_token_and_no_other(own_busy: Shell) -> None:
    token = own_busy.json("show", "job")["holders"][0]["token"]
    done = own_busy("evict", "job", "--token", str(token - 1))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"token {token - 1} no longer holds it" in done.stderr
    assert own_busy.json("show", "job")["holders"][0]["token"] == token
    assert own_busy("evict", "job", "--token", str(token)).returncode == 0
    wait_for(lambda: not own_busy.held(), 60, "the end of the one who waited")
    assert own_busy("evict", "job", "--token", str(token)).returncode == 0


def test_evict_without_a_stdin_does_not_ask(own_busy: Shell) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *LOCKLINE, "evict", "job"],
        env=own_busy.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_doctor_says_what_the_backend_promises(shell: Shell) -> None:
    done = shell("doctor")
    assert done.returncode == 0
    assert "reachable" in done.stdout
    assert "machine: between the processes of one machine that use this file" in done.stdout
    report = shell.json("doctor", shell.url)
    assert set(report) == {"url", "reachable", "problem", "answer_seconds", "guarantees", "findings"}
    assert report["reachable"] is True
    assert set(report["guarantees"]) == {"exclusion", "fifo", "push", "token_survives", "tolerates"}
    assert report["guarantees"]["exclusion"] == "machine"
    assert all(set(finding) == {"level", "text", "cure"} for finding in report["findings"])


def test_doctor_of_what_cannot_be_used(shell: Shell) -> None:
    (shell.folder / "broken.db").write_bytes(b"this is no database" * 1000)
    url = f"local://{shell.folder}/broken.db"
    assert shell("doctor", url).returncode == 69
    done = shell("doctor", url, "--json")
    assert done.returncode == 69
    report = json.loads(done.stdout)
    assert report["reachable"] is False
    assert "broken.db" in report["problem"]


def test_doctor_fails_on_a_finding_that_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lockline.backends.memory import MemoryBackend
    from lockline.cli.app import run
    from lockline.core.backend import Finding

    async def examine(self: object, until: float) -> list[Finding]:
        return [Finding("error", "it burns", "water")]

    monkeypatch.setattr(MemoryBackend, "examine", examine)
    assert run(["doctor", "memory:"]) == 1
    assert re.search(r"error +it burns\n +cure: water", capsys.readouterr().out)


@pytest.mark.parametrize("command", [("run",), ("run", "--no-wait"), ("lead", "-q"), ("once", "--fresh", "1m")])
def test_a_command_without_a_name_is_not_taken_for_one(shell: Shell, command: tuple[str, ...]) -> None:
    done = shell(*command, "--", "env", "touch", "ran")  # `touch ran`, under a lock called env
    assert done.returncode == 64
    assert "before the --" in done.stderr
    assert not (shell.folder / "ran").exists()


@pytest.mark.parametrize("command", [("run", "job"), ("lead", "job"), ("once", "job", "--fresh", "1m")])
def test_the_words_of_a_command_stand_on_one_side_of_the_two_dashes(shell: Shell, command: tuple[str, ...]) -> None:
    done = shell(*command, "touch", "--", "ran")  # the two dashes of `git checkout -- file` would be ours
    assert done.returncode == 64
    assert "behind the --" in done.stderr
    assert not (shell.folder / "ran").exists()
    assert shell(*command, "touch", "ran").returncode == 0
    assert shell(*command, "--", "test", "--", "!=", "-x").returncode == 0


def test_a_name_that_begins_with_a_dash_stands_behind_them(shell: Shell) -> None:
    assert shell("run", "--", "-x", "sh", "-c", "echo $LOCKLINE_NAME").stdout == "-x\n"


def test_a_name_that_the_locale_cannot_write_is_shown_escaped(shell: Shell) -> None:
    shell.run("echo $$ > holder; exec sleep 600", name="jobs/锁")
    shell.pid_in("holder")
    for command in (("ls",), ("show", "jobs/锁"), ("doctor", f"local://{shell.folder}/锁.db")):
        done = shell.anew(*command, PYTHONIOENCODING="latin-1")  # as LC_ALL=en_US does
        assert done.returncode == 0, done.stderr
        assert "\\u9501" in done.stdout


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    assert app.run(["completion", kind]) == 0
    script = capsys.readouterr().out
    assert "_LOCKLINE_COMPLETE" in script
    assert "%" not in script.replace("%s", "")


def test_completion_knows_commands_and_names(busy: Shell) -> None:
    def complete(line: str) -> list[str]:
        done = busy(_LOCKLINE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1))
        return [answer.partition(",")[2] for answer in done.stdout.split()]

    assert complete("lockline ev") == ["evict"]
    assert complete("lockline show jo") == ["job", "jobs/other"]


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_every_help_has_examples(capsys: pytest.CaptureFixture[str], command: str | None) -> None:
    assert app.run([*([command] if command else []), "--help"]) == 0
    assert "Examples:" in capsys.readouterr().out


def test_version(shell: Shell) -> None:
    from lockline import __version__

    assert shell("--version").stdout.strip().endswith(__version__)


def test_output_that_nobody_reads_is_no_error(busy: Shell) -> None:
    process = busy.start("ls")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    code, _, err = end(process)
    assert code != 0
    assert err == ""


def test_no_cell_of_a_table_can_steer_the_terminal() -> None:
    assert table(("KIND", "X"), [("a\x1b[2J", "b")]) == ["KIND      X", r"a\x1b[2J  b"]


def test_times_read_well() -> None:
    lengths = (0, 3.14159, 59.9, 192, 3600, 90061)
    assert [duration(seconds) for seconds in lengths] == ["0.0s", "3.1s", "59s", "3m12s", "1h00m", "1d01h"]
    assert [ordinal(place) for place in (1, 2, 3, 4, 11, 22, 113)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "22nd",
        "113th",
    ]
    assert printable("a\tb") == "a\\tb"
