"""A served application behind a fence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

import lockline
from lockline import ConfigError, StaleToken
from lockline.fence import FileMarks, HttpFence, Offer, RedisMarks, SqlMarks, raise_if_stale
from lockline.fence.http import Request

from ..cli.forked import Forked, Forker
from ..servers.process import free_port, listens, wait_for
from ..servers.redis import RedisServer


@contextlib.contextmanager
def served(kind: str, folder: Path, forker: Forker, *, fenced: bool = True) -> Iterator[str]:
    """The counter, served in a child."""
    port = free_port()
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    with in_a_child(
        forker, "main", port, kind, str(port), str(folder / "value"), str(marks) if fenced else "-", folder=folder
    ):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def in_a_child(forker: Forker, function: str, port: int, *argv: str, folder: Path) -> Iterator[Forked]:
    """A function of webapp.py that serves at that port."""
    log = folder / "server.log"
    with open(os.devnull) as nothing, open(log, "a") as said:
        files = (nothing.fileno(), said.fileno(), said.fileno())
        process = forker.start(
            argv, os.environ, folder, call=f"tests.fence.webapp:{function}", files=files, imports=["uvicorn"]
        )
    try:
        wait_for(lambda: listens(port) or process.poll() is not None, 120, "a server")
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.terminate()
        process.wait(120)


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@pytest.mark.parametrize("client", [httpx, requests], ids=lambda client: client.__name__)
def test_a_stale_request_is_turned_away(kind: str, client: Any, tmp_path: Path, forker: Forker) -> None:
    with served(kind, tmp_path, forker) as url, lockline.connect("memory:") as locks:
        with locks.lock("counter") as old:
            headers = old.headers()
            assert client.put(f"{url}/counter", json=1, headers=headers).status_code == 200
            assert client.put(f"{url}/counter", json=2, headers=headers).status_code == 200
        with locks.lock("counter") as new:
            answer = client.get(f"{url}/counter", headers=new.headers())
            assert (answer.status_code, answer.content) == (200, b"2")
            late = client.put(f"{url}/counter", json=3, headers=headers)
            assert late.status_code == 412
            assert late.headers["content-type"] == "application/problem+json"
            problem = late.json()
            assert (problem["type"], problem["status"]) == ("urn:lockline:stale-token", 412)
            assert (problem["resource"], problem["offered"], problem["highest"]) == ("/counter", old.token, new.token)
            with pytest.raises(StaleToken) as refused:
                raise_if_stale(late)
            assert refused.value.highest == new.token
            raise_if_stale(answer)
            assert client.put(f"{url}/counter", json=4, headers=new.headers()).status_code == 200
            assert client.get(f"{url}/counter").content == b"4"
            assert client.put(f"{url}/other", json=5, headers=headers).status_code == 200


BAD_HEADERS = [
    {"Fencing-Token": text}
    for text in ("0", "-1", "1.0", "True", "x", "", "9223372036854775808", "01", "+5", "5 6", "\u0665")
] + [{"Fencing-Token": "5", "Fencing-Lock": "x" * 600}, {"Fencing-Token": "5", "Fencing-Grant": "x" * 600}]


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_bad_headers_are_a_typed_answer_and_write_nothing(kind: str, tmp_path: Path, forker: Forker) -> None:
    with served(kind, tmp_path, forker) as url:
        for headers in BAD_HEADERS:
            answer = httpx.put(f"{url}/r", content=b"x", headers={k.encode(): v.encode() for k, v in headers.items()})
            assert answer.status_code == 400, headers
            assert answer.json()["type"] == "urn:lockline:token-malformed"
        for twice in (
            [("Fencing-Token", "5"), ("Fencing-Token", "6")],
            [("Fencing-Token", "5"), ("fencing-token", "5")],
        ):
            assert httpx.put(f"{url}/r", content=b"x", headers=twice).status_code == 400
        missing = httpx.put(f"{url}/r", content=b"x")
        assert missing.status_code == 428
        assert missing.json()["type"] == "urn:lockline:token-missing"
        assert missing.headers["content-type"] == "application/problem+json"
        assert not (tmp_path / "value").exists()
        assert list((tmp_path / "marks").iterdir()) == []
        assert httpx.get(f"{url}/r").status_code == 200
        assert httpx.put(f"{url}/r", content=b"x", headers={"Fencing-Token": "9223372036854775807"}).status_code == 200


class Recorder:
    """An ASGI application that waits to be told to go on."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.most = 0
        self.seen: list[Any] = []
        self.go = asyncio.Event()
        self.came = asyncio.Condition()

    async def reached(self, many: int) -> None:
        async with asyncio.timeout(60), self.came:
            await self.came.wait_for(lambda: len(self.inside) >= many)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope.get("lockline.offer"))
        self.inside.append(1)
        self.most = max(self.most, len(self.inside))
        async with self.came:
            self.came.notify_all()
        await self.go.wait()
        self.inside.pop()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def asked(
    app: Any, token: int | None, path: str = "/r", method: str = "PUT", body: bytes = b"", **more: str
) -> int:
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if "status" in message:
            statuses.append(message["status"])

    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
    if token is not None:
        headers.append((b"fencing-token", str(token).encode()))
    await app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    return statuses[0]


