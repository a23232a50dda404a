"""Holders that their store cannot reach any more, or not yet: they hear of an eviction all the same, long before their ttl."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import lockline
from lockline.core import waiting
from lockline.core.claim import Waiting
from lockline.core.live import LiveClaim
from lockline.core.succession import follow

from .contract.parties import Party
from .contract.scene import Scene
from .contract.worlds import Place
from .servers.proxy import Proxy

TTL = 600.0
"""A third of it is more than anybody here waits."""
A_WHILE = 2.0
"""By then one who holds listens."""
SOON = 60.0


def hears_of_its_eviction(url: str, port: int, flavour: str, how: str) -> None:
    """One who holds, and whose connections are `cut`, or `strand`: nothing passes on them any more, and nobody is told."""
    with Proxy(("127.0.0.1", port)) as proxy:
        far = Place(url.replace(f":{port}", f":{proxy.port}"))
        with Scene(Place(url), flavour) as near, Scene(far, flavour) as scene:
            # Not renewed: nobody asks for it unless there is a reason.
            lease = scene.party().lock("x", ttl=TTL, renew=False).acquire()
            time.sleep(A_WHILE)
            getattr(proxy, how)()
            time.sleep(A_WHILE)
            assert near.evict("x") == 1
            near.wait_for(lambda: not lease.real.valid, SOON, "the loss of the lease")


def an_heir_that_never_looked_hears_of_its_eviction(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client did not listen when it came, and has handed its turn on to it before it could look."""
    with Scene(Place(url), "sync") as scene:
        alice = scene.party()
        bob = scene.sibling(alice)
        held = alice.lock("x", ttl=TTL).acquire()

        def then_release(live: LiveClaim, stands: Waiting, known: Mapping[str, LiveClaim]) -> None:
            follow(live, stands, known)
            held.release()

        monkeypatch.setattr(waiting, "follow", then_release)
        lease = bob.lock("x", ttl=TTL, renew=False).acquire()
        monkeypatch.undo()
        time.sleep(A_WHILE)
        assert scene.evict("x") == 1
        scene.wait_for(lambda: not lease.real.valid, SOON, "the loss of the lease")


def an_eviction_that_is_read_with_the_turn_is_heard(
    url: str, flavour: str, listener: Callable[[Any], Any], listens: Callable[[Any], object]
) -> None:
    """Both messages lie there when it wakes, and two hints are one: it stands in the line again, and does not begin what is over."""
    with Scene(Place(url), flavour) as scene, lockline.connect(url) as operator:
        alice, bob = scene.party(), scene.party()
        # Where a look of its own was faster than the message, that was another story.
        told = any(_is_evicted_with_its_turn(scene, operator, alice, bob, listener, listens) for _ in range(20))
        assert told, "each time it had its turn before it was told"


def _is_evicted_with_its_turn(
    scene: Scene, operator: lockline.Client, alice: Party, bob: Party,
    listener: Callable[[Any], Any], listens: Callable[[Any], object],
) -> bool:  # fmt: skip
    lease = alice.lock("x", ttl=TTL).acquire()
    (waits,) = scene.queue_up("x", bob.lock("x", ttl=TTL).acquire.start)
    listening = listener(bob.client.real._engine.backend)
    (live,) = bob.client.real._engine._keeper.books.values()
    scene.wait_for(lambda: listens(listening), what="a listener")
    note = listening._take_note
    evicted: list[int] = []

    def both_at_once(message: str) -> str:
        if evicted:
            return ""  # the message of the eviction: it was read before
        told = note(message)
        if message.startswith(f"{live.claim.id} ") and live.token is None:
            evicted.append(operator.evict("x"))
            note(live.claim.id)
        return str(told)

    listening._take_note = both_at_once
    lease.release()
    granted = waits.result(5)
    listening._take_note = note
    if evicted and granted.id == live.claim.id:
        # A look of its own was under way, and somebody else read the messages: it has begun, and is told.
        scene.wait_for(lambda: not granted.valid, SOON, "the loss of the lease")
        return False
    if evicted:
        assert evicted == [1]
        assert granted.id != live.claim.id
        assert [held.id for held in scene.line("x").holders] == [granted.id]
    granted.release()
    return bool(evicted)
