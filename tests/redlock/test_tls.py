"""Redlock over TLS, both flavours."""

from __future__ import annotations

import asyncio
import gc
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockline
from lockline import QuorumNotReached
from lockline.backends.redlock import cluster
from lockline.backends.redlock.target import understand
from tests.servers.process import free_port, missing, wait_for
from tests.servers.redis import RedisServer, a_folder
from tests.tier import sample

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Three servers that also listen with TLS."""
    if shutil.which("openssl") is None:
        missing("openssl is not installed; it makes the certificate for this test")
    with a_folder("redlock-tls") as folder:
        key, certificate = folder / "key.pem", folder / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        made = [_server(folder / f"node-{n}", key, certificate) for n in range(3)]
        try:
            for server, _ in made:
                server.start()
            hosts = ",".join(f"127.0.0.1:{port}" for _, port in made)
            address = f"redlock://{hosts}?tls=yes&ssl_ca_certs={certificate}&timeout=5"
            cluster.init(understand(address, "blocking").nodes).act()
            yield address
        finally:
            for server, _ in made:
                server.stop()


def _server(folder: Path, key: Path, certificate: Path) -> tuple[RedisServer, int]:
    port = free_port()
    options = (
        "--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
    )  # fmt: skip
    return RedisServer(folder, *options), port


def test_locks_are_taken_and_waited_for_over_tls(url: str) -> None:
    with lockline.connect(url) as client, lockline.connect(url) as other:
        tokens = []
        for _ in range(sample(10, 50)):
            lease = client.lock("x").acquire(timeout=60)
            tokens.append(lease.token)
            lease.release()
        assert tokens == sorted(set(tokens))
        held = client.lock("x", ttl=60).acquire(timeout=60)

        def release() -> None:
            wait_for(lambda: client.inspect("x").waiters, 60, "one that waits")
            held.release()

        releasing = threading.Thread(target=release)
        releasing.start()
        taken = other.lock("x", ttl=60).acquire(timeout=60)
        releasing.join(60)
        assert taken.token > held.token
        taken.validate()
        taken.release()


def test_locks_are_taken_over_tls_in_asyncio(url: str) -> None:
    async def story() -> None:
        async with lockline.aio.connect(url) as client, lockline.aio.connect(url) as other:
            async with client.lock("x", ttl=60) as lease:
                pending = asyncio.create_task(other.lock("x", ttl=60).acquire(timeout=60))
                while not (await client.inspect("x")).waiters:  # noqa: ASYNC110 - the store has no event for it
                    await asyncio.sleep(0.01)
            taken = await pending
            assert taken.token > lease.token
            await taken.release()

    asyncio.run(story())


# redis-py leaves the plain socket to the garbage collector when the handshake fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_certificate_that_nobody_vouches_for_is_refused(url: str) -> None:
    with lockline.connect(url.partition("&")[0]) as client, pytest.raises(QuorumNotReached) as caught:
        client.lock("x").try_acquire()
    assert any("certificate" in what.lower() for what in caught.value.nodes.values())
    gc.collect()
