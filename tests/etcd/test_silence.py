"""A connection that dies without a word while nobody asks for anything: whoever waits there has to find out by itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline import aio
from lockline.backends.etcd import channel
from lockline.runtime.blocking import run

from ..servers.etcd import EtcdCluster
from ..servers.process import wait_for
from ..servers.proxy import Proxy
from .conftest import backend_of

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


@pytest.mark.usefixtures("no_net")
@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_line_that_is_dead_costs_who_waits_no_part_of_a_ttl(
    single: EtcdCluster, client_of: Clients, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal would find out after a third of the ttl, which is more than is waited for here."""
    monkeypatch.setattr(channel, "PING_EVERY", 1.0)
    port = single.members[0].port
    near = client_of(f"etcd://127.0.0.1:{port}/silence-{flavour}")
    held = near.lock("x", ttl=600).acquire()
    with Proxy(("127.0.0.1", port)) as proxy:
        through = f"etcd://127.0.0.1:{proxy.port}/silence-{flavour}"
        granted = threading.Event()

        def wait_here() -> None:
            with lockline.connect(through) as client, client.lock("x", ttl=600):
                granted.set()

        async def wait_there() -> None:
            async with aio.connect(through) as client, client.lock("x", ttl=600):
                granted.set()

        work: Any = wait_here if flavour == "sync" else lambda: asyncio.run(wait_there())
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        wait_for(lambda: len(near.inspect("x").waiters) == 1, 60, "one who waits")
        proxy.strand()
        held.release()
        wait_for(granted.is_set, 60, "its turn")
        thread.join(60)


def test_an_answer_that_the_keeper_has_read_ends_the_wait_of_the_one_that_was_about_to_read_it(
    single: EtcdCluster, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A glance at what has arrived takes answers along: whoever waited for that to end finds its own there, and does not wait for more."""
    client = client_of(f"{single.url}/glance")
    client.inspect("x")
    link: Any = backend_of(client)._channel.link
    first = link._first
    overtaken: list[int] = []

    def overtake() -> Any:
        mine = first()
        if not overtaken:
            # The last look before it reads.
            overtaken.append(mine)
            wait_for(link.unread, what="the answer")
            time.sleep(0.1)  # for all of it
            glance = threading.Thread(target=link.glance)
            glance.start()
            glance.join()
        return mine

    link._first = overtake
    # With no doubt in the member for a long time: one who waits for more hangs.
    for patience in ("QUIET", "SLOW"):
        monkeypatch.setattr(channel, patience, 3600.0)
    run(backend_of(client).look("x", client._engine.runtime.now() + 3 * 3600))
    assert overtaken == [threading.get_ident()]
