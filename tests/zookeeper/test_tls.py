"""Answers that come over TLS are read as soon as they are here, however they were packed on their way."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockline.backends.zookeeper.handler import LeanHandler

from ..servers.process import missing


@pytest.fixture
def line(tmp_path: Path) -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    """Both ends of an encrypted connection: the server's, and the client's."""
    if shutil.which("openssl") is None:
        missing("openssl is not installed; it makes the certificate for this test")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    asking = ssl.create_default_context(cafile=str(certificate))
    ends = socket.socketpair()
    made: list[ssl.SSLSocket] = []
    greeting = threading.Thread(target=lambda: made.append(serving.wrap_socket(ends[0], server_side=True)))
    greeting.start()
    client = asking.wrap_socket(ends[1], server_hostname="localhost")
    greeting.join(60)
    yield made[0], client
    for end in (*made, client):
        end.close()


def test_an_answer_that_came_in_one_piece_with_the_one_before_does_not_wait_for_the_next_packet(
    line: tuple[ssl.SSLSocket, ssl.SSLSocket],
) -> None:
    """As from a proxy that ends TLS for the servers and packs together what it has."""
    server, client = line
    handler = LeanHandler(1)
    bell, rope = socket.socketpair()
    try:
        server.sendall(b"one two ")
        for answer in (b"one ", b"two "):
            assert handler.select([client, bell], [], [], 5.0)[0] == [client]
            assert client.recv(4) == answer
        assert handler.select([client, bell], [], [], 0.01)[0] == []
    finally:
        bell.close()
        rope.close()