def test_a_newer_request_waits_for_the_older_one_that_is_being_served(tmp_path: Path) -> None:
    async def story() -> None:
        app = Recorder()
        fenced = HttpFence(FileMarks(tmp_path)).asgi(app)
        old = asyncio.create_task(asked(fenced, 5))
        await app.reached(1)
        new = asyncio.create_task(asked(fenced, 6))
        elsewhere = asyncio.create_task(asked(fenced, 6, "/other"))
        await app.reached(2)
        assert len(app.seen) == 2, "the newer one must not be inside with the older"
        app.go.set()
        assert [await old, await new, await elsewhere] == [200, 200, 200]
        assert await asked(fenced, 5) == 412
        assert app.seen[-1] == Offer("/r", 6, "")

    asyncio.run(story())


def test_two_server_processes_keep_each_other_out(tmp_path: Path) -> None:
    # Two middlewares over the same marks know nothing of each other, as two processes would.
    async def story() -> None:
        app = Recorder()
        here, there = (HttpFence(FileMarks(tmp_path), patience=1).asgi(app) for _ in range(2))
        old = asyncio.create_task(asked(here, 5))
        await app.reached(1)
        assert await asked(there, 6) == 503
        assert await asked(here, 6) == 503
        app.go.set()
        assert await old == 200
        assert await asked(there, 6) == 200
        assert app.most == 1

    asyncio.run(story())


def test_a_cancelled_request_lets_the_next_one_in(tmp_path: Path) -> None:
    async def story() -> None:
        app = Recorder()
        fenced = HttpFence(FileMarks(tmp_path), patience=60).asgi(app)
        for number in range(1, 12):
            task = asyncio.create_task(asked(fenced, 5))
            await asyncio.sleep(0.0005 * number)
            task.cancel()
            await asyncio.wait((task,))
            app.inside.clear()
        app.go.set()
        assert await asked(fenced, 6) == 200

    asyncio.run(story())


def test_an_application_that_fails_lets_the_next_one_in(tmp_path: Path) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("mine")

    def fails_too(environ: Any, start_response: Any) -> Any:
        raise RuntimeError("mine")

    fence = HttpFence(FileMarks(tmp_path), patience=60)

    async def story() -> None:
        app = fence.asgi(fails)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="mine"):
                await asked(app, 5)

    asyncio.run(story())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mine"):
            fence.wsgi(fails_too)({"REQUEST_METHOD": "PUT", "PATH_INFO": "/r", "HTTP_FENCING_TOKEN": "5"}, print)


def test_a_wsgi_answer_keeps_the_fence_until_it_is_whole(tmp_path: Path) -> None:
    statuses: list[str] = []
    steps: list[str] = []
    environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/r", "HTTP_FENCING_TOKEN": "5", "HTTP_FENCING_GRANT": "g"}

    class Lazy:
        """It does its work as it is read, and more of it when it is closed."""

        def __iter__(self) -> Iterator[bytes]:
            steps.append(ask_meanwhile())
            yield b"g"

        def close(self) -> None:
            steps.append(ask_meanwhile())

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])(b"written ")
        assert environ["lockline.offer"].grant == "g"
        return Lazy()

    def start(status: str, headers: Any) -> None:
        statuses.append(status)

    # Another middleware over the same marks, as in a second process.
    def plain(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b""]

    other = HttpFence(FileMarks(tmp_path), patience=0.05).wsgi(plain)

    def ask_meanwhile() -> str:
        found: list[str] = []
        other(environ, lambda status, headers: found.append(status))
        return found[0]

    fenced = HttpFence(FileMarks(tmp_path), patience=1).wsgi(app)
    assert b"".join(fenced(environ, start)) == b"written g"
    assert steps == ["503 Service Unavailable"] * 2
    assert ask_meanwhile() == "200 OK"
    assert statuses == ["200 OK"]


