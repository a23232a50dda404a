"""Objects behind a fence, at moto's S3 over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

import lockline
from lockline import BackendUnavailable, ConfigError, StaleToken
from lockline.fence import AsyncS3Fence, Offer, ReadAgain, S3Fence

from .objects import an_s3
from .test_rule import BAD_TOKENS

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def s3(s3_url: str) -> Iterator[Any]:
    client = an_s3(s3_url)
    client.create_bucket(Bucket="bucket")
    yield client
    client.close()


@pytest.fixture
def key() -> str:
    return f"orders/{uuid.uuid4()}.json"


def content(s3: Any, key: str) -> bytes | None:
    try:
        return s3.get_object(Bucket="bucket", Key=key)["Body"].read()  # type: ignore[no-any-return]
    except s3.exceptions.NoSuchKey:
        return None


def test_a_holder_reads_and_writes_and_an_older_one_never_again(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    entry = fence.enter(key, 5)
    assert entry.body is None
    entry.put(b"one")
    entry.put("two")
    assert content(s3, key) == b"two"
    newer = fence.enter(key, 6)
    assert newer.body == b"two"
    with pytest.raises(StaleToken) as refused:
        fence.enter(key, 5)
    assert (refused.value.offered, refused.value.highest) == (5, 6)
    with pytest.raises(StaleToken):
        fence.put(key, 5, b"late")
    newer.put(b"three")
    with pytest.raises(StaleToken):
        entry.put(b"late")
    assert content(s3, key) == b"three"
    assert fence.look(key) == (6, "")


def test_a_lease_passes_and_its_number_alone_does_not(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    with lockline.connect("memory:") as locks, locks.lock("ünicode lock") as lease:
        fence.put(key, lease, b"1")
        fence.put(key, lease, b"2")
        with pytest.raises(StaleToken, match="same one"):
            fence.put(key, Offer(lease.name, lease.token, ""), b"3")
        assert fence.look(key) is None
        assert fence.look(key, "ünicode lock") == (lease.token, lease.id)


def test_an_object_is_not_touched_when_a_holder_enters(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    s3.put_object(
        Bucket="bucket", Key=key, Body=b"{}", ContentType="application/json", Metadata={"mine": "yes"}, Tagging="a=b"
    )
    before = s3.head_object(Bucket="bucket", Key=key)
    fence.enter(key, 5)
    after = s3.head_object(Bucket="bucket", Key=key)
    assert [after[name] for name in ("LastModified", "ETag", "ContentType", "Metadata")] == [
        before[name] for name in ("LastModified", "ETag", "ContentType", "Metadata")
    ]
    assert s3.get_object_tagging(Bucket="bucket", Key=key)["TagSet"] == [{"Key": "a", "Value": "b"}]
    fence.put(key, 5, b"[]", ContentType="text/json", Metadata={"mine": "no"})
    head = s3.head_object(Bucket="bucket", Key=key)
    assert (head["ContentType"], head["Metadata"]["mine"], head["Metadata"]["lockline-token"]) == (
        "text/json",
        "no",
        "5",
    )


def test_a_put_of_an_older_holder_that_was_under_way_is_not_buried(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    fence.enter(key, 1).put(b"0")
    old = fence.enter(key, 5)
    new = fence.enter(key, 6)
    # The old holder looked before the mark went up: its put has passed the check and is on its way.
    s3.put_object(Bucket="bucket", Key=key, Body=b"1", IfMatch=old._seen.etag, Metadata={"lockline-token": "5"})
    with pytest.raises(ReadAgain):
        new.put(b"from 0")
    again = fence.enter(key, 6)
    assert again.body == b"1"
    again.put(b"2")
    assert content(s3, key) == b"2"


class LossyProxy:
    """Hands requests on, and drops the answer to the first put that it is told to lose."""

    def __init__(self, target: str) -> None:
        where = urlsplit(target)
        proxy = self
        self.lose = 0
        self.lost = 0

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection((where.hostname, where.port)) as server:

                    def back() -> None:
                        # Either side may be closed under its hands: then there is nothing more to hand on.
                        with contextlib.suppress(OSError):
                            while data := server.recv(65536):
                                if proxy.losing and b" 200 " in data[:16]:
                                    proxy.losing = False
                                    proxy.lost += 1
                                    self.request.shutdown(socket.SHUT_RDWR)
                                    return
                                self.request.sendall(data)

                    proxy.losing = False
                    thread = threading.Thread(target=back, daemon=True)
                    thread.start()
                    try:
                        while data := self.request.recv(65536):
                            if data.startswith(b"PUT") and proxy.lose:
                                proxy.lose -= 1
                                proxy.losing = True
                            server.sendall(data)
                    except OSError:
                        pass

        self.losing = False
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize("retries", [0, 3])
def test_a_put_whose_answer_was_lost_is_done_once(s3: Any, s3_url: str, key: str, retries: int) -> None:
    proxy = LossyProxy(s3_url)
    client = an_s3(
        proxy.url, retries={"max_attempts": retries, "mode": "standard"} if retries else {"total_max_attempts": 1}
    )
    try:
        fence = S3Fence(client, "bucket")
        entry = fence.enter(key, 5)
        proxy.lose = 1
        entry.put(b"once")
        assert proxy.lost == 1
        assert content(s3, key) == b"once"
        entry.put(b"twice")
        assert content(s3, key) == b"twice"
    finally:
        client.close()
        proxy.close()


def test_a_store_that_does_not_answer_is_unavailable(key: str) -> None:
    client = an_s3("http://127.0.0.1:1", retries={"total_max_attempts": 1})
    fence = S3Fence(client, "bucket")
    seen: list[Callable[[], object]] = [lambda: fence.enter(key, 5), lambda: fence.put(key, 5, b"x")]
    from botocore.exceptions import EndpointConnectionError

    for act in seen:
        with pytest.raises((BackendUnavailable, EndpointConnectionError)):
            act()
    client.close()


@pytest.mark.parametrize("token", BAD_TOKENS, ids=repr)
def test_a_bad_token_writes_nothing(s3: Any, key: str, token: object) -> None:
    fence = S3Fence(s3, "bucket")
    for act in (lambda: fence.enter(key, token), lambda: fence.put(key, token, b"x")):
        with pytest.raises(ConfigError):
            act()
    assert content(s3, key) is None


def test_other_bad_input_writes_nothing(s3: Any, key: str) -> None:
    fence = S3Fence(s3, "bucket")
    for act in (
        lambda: fence.enter("", 5),
        lambda: fence.put(key, 5, 7),  # type: ignore[arg-type]
        lambda: S3Fence(object(), "bucket"),
        lambda: S3Fence(s3, ""),
    ):
        with pytest.raises(ConfigError):
            act()
    with pytest.raises(ConfigError, match="where the marks lie"):
        fence.put(f"lockline-fence/{key}", 5, b"x")
    s3.put_object(Bucket="bucket", Key=key, Body=b"x")
    for marks in (b"", b"five", b"[]", b'{"lockline-fence": 2}', b'{"lockline-fence": 1, "marks": {"l": ["5", ""]}}'):
        s3.put_object(Bucket="bucket", Key=f"lockline-fence/{key}", Body=marks)
        for act in (lambda: fence.put(key, 6, b"y"), lambda: fence.enter(key, 6), lambda: fence.delete(key, 6)):
            with pytest.raises(ConfigError, match="no marks"):
                act()
    assert content(s3, key) == b"x"
    with pytest.raises(ClientError):
        S3Fence(s3, "no-such-bucket").enter(key, 5)


class Careless(BaseHTTPRequestHandler):
    """A store that takes every put, whatever its condition says."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_DELETE(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_store_that_ignores_conditions_is_found_out(s3: Any, key: str) -> None:
    S3Fence(s3, "bucket").verify()
    assert content(s3, "lockline-verify") is None
    server = ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = an_s3(f"http://127.0.0.1:{server.server_address[1]}")
    try:
        with pytest.raises(ConfigError, match="ignores IfNoneMatch"):
            S3Fence(client, "bucket").verify()
    finally:
        client.close()
        server.shutdown()
        server.server_close()


def test_the_same_awaited(s3: Any, key: str) -> None:
    async def story() -> None:
        fence = AsyncS3Fence(s3, "bucket")
        entry = await fence.enter(key, 5)
        await entry.put(b"one")
        assert (await fence.enter(key, 6)).body == b"one"
        with pytest.raises(StaleToken):
            await fence.put(key, 5, b"late")
        assert entry.body == b"one"

    asyncio.run(story())
