"""TLS on the way to a database: verified by its authority, refused where nobody vouches for it or where it is not spoken."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable
from lockline.backends import mysql
from tests.postgresql.template import CopiedPostgres
from tests.servers.mysql import MariadbServer
from tests.servers.process import program

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def papers() -> Iterator[Path]:
    """A self-signed certificate for 127.0.0.1, where a server that is not root can read it."""
    folder = Path(tempfile.mkdtemp(prefix="lockline-tls-"))
    subprocess.run(
        [
            program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        for path in (folder, *folder.iterdir()):
            os.chown(path, user.pw_uid, user.pw_gid)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["postgresql", "mysql"])
def served(request: pytest.FixtureRequest, papers: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a server that speaks TLS."""
    key, cert = papers / "key.pem", papers / "cert.pem"
    server: Any
    if request.param == "postgresql":
        server = CopiedPostgres("-c", "ssl=on", "-c", f"ssl_key_file={key}", "-c", f"ssl_cert_file={cert}").start()
    else:
        server = MariadbServer(tmp_path / "home", f"--ssl-key={key}", f"--ssl-cert={cert}").start()
        mysql.tables(server.url).make()
    yield server.url
    server.remove()


async def told(url: str) -> str:
    async with lockline.aio.connect(url) as client:
        with pytest.raises(BackendUnavailable) as caught:
            await client.lock("x").acquire(timeout=60)
        return str(caught.value)


def test_tls_is_verified_in_both_flavours(served: str, papers: Path, tmp_path: Path) -> None:
    url = f"{served}?tls=yes&ca={papers / 'cert.pem'}"
    with lockline.connect(url) as client, client.lock("x", timeout=60):
        assert client.list() == ["x"]

    async def story() -> None:
        async with lockline.aio.connect(url) as client, client.lock("x", timeout=60):
            assert await client.list() == ["x"]

    asyncio.run(story())
    # An authority that does not know it.
    with lockline.connect(f"{served}?tls=yes") as client, pytest.raises(BackendUnavailable, match="certificate"):
        client.lock("x").acquire(timeout=60)
    assert "certificate" in asyncio.run(told(f"{served}?tls=yes"))


@pytest.mark.parametrize("store", ["postgresql", "mysql"], indirect=True)
def test_a_server_without_tls_is_refused_where_tls_was_asked_for(store: Any, papers: Path) -> None:
    url = store.url(tls="yes", ca=papers / "cert.pem")
    with lockline.connect(url) as client, pytest.raises(BackendUnavailable, match=r"TLS|SSL"):
        client.lock("x").acquire(timeout=60)
    assert "SSL" in asyncio.run(told(url)) or "TLS" in asyncio.run(told(url))
