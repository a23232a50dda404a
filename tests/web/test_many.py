"""Many lines, many waiters, many browsers: as many looks as for one, and a page that redraws what changed."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from playwright.sync_api import expect

import lockline
from lockline import web
from lockline.core.claim import Claim
from lockline.core.shells import backend_of, engine_of
from lockline.runtime.blocking import run
from lockline.web.asgi_page import MOST_STREAMS
from lockline.web.board import Board
from lockline.web.survey import EVERY, Survey

from ..servers.redis import a_redis
from ..tier import sample
from .conftest import HANGS, REDIS, Browse, Serve, WebServer
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


def test_a_thousand_lines_with_ten_thousand_waiters_are_shown_and_a_change_redraws_none_of_them(browse: Browse) -> None:
    """How many milliseconds of a processor that takes is for `bench/`; what a look and a change consist of is here."""
    with lockline.connect("memory:crowded") as crowded:
        plant(crowded, 1000, 10)
        seen = run(Survey(engine_of(crowded)).look())
        assert sum(len(line.claims) for line in seen.lines.values()) == 11_000
        board = Board()
        board.take(seen, time.time())
        assert len(board.since(0)[1][0]) < 2_000_000
        with under_uvicorn(web.asgi(crowded)) as server:
            visit = browse(server)
            expect(visit.page.locator("#count")).to_have_text("1,000 lines")
            expect(visit.page.locator("#sum-waiting")).to_have_text("10,000")
            visit.keep("thousand")
            visit.page.evaluate("() => { for (const line of document.querySelectorAll('.line')) line.stays = true; }")
            with crowded.lock("new/1"):
                expect(visit.page.locator("#count")).to_have_text("1,001 lines")
                names = """() => [...document.querySelectorAll(".line")].filter((line) => !line.stays)
                  .map((line) => line.querySelector(".open").textContent)"""
                assert visit.page.evaluate(names) == ["new/1"]
                visit.page.get_by_role("searchbox").fill("line/0999")
                expect(visit.page.locator(".line:visible")).to_have_count(1)
            visit.page.goto("about:blank")


@pytest.mark.server
def test_hundreds_of_browsers_cost_the_store_what_one_does(serve: Serve) -> None:
    with a_redis() as redis, lockline.connect(redis.url) as client:
        server = serve(redis.url)
        cookie = "; ".join(f"{name}={value}" for name, value in server.visitor().cookies.items())
        browsers = [watching(server, cookie) for _ in range(MOST_STREAMS + sample(20, 300))]
        try:
            first = [status_of(browser) for browser in browsers]
            assert set(first) == {b"200", b"503"}
            assert first.count(b"200") == MOST_STREAMS
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
    browser = socket.create_connection(("127.0.0.1", server.port), HANGS)
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


@pytest.mark.parametrize("store", ["local", REDIS], indirect=True)
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
                [(one.id, one.owner, one.holds, one.token, one.ttl, one.meta, one.began) for one in line.claims],
            )
            for line in all_lines
        ]

    assert known(together) == known(alone)
    assert [len(line.claims) for line in together] == [3] * lines + [0]
