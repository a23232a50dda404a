"""The way to the server stalls, is let go, and then the server freezes: the holder knows before the next one begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import lockline
from lockline.runtime.clock import now

from ..servers.process import wait_for
from ..servers.proxy import Proxy
from ..servers.zookeeper import Ensemble
from .conftest import Trust

# test_no_stall_freeze_or_lost_server_makes_a_client_trust_a_session_that_is_over shows the same on a virtual clock; on servers,
# test_a_long_ttl_does_not_outlive_the_session_that_carries_it and
# test_a_holder_that_is_cut_off_together_with_its_server_knows_before_the_next_one_holds show that a holder knows in time.
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.full]
Clients = Callable[..., lockline.Client]

SESSION = 4.0
TRIALS = 3
STALL = 0.55
"""The share of the session for which nothing arrives."""


@pytest.fixture
def slow_ticks(tmp_path: Path) -> Iterator[Ensemble]:
    """An ensemble with ZooKeeper's own tick of two seconds, in which servers report once a second."""
    ensemble = Ensemble(tmp_path, settings={"tickTime": 2000}).start()
    yield ensemble
    ensemble.stop()


def test_what_was_held_up_on_its_way_and_then_confirmed_is_not_trusted_as_news(
    slow_ticks: Ensemble, client_of: Clients
) -> None:
    """What the client sends is late by more than half the session, arrives, is confirmed; then its server freezes.

    Longer than 5 s: an ensemble with slow ticks starts, and a session of 4 s, two of its ticks, stalls and ends.
    """
    leader = slow_ticks.leader
    assert leader is not None
    server = next(one for one in slow_ticks.servers if one.mode == "follower")
    for trial in range(TRIALS):
        with (
            Proxy(("127.0.0.1", server.port)) as proxy,
            lockline.connect(f"zk://127.0.0.1:{proxy.port}?session=4") as holder,
            lockline.connect(f"{leader.url}?session=4") as other,
        ):
            lease = holder.lock("x", ttl=30).acquire(timeout=60)
            granted: list[float] = []

            def wait(other: lockline.Client = other, granted: list[float] = granted) -> None:
                with other.lock("x", ttl=30).acquire(timeout=60):
                    granted.append(now())

            waiter = threading.Thread(target=wait)
            waiter.start()
            trust = Trust(lease)
            session = holder._engine.backend._channel.session  # type: ignore[attr-defined]
            assert session.timeout == SESSION
            time.sleep(2 + trial * 0.3)
            risen = session.ceiling.until
            wait_for(
                partial(lambda *seen: seen[0].ceiling.until > seen[1] or not seen[2].valid, session, risen, lease),
                60, "a confirmation",
            )  # fmt: skip
            risen = session.ceiling.until
            proxy.black_hole()
            time.sleep(STALL * SESSION)
            # All that was held up arrives at one moment.
            proxy.heal()
            end = now() + 0.3
            while session.ceiling.until <= risen and now() < end:
                time.sleep(0.0005)
            server.freeze()
            waiter.join(120)
            trusted = trust.last()
            server.thaw()
            server.wait_ready()
            print(f"trial {trial}: trusted for {trusted - granted[0]:+.3f} s when the next one held")
            assert trusted < granted[0]
