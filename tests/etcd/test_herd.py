"""No herd: what a release costs the server does not grow with the number of waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

import pytest

from lockline import aio
from lockline.backends.etcd.backend import EtcdBackend

from ..servers.etcd import EtcdCluster
from ..tier import sample

pytestmark = [pytest.mark.server, pytest.mark.slow]

COUNTED = {
    "reads": ('grpc_server_handled_total{grpc_code="OK",grpc_method="Range"',),
    "transactions": ('grpc_server_handled_total{grpc_code="OK",grpc_method="Txn"',),
    "events": ("etcd_debugging_mvcc_events_total",),
    "watch messages": ('grpc_server_msg_sent_total{grpc_method="Watch"',),
}


def count(server: EtcdCluster) -> dict[str, float]:
    """What the server has done so far, by its own counters."""
    metrics = server.members[0].metrics()

    def total(names: Iterable[str]) -> float:
        return sum(value for key, value in metrics.items() if key.startswith(tuple(names)))

    return {what: total(names) for what, names in COUNTED.items()}


async def _one_hand_over(server: EtcdCluster, prefix: str, waiters: int) -> dict[str, float]:
    """What the server does for one release and the grant that follows, with so many in the line."""
    url = f"{server.url}/{prefix}"
    holder = aio.connect(url)
    crowd = [aio.connect(url) for _ in range(waiters)]
    lease = await holder.lock("x", ttl=600).acquire()
    waiting = [asyncio.create_task(client.lock("x", ttl=600).acquire()) for client in crowd]
    await _stand(holder, "x", waiters)
    # Every client settles: its watch of its own keys, its first look round.
    while not all(_listens(client) for client in crowd):  # noqa: ASYNC110 - it is the state that counts
        await asyncio.sleep(0.05)
    quiet = await _quiet(server, 0.7)
    await lease.release()
    async with asyncio.timeout(60):
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (granted,) = done
    # What it costs at least has been counted, however busy the machine is; then what more it may cost.
    while not all(count(server)[what] > quiet[what] for what in ("transactions", "events", "reads")):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)
    after = await _quiet(server, 1.0)
    assert granted.result().valid
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await granted.result().release()
    for client in [holder, *crowd]:
        await client.close()
    return {what: after[what] - quiet[what] for what in COUNTED}


def _listens(client: aio.Client) -> bool:
    watches = cast(EtcdBackend, client._engine.backend)._watches
    return bool(watches.at_home and watches._by_claim)


async def _quiet(server: EtcdCluster, seconds: float) -> dict[str, float]:
    """What the server has done so far, once it does nothing for that long."""
    known = count(server)
    while True:
        await asyncio.sleep(seconds)
        now = count(server)
        if now == known:
            return now
        known = now


def test_one_release_wakes_one_waiter_whatever_the_length_of_the_line(single: EtcdCluster) -> None:
    """Longer than 5 s: what the server does is counted once it has been quiet for a while."""
    few = asyncio.run(_one_hand_over(single, "herd-few", 10))
    many = asyncio.run(_one_hand_over(single, "herd-many", sample(40, 200)))
    for cost in (few, many):
        # The release, one event to one waiter, its look, and the end of its watch.
        assert cost["transactions"] == 1, (few, many)
        assert cost["events"] == 1, (few, many)
        assert cost["reads"] == 1, (few, many)
        assert cost["watch messages"] <= 2, (few, many)


async def _watched_by_one_more_reader(server: EtcdCluster, readers: int) -> tuple[float, int]:
    """How many keys a reader watches behind a writer and so many readers; and how many hold once the writer has left."""
    url = f"{server.url}/readers-{readers}"
    holder, crowd, last = (aio.connect(url) for _ in range(3))
    writer = await holder.rwlock("x").write().acquire()
    taken = await holder.lock("y").acquire()
    waiting = [asyncio.create_task(crowd.rwlock("x").read().acquire()) for _ in range(readers)]
    # Each client watches its own keys from its first wait on: that one is no part of what is counted.
    waiting.append(asyncio.create_task(last.lock("y").acquire()))
    await _stand(holder, "x", readers)
    await _stand(holder, "y", 1)
    before = await _settled(server)
    waiting.append(asyncio.create_task(last.rwlock("x").read().acquire()))
    await _stand(holder, "x", readers + 1)
    after = await _settled(server)
    await writer.release()
    await taken.release()
    async with asyncio.timeout(120):
        leases = await asyncio.gather(*waiting)
    held = len((await holder.inspect("x")).holders)
    for lease in leases:
        await lease.release()
    for client in (holder, crowd, last):
        await client.close()
    return after - before, held


async def _stand(client: aio.Client, name: str, waiters: int) -> None:
    for _ in range(2400):
        if len((await client.inspect(name)).waiters) == waiters:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"fewer than {waiters} came to wait for {name!r}")


async def _settled(server: EtcdCluster) -> float:
    """How many keys or ranges are watched, once that stays as it is."""
    known = -1.0
    while (now := server.members[0].metrics()["etcd_debugging_mvcc_watcher_total"]) != known:
        known = now
        await asyncio.sleep(0.7)
    return known


def test_a_reader_watches_the_writer_alone_whatever_the_number_of_readers_between(single: EtcdCluster) -> None:
    readers = sample(20, 100)
    assert asyncio.run(_watched_by_one_more_reader(single, readers)) == (1, readers + 1)
