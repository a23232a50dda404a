"""The state of a store as figures: asked for by many, with the store away, ended by a signal; and figures of several processes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

import lockline
from lockline.core import engine
from lockline.observe import exporter
from lockline.observe.exporter import MOST_LINES, StoreCollector, serve
from lockline.observe.figures import Groups

from ..calm import calm
from ..contract.scene import A_MINUTE
from ..servers.process import free_port, wait_for
from ..servers.redis import a_redis


def figures(collector: StoreCollector) -> dict[str, float]:
    return {family.name: family.samples[0].value for family in collector.collect()}


def test_the_command_says_when_the_store_is_down_and_ends_by_a_signal() -> None:
    nobody = f"redis://127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "lockline.cli", "exporter", nobody, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        where = said.split()[0]
        assert where.startswith("http://127.0.0.1:"), "this machine alone, unless it is told otherwise"
        with urllib.request.urlopen(where, timeout=A_MINUTE) as answer:
            text = answer.read().decode()
        assert re.search(r"^lockline_store_up\{.*\} 0\.0$", text, re.MULTILINE)
        assert "lockline_store_holders" not in text
    finally:
        process.terminate()
        process.communicate(timeout=A_MINUTE)
    # Not "killed by a signal": as the first process of a container it would not even have been that.
    assert process.returncode == 0


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken, lockline.connect("memory:") as client:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(lockline.ConfigError, match="--port takes another"):
            serve([client], "127.0.0.1", taken.getsockname()[1])


@pytest.mark.server
def test_a_store_that_hangs_is_down_before_prometheus_gives_up_and_up_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter, "FRESH", 0.0)
    # What the store's own client would wait for.
    monkeypatch.setattr(engine.Engine.ask, "__defaults__", (3600.0,))
    with a_redis() as redis, lockline.connect(redis.url) as client, client.lock("x", ttl=600):
        collector = StoreCollector(client)
        assert figures(collector)["lockline_store_holders"] == 1
        redis.freeze()
        patience = exporter.PATIENCE
        monkeypatch.setattr(exporter, "PATIENCE", 0.5)
        try:
            began = calm()
            down = figures(collector)
            assert calm() - began < 600
        finally:
            redis.thaw()
            monkeypatch.setattr(exporter, "PATIENCE", patience)
        assert down["lockline_store_up"] == 0
        assert "lockline_store_holders" not in down
        wait_for(lambda: figures(collector).get("lockline_store_holders") == 1, 120, "the store")


def test_however_many_ask_the_store_is_asked_once_and_lines_beyond_the_first_are_counted() -> None:
    with lockline.connect("memory:many-scrapes") as client:
        leases = [client.lock(f"{number:04}\n").acquire() for number in range(MOST_LINES + 5)]
        collector = StoreCollector(client)
        asked, look = [], collector._look

        async def counted() -> object:
            asked.append(1)
            return await look()

        collector._look = counted  # type: ignore[assignment, method-assign]
        answers: list[dict[str, float]] = []
        threads = [threading.Thread(target=lambda: answers.append(figures(collector))) for _ in range(30)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(A_MINUTE)
        assert len(answers) == 30
        assert len(asked) <= 1 + time.monotonic() - began
        assert answers[0]["lockline_store_lines"] == MOST_LINES + 5
        assert answers[0]["lockline_store_lines_unseen"] == 5
        assert answers[0]["lockline_store_holders"] == MOST_LINES
        for lease in leases:
            lease.release()


def test_whoever_connects_and_says_nothing_keeps_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PATIENCE", 0.3)
    with lockline.connect("memory:") as client:
        server, thread = serve([client], "127.0.0.1", 0)
        silent = [socket.create_connection(("127.0.0.1", server.server_port), 30) for _ in range(20)]
        for one in silent:
            with one:
                assert one.recv(1) == b"", "it is ended, though nothing was asked for"
        server.shutdown()
        server.server_close()
        thread.join(A_MINUTE)


PROCESSES = """
import os, sys
import lockline
from lockline.observe.prometheus import PrometheusMetrics
from lockline.observe import Released, Waiting
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from tests.observe.heard import Heard

heard = Heard()
client = lockline.connect("memory:", on_event=[PrometheusMetrics(), heard])
held = client.lock("a").acquire()
heard.wait_for(lambda: heard.holders == 1)

def in_a_child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def child():
    heard.wait_for(lambda: heard.open == 0)
    client.lock("b").acquire().release()
    heard.wait_for(lambda: len(heard.all(Released)) == 2)

in_a_child(child)
registry = CollectorRegistry()
MultiProcessCollector(registry)
sys.stdout.write(generate_latest(registry).decode())
"""


def test_the_processes_of_a_server_are_counted_together(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    ran = subprocess.run([sys.executable, "-c", PROCESSES], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert 'lockline_holders{kind="lock"} 1.0' in ran.stdout, (
        "what the parent holds; a child that holds nothing takes nothing off"
    )
    assert 'lockline_acquire_duration_seconds_count{kind="lock",outcome="granted"} 2.0' in ran.stdout
    assert "pid=" not in ran.stdout


def test_a_group_can_make_no_scrape_unreadable() -> None:
    assert Groups(lambda name: "\ud800x").labels("any") == {"group": "?x"}
