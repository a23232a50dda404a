"""The line cut before and after the commit, and the server killed under a crowd."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockline
from tests.servers.proxy import Proxy

from .conftest import Database

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(shared: Database) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", shared.server.port)) as proxy:
        yield proxy


STEPS = [b"lockline_enter_v1", b"lockline_leave_v1", b"lockline_renew_v1"]


@pytest.mark.parametrize("step", STEPS, ids=["enter", "leave", "renew"])
def test_a_reply_that_is_lost_after_the_commit_is_asked_for_again(shared: Database, proxy: Proxy, step: bytes) -> None:
    url = f"mysql://root@127.0.0.1:{proxy.port}/lockline?prefix=lost"
    with lockline.connect(url) as client:
        client.lock("x").acquire(timeout=5).release()
        proxy.drop_reply(containing=step)
        lease = client.lock("x", ttl=5).acquire(timeout=20)
        lease.extend(30)
        lease.release()
        assert proxy.lost == 1
        assert client.list() == []
        with client.lock("x", timeout=20) as after:
            assert after.token > lease.token


@pytest.mark.parametrize("step", STEPS, ids=["enter", "leave", "renew"])
def test_a_session_that_ends_before_the_commit_changes_nothing_and_is_asked_again(
    shared: Database, proxy: Proxy, step: bytes
) -> None:
    url = f"mysql://root@127.0.0.1:{proxy.port}/lockline?prefix=undone&timeout=20"
    with lockline.connect(url) as client, shared.connect(autocommit=False) as other:
        lease = client.lock("x", ttl=30, renew=False).acquire(timeout=5)
        if step == STEPS[0]:
            lease.release()
            (place,) = [client._engine.backend._places("x")]  # type: ignore[attr-defined]
            other.query(f"SELECT last FROM lockline_slot WHERE number = {place.at & 1023} FOR UPDATE")
        else:
            other.query("SELECT id FROM lockline_claim WHERE name = 'undone:x' FOR UPDATE")
        answers: list[object] = []

        def act() -> None:
            if step == STEPS[0]:
                with client.lock("x", timeout=30) as taken:
                    answers.append(taken.token)
            elif step == STEPS[1]:
                lease.release()
                answers.append("released")
            else:
                lease.extend(60)
                answers.append("extended")

        thread = threading.Thread(target=act)
        thread.start()
        shared.ask(f"KILL {shared.who_waits()}")
        other.rollback()
        thread.join(40)
        assert len(answers) == 1
        if step == STEPS[2]:
            lease.release()
        assert client.list() == []


WORKER = """
import json, sys, time
import lockline

url, turns = sys.argv[1], int(sys.argv[2])
with lockline.connect(url) as client:
    done = 0
    while done < turns:
        try:
            with client.lock("crowd", ttl=2, timeout=120) as lease:
                print(json.dumps([lease.token, time.clock_gettime_ns(time.CLOCK_BOOTTIME)]), flush=True)
                lease.check()
                time.sleep(0.002)
                print(json.dumps([lease.token, time.clock_gettime_ns(time.CLOCK_BOOTTIME)]), flush=True)
            done += 1
        except (lockline.LeaseLost, lockline.BackendUnavailable) as problem:
            print(json.dumps(type(problem).__name__), flush=True)
"""


@pytest.mark.slow
def test_a_server_that_is_killed_under_a_crowd_of_sixteen_gives_no_token_twice(
    database: Database, tmp_path: Path
) -> None:
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    outputs = [tmp_path / f"out{number}" for number in range(16)]
    workers = []
    for output in outputs:
        with output.open("wb") as out:
            workers.append(
                subprocess.Popen(
                    [sys.executable, str(program), database.url, "8"],
                    stdout=out,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )
            )

    def grants() -> list[tuple[int, int]]:
        found = []
        for output in outputs:
            for line in output.read_text().splitlines(keepends=True):
                if line.endswith("\n") and line.startswith("["):
                    token, moment = json.loads(line)
                    found.append((token, moment))
        return found

    try:
        for kills in range(2):
            until = time.monotonic() + 120
            while len(grants()) < (kills + 1) * 60 and time.monotonic() < until:
                time.sleep(0.05)
            database.server.kill()
            database.server.start()
        for worker in workers:
            assert worker.wait(200) == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    seen: dict[int, list[int]] = {}
    for token, moment in grants():
        seen.setdefault(token, []).append(moment)
    # Nobody else has the same number: each is told by its holder when it comes and when it goes.
    assert all(len(moments) <= 2 for moments in seen.values())
    assert sum(len(moments) == 2 for moments in seen.values()) >= 16 * 8
    spans = sorted((token, min(moments), max(moments)) for token, moments in seen.items())
    for (_, _, left), (_, came, _) in itertools.pairwise(spans):
        assert left <= came
    with lockline.connect(database.url) as client:
        assert client.list() == []
