"""A holder that is frozen on the line keeps nobody out: neither in the middle of its upload nor of its download."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from lockline.fence import FileMarks, HttpFence

from ..cli.forked import Forker
from .test_http import Recorder, asked, served

KINDS = ["asgi", "wsgi"]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path, forker: Forker) -> Iterator[str]:
    with served(request.param, tmp_path, forker) as found:
        yield found


def spoken(url: str, request: bytes) -> socket.socket:
    """A connection on which this much was said, and no more."""
    where = urlsplit(url)
    line = socket.create_connection((where.hostname, where.port), timeout=60)
    line.sendall(request)
    return line


def status(line: socket.socket) -> int:
    answer = b""
    while b"\r\n" not in answer:
        answer += line.recv(65536)
    return int(answer.split()[1])


def test_a_holder_frozen_in_the_middle_of_its_upload_keeps_no_newer_one_out(url: str, tmp_path: Path) -> None:
    with spoken(url, b"PUT /r HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nFencing-Token: 5\r\n\r\nhal") as frozen:
        # It is there: the server has read its headers by the time that it has answered somebody who came later.
        assert httpx.get(f"{url}/other").status_code == 200
        assert httpx.put(f"{url}/r", content=b"six", headers={"Fencing-Token": "6"}, timeout=60).status_code == 200
        frozen.sendall(b"f a word")
        assert status(frozen) == 412
    assert (tmp_path / "value").read_bytes() == b"six"


def test_a_holder_that_breaks_off_its_upload_changes_nothing(url: str, tmp_path: Path) -> None:
    with spoken(url, b"PUT /r HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nFencing-Token: 7\r\n\r\nhal"):
        pass
    assert httpx.put(f"{url}/r", content=b"six", headers={"Fencing-Token": "6"}, timeout=60).status_code == 200
    assert (tmp_path / "value").read_bytes() == b"six"


def test_a_holder_frozen_in_the_middle_of_its_download_keeps_no_newer_one_out(url: str, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(b"x" * 2**25)
    with spoken(url, b"GET /r HTTP/1.1\r\nHost: x\r\nFencing-Token: 5\r\n\r\n") as frozen:
        assert frozen.recv(10)  # the answer has begun, and is far too long for what lies between us
        answer = httpx.put(f"{url}/r", content=b"six", headers={"Fencing-Token": "6"}, timeout=60)
        assert answer.status_code == 200
    assert (tmp_path / "value").read_bytes() == b"six"


def test_large_bodies_go_through_whole(url: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 2**14
    assert httpx.put(f"{url}/r", content=data, headers={"Fencing-Token": "5"}, timeout=60).status_code == 200
    assert httpx.get(f"{url}/r", headers={"Fencing-Token": "5"}, timeout=60).content == data

    assert (tmp_path / "value").read_bytes() == data


def test_a_body_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    fence = HttpFence(FileMarks(tmp_path), largest=10)
    app = Recorder()
    app.go.set()

    async def story() -> None:
        served = fence.asgi(app)
        assert await asked(served, 5, content_length="11") == 413
        assert await asked(served, 5, body=b"x" * 11) == 413
        assert await asked(served, 5, body=b"x" * 10) == 200
        assert await asked(served, 6, body=b"x" * 10) == 200

    asyncio.run(story())
    statuses: list[str] = []
    environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/w", "HTTP_FENCING_TOKEN": "5", "CONTENT_LENGTH": "11"}

    def never(environ: Any, start_response: Any) -> Any:
        raise AssertionError("it was called")

    fence.wsgi(never)(environ, lambda status, headers: statuses.append(status))
    fence.wsgi(never)({**environ, "CONTENT_LENGTH": "x"}, lambda status, headers: statuses.append(status))
    assert statuses == ["413 Content Too Large", "400 Bad Request"]
    assert FileMarks(tmp_path).look("/w", "/w") is None
