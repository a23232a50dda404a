"""Many lines, many waiters, many browsers: as many looks as for one, and a page that stays smooth."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

import lockline
from lockline import web
from lockline.core.claim import Claim
from lockline.core.shells import backend_of, engine_of
from lockline.runtime.blocking import run
from lockline.web.board import Board
from lockline.web.survey import EVERY, Survey

from ..calm import calm
from ..servers.process import wait_for
from ..servers.redis import a_redis
from .conftest import Browse, Serve, WebServer
from .mounted import under_uvicorn


def plant(client: lockline.Client, lines: int, waiting: int) -> None:
    """Lines of claims that nobody keeps: they stand for their ttl."""
    backend, until = backend_of(client), engine_of(client).runtime.now() + 600
    for number in range(lines):
        for place in range(waiting + 1):
            claim = Claim(
                f"line/{number:04}", f"{number}-{place}", f"worker-{number % 37}:{place}", "lock", 1, 1, 600.0, time.time() - place,
                json.dumps({"batch": number}),
            )  # fmt: skip
            run(backend.enter(claim, wait=True, until=until))


@pytest.fixture
def crowded() -> Iterator[lockline.Client]:
    with lockline.connect(f"memory:{os.urandom(4).hex()}") as client:
        plant(client, 1000, 10)
        yield client


def test_a_thousand_lines_render_in_under_a_second_and_ten_thousand_waiters_stay_smooth(
    browse: Browse, crowded: lockline.Client, hold: Any
) -> None:
    with under_uvicorn(web.asgi(crowded)) as server:
        visit = browse(server)  # type: ignore[arg-type]
        expect(visit.page.locator("#count")).to_have_text("1,000 lines")
        # From the first byte of what the server tells to the last row on the screen.
        visit.page.add_init_script(
            """const real = window.EventSource;
            window.EventSource = function (url) {
              const source = new real(url);
              source.addEventListener("message", () => { window.told ??= performance.now(); }, { once: true });
              return source;
            };
            window.EventSource.CLOSED = real.CLOSED;
            new MutationObserver(() => {
              if (window.drawn === undefined && document.querySelectorAll(".line").length === 1000)
                requestAnimationFrame(() => setTimeout(() => { window.drawn = performance.now(); }));
            }).observe(document, { childList: true, subtree: true });"""
        )
        before, began = calm(), time.monotonic()
        visit.page.reload()
        wait_for(lambda: visit.page.evaluate("() => window.drawn !== undefined"), 20, "a thousand rows")
        busy = time.monotonic() - began - (calm() - before)
        rendering = visit.page.evaluate("() => (window.drawn - window.told) / 1000")
        assert rendering - busy < 1
        expect(visit.page.locator("#sum-waiting")).to_have_text("10,000")
        visit.keep("thousand")
        # Smooth: while it is told of changes, no task keeps the page from an answer for long.
        visit.page.evaluate(
            """() => { window.long = []; new PerformanceObserver((list) => window.long.push(...list.getEntries().map((e) => e.duration)))
              .observe({ type: "longtask" }); }"""
        )
        before, began = calm(), time.monotonic()
        for number in range(3):
            lease = hold(crowded.lock(f"new/{number}"))
            expect(visit.page.locator("#count")).to_have_text(f"1,00{number + 1} lines")
            assert lease.valid
        busy = time.monotonic() - began - (calm() - before)
        assert max(visit.page.evaluate("() => window.long"), default=0) / 1000 - busy < 0.25
        visit.page.get_by_role("searchbox").fill("line/0999")
        expect(visit.page.locator(".line:visible")).to_have_count(1)
        visit.page.goto("about:blank")


@pytest.mark.server
def test_five_hundred_browsers_cost_the_store_what_one_does(serve: Serve) -> None:
    with a_redis() as redis, lockline.connect(redis.url) as client:
        server = serve(redis.url)
        cookie = "; ".join(f"{name}={value}" for name, value in server.visitor().cookies.items())
        browsers = [watching(server, cookie) for _ in range(500)]
        try:
            first = [status_of(browser) for browser in browsers]
            assert set(first) == {b"200", b"503"}
            assert first.count(b"200") == 200
            looked, began = looks(redis), time.monotonic()
            with client.lock("orders/42") as lease:
                for browser, status in zip(browsers, first, strict=True):
                    if status == b"200":
                        read_until(browser, f'"token":"{lease.token}"'.encode())
                assert server.visitor().get("/api/changes").status_code == 200
            time.sleep(max(0.0, began + 3 - time.monotonic()))
            assert looks(redis) - looked <= (time.monotonic() - began) / EVERY + 2
        finally:
            for browser in browsers:
                browser.close()
        assert server.visitor().get("/api/about").status_code == 200


@pytest.mark.server
def test_nobody_looks_when_nobody_watches(serve: Serve) -> None:
    with a_redis() as redis:
        serve(redis.url).visitor().get("/")
        looked = looks(redis)
        time.sleep(2.5)
        assert looks(redis) == looked


def watching(server: WebServer, cookie: str) -> socket.socket:
    browser = socket.create_connection(("127.0.0.1", server.port), 30)
    browser.sendall(f"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
    return browser


def status_of(browser: socket.socket) -> bytes:
    return read_until(browser, b"\r\n\r\n").split(b" ")[1]


def read_until(browser: socket.socket, end: bytes) -> bytes:
    read = b""
    while end not in read:
        part = browser.recv(65536)
        assert part, read
        read += part
    return read


def looks(redis: Any) -> int:
    """How often the server was asked for the names there are."""
    told = redis.command("INFO", "commandstats")
    return int(told.get("cmdstat_scan", {}).get("calls", 0))


@pytest.mark.parametrize("lines", [1, 201])
def test_many_lines_looked_at_together_are_as_each_alone(client: lockline.Client, lines: int) -> None:
    plant(client, lines, 2)
    names = client.list()
    assert len(names) == lines
    together = run(engine_of(client).ask(lambda until: backend_of(client).look_many([*names, "nobody"], until)))  # type: ignore[attr-defined]
    alone = [client.inspect(name) for name in [*names, "nobody"]]

    def known(all_lines: Any) -> list[Any]:
        return [
            (
                line.name,
                [(one.id, one.owner, one.holds, one.token, one.ttl, one.meta, one.since) for one in line.claims],
            )
            for line in all_lines
        ]

    assert known(together) == known(alone)
    assert [len(line.claims) for line in together] == [3] * lines + [0]


def test_a_look_at_ten_thousand_waiters_leaves_half_of_a_processor_free(crowded: lockline.Client) -> None:
    survey, board = Survey(engine_of(crowded)), Board()
    for _ in range(3):
        # The processor's own time: what others do on the machine says nothing about us.
        began = time.thread_time()
        seen = run(survey.look())
        board.take(seen, time.time())
        assert time.thread_time() - began < 0.5
    assert sum(len(line.claims) for line in seen.lines.values()) == 11_000
    assert len(board.since(0)[1][0]) < 2_000_000
