"""The page in a program that has a server and a login of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import lockline
from lockline import aio, web
from lockline.core.shells import backend_of
from lockline.web import asgi_page
from lockline.web.wsgi_page import MOST_STREAMS

from ..servers.process import wait_for
from .conftest import HANGS
from .mounted import under_uvicorn, under_wsgiref


def in_a_loop(story: Coroutine[Any, Any, None]) -> None:
    """In a thread of its own: a browser of the other tests may have the loop of this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, story).result()


def evict(visitor: httpx.Client, name: str, token: int) -> httpx.Response:
    csrf = visitor.get("api/about").json()["csrf"]
    wish = {"store": 0, "name": name, "token": str(token), "reason": "test"}
    return visitor.post("api/evict", json=wish, headers={"X-Lockline-CSRF": csrf})


def streamed(visitor: httpx.Client, name: str) -> dict[str, Any]:
    """The line of that name, as the stream first tells of it."""
    with visitor.stream("GET", "api/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for text in answer.iter_lines():
            if text.startswith("data: "):
                told = json.loads(text[6:])
                for line in [*told.get("all", ()), *told.get("lines", ())]:
                    if line["name"] == name:
                        return dict(line)
    raise AssertionError("the stream ended")


def test_an_asyncio_client_looks_on_the_servers_own_loop(tmp_path: Path) -> None:
    url = f"local://{tmp_path}/locks.db"
    client: list[aio.Client] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not client:
            client.append(aio.connect(url))
            pages.append(web.asgi(client[0], allow_evict=True, user=lambda scope: "ada"))
        await pages[0](scope, receive, send)

    pages: list[Any] = []
    with (
        lockline.connect(url, owner="me:1") as holder,
        holder.lock("orders/42") as lease,
        under_uvicorn(app) as server,
        httpx.Client(base_url=server.address, timeout=HANGS, verify=False) as visitor,
    ):
        assert streamed(visitor, "orders/42")["hold"][0]["token"] == str(lease.token)
        assert evict(visitor, "orders/42", lease.token + 1).json() == {"evicted": 0}
        assert lease.valid


def test_wsgi_streams_and_ends_the_thread_when_the_browser_goes() -> None:
    with lockline.connect("memory:wsgi-stream") as client, client.lock("orders/42") as lease:
        page = web.wsgi(client)
        with (
            under_wsgiref(page) as server,
            httpx.Client(base_url=server.address, timeout=HANGS, verify=False) as visitor,
        ):
            assert streamed(visitor, "orders/42")["hold"][0]["token"] == str(lease.token)
            assert visitor.get("api/changes").json()[0]["all"]
            # Found out by the next look, when there is something to write.
            wait_for(lambda: page._places._value == MOST_STREAMS, HANGS, "the end of the stream")


ASKED = [
    ("GET", ""), ("HEAD", ""), ("GET", "page.css"), ("HEAD", "page.css"), ("HEAD", "api/stream"), ("OPTIONS", ""), ("POST", "api/evict"),
    ("GET", "nowhere"), ("GET", "api/line?name=%00&store=7"), ("GET", "?" + "a&" * 100), ("GET", "api/about?store=²"), ("PUT", "api/line"),
]  # fmt: skip


def test_both_flavours_answer_alike() -> None:
    with lockline.connect("memory:alike") as client:
        options: Any = {"allow_evict": True, "user": lambda request: "ada", "secret": "the same"}
        answers: list[list[Any]] = []
        for served in (under_uvicorn(web.asgi(client, **options)), under_wsgiref(web.wsgi(client, **options))):
            with served as server, httpx.Client(base_url=server.address, timeout=HANGS, verify=False) as visitor:
                got = [visitor.request(method, path) for method, path in ASKED]
            headers = [{key: said for key, said in one.headers.items() if key not in ("date", "server")} for one in got]
            answers.append([(one.status_code, one.content, its) for one, its in zip(got, headers, strict=True)])
        assert answers[0] == answers[1]
        assert [status for status, *_ in answers[0]] == [200, 200, 200, 200, 200, 405, 403, 404, 404, 400, 200, 405]


def test_the_page_can_be_mounted_below_a_path() -> None:
    with lockline.connect("memory:below") as client, client.lock("orders/42"):
        page = web.asgi(client)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await page({**scope, "root_path": "/ops/locks"}, receive, send)

        with (
            under_uvicorn(app) as server,
            httpx.Client(base_url=server.address + "ops/locks/", timeout=HANGS, verify=False) as visitor,
        ):
            assert visitor.get("").status_code == 200
            assert visitor.get("page.css").status_code == 200
            assert streamed(visitor, "orders/42")
            bare = visitor.get(server.address + "ops/locks")
            assert (bare.status_code, bare.headers["location"]) == (308, "/ops/locks/")


def test_a_browser_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_page, "SLOWEST", 0.2)

    async def story() -> None:
        async with aio.connect("memory:slow") as client:
            page = web.asgi(client)
            never = asyncio.Event()

            async def receive() -> Any:
                await never.wait()

            async def send(message: Any) -> None:
                if message["type"] == "http.response.body":
                    await never.wait()

            scope = {"type": "http", "method": "GET", "path": "/api/stream", "query_string": b"", "headers": []}
            async with asyncio.timeout(HANGS):
                await page(scope, receive, send)
            assert not page._streams

    in_a_loop(story())


def test_a_look_that_fails_in_a_way_that_nobody_foresaw_is_said_and_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with lockline.connect("memory:unforeseen") as client, client.lock("orders/42"):
        watch = web.asgi(client).site.watches[0]

        def state() -> str:
            watch.want()
            _, told = watch.board.since(0)
            return str(json.loads(told[0])["status"]["state"]) if told else ""

        async def unreadable(prefix: str, until: float) -> list[str]:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "planted")

        with monkeypatch.context() as broken:
            broken.setattr(backend_of(client), "list", unreadable)
            wait_for(lambda: state() == "silent", HANGS, "the failure")
        wait_for(lambda: state() == "live", HANGS, "the next look")
    assert len([record for record in caplog.records if "look at memory:unforeseen failed" in record.message]) == 1


@pytest.mark.parametrize(
    "wrong", ["redis://localhost", None, {}, {"": "client"}, {1: "client"}, {"a": "redis://localhost"}], ids=repr
)
def test_what_is_no_client_is_refused_at_once(wrong: Any) -> None:
    with lockline.connect("memory:wrong") as client:
        if isinstance(wrong, dict):
            wrong = {title: client if one == "client" else one for title, one in wrong.items()}
        for make in (web.asgi, web.wsgi):
            with pytest.raises(lockline.ConfigError):
                make(wrong)


def test_a_wsgi_app_refuses_an_asyncio_client() -> None:
    async def story() -> None:
        async with aio.connect("memory:wrong") as client:
            with pytest.raises(lockline.ConfigError, match="blocks"):
                web.wsgi(client)  # type: ignore[arg-type]

    in_a_loop(story())
