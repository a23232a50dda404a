"""A server whose messages are not in English: what does not pass is not tried again for the whole timeout."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import lockline
from lockline import BackendUnavailable
from lockline.backends.sql import channel
from tests.servers.process import missing, wait_for

from .conftest import Database

pytestmark = pytest.mark.server
LOCALE = "de_DE.UTF-8"


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """It lets the role `secretive` in by a password alone."""
    shared = tmp_path_factory.mktemp("locale")
    made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(shared / LOCALE)], check=False)
    if made.returncode:
        missing("the locale de_DE; apt-get install locales")
    database = Database("-c", "max_connections=20")
    server = database.server
    server.stop()
    home = Path(server.home) / "locale"
    subprocess.run(["cp", "-a", "-T", str(shared), str(home)], check=True)
    home.chmod(0o755)
    server.env = {"LOCPATH": str(home)}
    server.argv += ["-c", f"lc_messages={LOCALE}"]
    server.start()
    database.ask("CREATE ROLE secretive LOGIN PASSWORD 'right'")
    rules = server.data / "pg_hba.conf"
    rules.write_text("host all secretive 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    database.ask("SELECT pg_reload_conf()")
    yield database
    database.close()


def test_a_wrong_password_is_told_long_before_the_timeout(german: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "UNKNOWN_REFUSAL_S", 1.0)
    url = german.url.replace("lockline@", "secretive:wrong@")
    said: list[str] = []

    def is_refused() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError as problem:
            said.append(str(problem))
        return bool(said)

    wait_for(is_refused, 60, "a server that has read its rules again")
    assert "fehlgeschlagen" in said[-1]
    # Neither ends before its test does, if it goes on to the timeout.
    with lockline.connect(url) as client, pytest.raises(BackendUnavailable, match="fehlgeschlagen"):
        client.lock("x").acquire(timeout=3600)

    async def story() -> None:
        async with lockline.aio.connect(url) as client:
            with pytest.raises(BackendUnavailable, match="fehlgeschlagen"):
                await client.lock("x").acquire(timeout=3600)

    asyncio.run(story())


def test_a_server_that_is_not_there_is_still_waited_for(german: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "UNKNOWN_REFUSAL_S", 60.0)
    german.server.stop()
    with lockline.connect(german.url) as client:

        async def story() -> None:
            waits = asyncio.to_thread(lambda: client.lock("x").acquire(timeout=120).release())
            task = asyncio.ensure_future(waits)
            await asyncio.sleep(1)
            await asyncio.to_thread(german.server.start)
            await task

        asyncio.run(story())