def test_a_function_names_the_resource(tmp_path: Path) -> None:
    def resource(request: Request) -> str | None:
        if request.path == "/health":
            return None
        return f"{request.headers['tenant']}{request.path}"

    async def story() -> None:
        app = Recorder()
        app.go.set()
        marks = FileMarks(tmp_path)
        fenced = HttpFence(marks, resource=resource).asgi(app)
        assert await asked(fenced, None, "/health") == 200
        assert await asked(fenced, 5, tenant="one", fencing_lock="the%20lock") == 200
        assert await asked(fenced, 4, tenant="two", fencing_lock="the%20lock") == 200
        assert await asked(fenced, 4, tenant="one", fencing_lock="the%20lock") == 412
        assert marks.look("one/r", "the lock") == (5, "")
        assert await asked(fenced, 6, method="GET", tenant="one", fencing_lock="the%20lock") == 200
        assert await asked(fenced, 5, tenant="one", fencing_lock="the%20lock") == 412

    asyncio.run(story())


@pytest.mark.server
@pytest.mark.parametrize("store", ["redis", "postgresql", "sqlite"])
def test_the_marks_may_lie_in_any_store(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    marks: Any
    if store == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        marks = RedisMarks(server.client())
    elif store == "postgresql":
        marks = SqlMarks(request.getfixturevalue("postgres").url)
    else:
        marks = SqlMarks(tmp_path / "marks.db")

    async def story() -> None:
        app = Recorder()
        app.go.set()
        fenced = HttpFence(marks).asgi(app)
        path = f"/{store}-{id(marks)}"
        assert await asked(fenced, 5, path) == 200
        assert await asked(fenced, 6, path) == 200
        assert await asked(fenced, 5, path) == 412
        assert await asyncio.gather(*(asked(fenced, 6, path) for _ in range(5))) == [200] * 5

    asyncio.run(story())
    if hasattr(marks, "close"):
        marks.close()


def test_owners_without_order_at_a_door(tmp_path: Path) -> None:
    async def story() -> None:
        app = Recorder()
        app.go.set()
        fenced = HttpFence(FileMarks(tmp_path, exact=True)).asgi(app)
        assert await asked(fenced, None, fencing_token="job-9") == 412
        assert await asked(fenced, None, method="GET", fencing_token="job-9") == 200
        assert await asked(fenced, None, fencing_token="job-9") == 200
        assert await asked(fenced, None, method="GET", fencing_token="job-1") == 200
        assert await asked(fenced, None, fencing_token="job-9") == 412
        assert await asked(fenced, None, fencing_token="job-1") == 200

    asyncio.run(story())


def test_lifespan_and_websockets_go_through(tmp_path: Path) -> None:
    async def story() -> None:
        seen: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["type"])

        fenced = HttpFence(FileMarks(tmp_path)).asgi(app)
        await fenced({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
        await fenced({"type": "websocket"}, None, None)  # type: ignore[arg-type]
        assert seen == ["lifespan", "websocket"]

    asyncio.run(story())


def test_wrong_set_up_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        HttpFence(object())  # type: ignore[arg-type]


def test_many_threads_at_one_wsgi_resource(tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("0")
    (tmp_path / "marks").mkdir()

    def app(environ: Any, start_response: Any) -> Any:
        value.write_text(str(int(value.read_text()) + 1))
        start_response("200 OK", [])
        return [b""]

    fenced = HttpFence(FileMarks(tmp_path / "marks")).wsgi(app)

    def work() -> None:
        for _ in range(50):
            fenced(
                {"REQUEST_METHOD": "PUT", "PATH_INFO": "/r", "HTTP_FENCING_TOKEN": "5"}, lambda status, headers: None
            )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value.read_text() == "200"
