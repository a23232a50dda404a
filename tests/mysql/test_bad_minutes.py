"""The line cut before and after the commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import lockline
from tests.servers.proxy import Proxy

from .conftest import Database

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(shared: Database) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", shared.server.port)) as proxy:
        yield proxy


STEPS = [b"lockline_enter_v1", b"lockline_leave_v1", b"lockline_renew_v1"]


@pytest.mark.parametrize("step", STEPS, ids=["enter", "leave", "renew"])
def test_a_reply_that_is_lost_after_the_commit_is_asked_for_again(shared: Database, proxy: Proxy, step: bytes) -> None:
    url = f"mysql://root@127.0.0.1:{proxy.port}/lockline?prefix=lost"
    with lockline.connect(url) as client:
        client.lock("x").acquire(timeout=60).release()
        proxy.drop_reply(containing=step)
        lease = client.lock("x", ttl=60).acquire(timeout=60)
        lease.extend(120)
        lease.release()
        assert proxy.lost == 1
        assert client.list() == []
        with client.lock("x", timeout=60) as after:
            assert after.token > lease.token


@pytest.mark.parametrize("step", STEPS, ids=["enter", "leave", "renew"])
def test_a_session_that_ends_before_the_commit_changes_nothing_and_is_asked_again(
    shared: Database, proxy: Proxy, step: bytes
) -> None:
    url = f"mysql://root@127.0.0.1:{proxy.port}/lockline?prefix=undone&timeout=20"
    with lockline.connect(url) as client, shared.connect(autocommit=False) as other:
        lease = client.lock("x", ttl=600, renew=False).acquire(timeout=60)
        if step == STEPS[0]:
            lease.release()
            (place,) = [client._engine.backend._places("x")]  # type: ignore[attr-defined]
            other.query(f"SELECT last FROM lockline_slot WHERE number = {place.at & 1023} FOR UPDATE")
        else:
            other.query("SELECT id FROM lockline_claim WHERE name = 'undone:x' FOR UPDATE")
        answers: list[object] = []

        def act() -> None:
            if step == STEPS[0]:
                with client.lock("x", timeout=60) as taken:
                    answers.append(taken.token)
            elif step == STEPS[1]:
                lease.release()
                answers.append("released")
            else:
                lease.extend(1200)
                answers.append("extended")

        thread = threading.Thread(target=act)
        thread.start()
        shared.ask(f"KILL {shared.who_waits()}")
        other.rollback()
        thread.join(120)
        assert len(answers) == 1
        if step == STEPS[2]:
            lease.release()
        assert client.list() == []
