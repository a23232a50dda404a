"""`lockline verify` as people call it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lockline.cli import verify as command
from lockline.cli.app import run
from lockline.guarantees import Guarantees
from lockline.lab.verify.history import Fault, History, RegisterRecord
from lockline.lab.verify.judge import Rules, judge
from lockline.lab.verify.machine import RunOutcome, RunWish
from lockline.lab.verify.report import page
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer, a_redis, keys

from ..tier import sample
from .histories import held, history

COMMAND = (sys.executable, "-m", "lockline.cli", "verify")


def workers_of(pid: int) -> list[int]:
    """The processes that this one has started."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def claims(server: RedisServer) -> list[str]:
    """Every claim that is in a line."""
    return [field for key in keys([server]) for field in server.command("HKEYS", key) if field[0] in "+~"]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with a_redis() as server:
        yield server


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.usefixtures("patient_judge")
def test_a_report_in_every_form_and_nothing_left(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes some 15 s: in less a busy machine may not make the grants without which there is no verdict."""
    monkeypatch.setattr(command, "RunWish", partial(RunWish, least=10))
    monkeypatch.setattr(command, "PLANTED_SECONDS", 120.0)
    written = tmp_path / "report.html"
    mark = tmp_path / "hook"
    code = run([
        "verify", server.url, "--time", "7s", "--workers", "2", "--ttl", "6s", "--seed", "7", "--json", "--html", str(written),
        "--fault", f"touch {mark}", "--every", "1s",
    ])  # fmt: skip
    said = capsys.readouterr()
    assert code == 0, said.err + said.out
    told = json.loads(said.out)
    assert told["verdict"] == "held"
    assert told["seed"] == 7
    assert told["faults"]["your fault"] >= 1
    assert mark.exists()
    assert "exclusion" in told["planted"]["promises"]
    assert {one["state"] for one in told["promises"]} <= {"held", "not exercised"}
    assert told["network_faults"] == "exercised"
    text = written.read_text()
    assert "<svg" in text
    assert "exclusion" in text
    assert not re.search(r"(?:src|href)=|<script|@import|url\((?!#)", text), "nothing comes from elsewhere"
    # What tokens were given is remembered for a while, and no claim is.
    assert claims(server) == []
    # -2 of one that has run out since the list was made; -1 would be one that stays for ever.
    assert -1 not in [server.command("PTTL", key) for key in keys([server])]


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("number", sample([signal.SIGINT], [signal.SIGINT, signal.SIGTERM]))
def test_a_signal_leaves_no_process_and_no_claim(server: RedisServer, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*COMMAND, server.url, "--time", "600s", "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(workers_of(process.pid)) == 2, 120, "the workers")
    while not claims(server):  # a worker that holds
        assert process.poll() is None
        time.sleep(0.1)
    workers = workers_of(process.pid)
    process.send_signal(number)
    time.sleep(0.05)  # whatever it does by then, a second one changes nothing
    process.send_signal(number)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "nothing is left" in err
    assert out == ""
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert claims(server) == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nonsense://host"], 2, "does not begin with a scheme"),
        ([""], 2, "does not begin with a scheme"),
        (["redis://:secret@127.0.0.1:1"], 2, "unreachable"),
        (["memory:"], 2, "needs many; try local:"),
        (["local:", "--time", "0.1s"], 64, "at least 1 s"),
        (["local:", "--time", "soon"], 64, "not a time"),
        (["local:", "--workers", "1"], 64, "2<=x<=64"),
        (["local:", "--ttl", "1h"], 64, "at most 60 s"),
        (["local:", "--fault", " "], 64, "this one is empty"),
        (["local:", "--html", "/nowhere/at/all.html"], 64, "No such file"),
        (["local:", "--url", "local:"], 64, "give the URL once"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", *arguments]) == code
    said = capsys.readouterr()
    assert says in said.err
    assert "secret" not in said.err
    assert said.out == ""


@pytest.mark.server
@pytest.mark.parametrize("rights", ["~* +@read +@connection", "~* +@all resetchannels", "~else:* +@all allchannels"])
def test_missing_rights_are_named_before_anything_is_started(
    server: RedisServer, rights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.command("ACL", "SETUSER", "little", "reset", "on", ">pass", *rights.split())
    assert run(["verify", f"redis://little:pass@127.0.0.1:{server.port}"]) == 2
    said = capsys.readouterr()
    assert "permission" in said.err.lower()
    assert "pass@" not in said.err
    assert said.out == ""


def test_names_in_a_page_are_only_text() -> None:
    evil = "<script>alert(1)</script>"
    one, two = held("1.1", 1, 0.0, 0.1, 0.5, name=evil), held("2.1", 2, 0.0, 0.3, 0.4, name=evil)
    whole: History = history(one, two, faults=(Fault("your fault", 0.2, 0.3, detail=evil),))
    whole.fenced[evil] = RegisterRecord(1, 1)
    promised = Guarantees("server", True, True, frozenset(), evil)
    verdict = judge(whole, Rules(least=1, least_waits=1))
    text = page(RunOutcome(RunWish("x"), verdict, whole, promised, f"redis://{evil}", evil, [evil]))
    assert "<script" not in text
    assert text.count("<svg") == 3
    assert "two inside" in text


def test_the_network_of_a_store_that_sends_its_clients_elsewhere_is_left_alone() -> None:
    from lockline.lab.verify.systems import servers

    assert servers("redis://h:1234/0") == [("h", 1234)]
    assert servers("redlock://a:x@h1,b:y@[::1]:7") == [("h1", 6379), ("::1", 7)]
    assert servers("postgresql://me:p@h1,h2:99/db?schema=x") == [("h1", 5432), ("h2", 99)]
    assert servers("etcd://h1,h2") == [("h1", 2379), ("h2", 2379)]
    for url, why in (
        ("redis+sentinel://h/s", "sentinels"),
        ("redis+cluster://h", "cluster"),
        ("local:", "no network"),
        ("rediss://h", "certificate"),
        ("etcd://h?ca=/x", "certificate"),
        ("bakery:", "nobody knows"),
    ):
        found = servers(url)
        assert isinstance(found, str)
        assert why in found, url
    assert servers("etcd://h?ca=/x&check_hostname=no") == [("h", 2379)]
