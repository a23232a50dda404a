"""What the locks of the literature cost when nobody is in the way: acquire and release, one client, servers on this machine.

python bench/lab_locks.py
"""

from __future__ import annotations

import time

from lockline.lab.families import FAMILIES, Servers, a_folder
from lockline.lab.locks import catalogue
from lockline.lab.locks.face import Place
from lockline.lab.world import World

LOCKS = (
    "set-nx-ex", "owner-compare-delete", "redlock-as-published", "row-expiry", "advisory", "zookeeper-basic", "zookeeper-sequential",
    "lockline-local", "lockline-redis", "lockline-redlock", "lockline-postgresql", "lockline-mysql", "lockline-etcd", "lockline-zookeeper",
)  # fmt: skip
SECONDS = 2.0


def measure(lock_id: str, servers: Servers) -> tuple[float, float]:
    """Pairs of acquire and release in a second, and the median in milliseconds."""
    lock = catalogue()[lock_id](
        Place(tuple(servers.addresses), f"bench-{lock_id}", 30.0, 5.0, servers.url), lambda name: None
    )
    took = []
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        began = time.perf_counter()
        hold = lock.acquire(time.monotonic() + 5)
        assert hold is not None
        lock.release(hold)
        took.append(time.perf_counter() - began)
    lock.close()
    took.sort()
    return len(took) / sum(took), took[len(took) // 2] * 1000


def main() -> None:
    world = World()
    open_now: dict[str, Servers] = {}
    try:
        print(f"{'lock':28}{'pairs/s':>10}{'median ms':>12}")
        for lock_id in LOCKS:
            family = catalogue()[lock_id].family
            if family not in open_now:
                open_now[family] = FAMILIES[family](a_folder(world.folder, family), "plain")
                open_now[family].start()
            pairs, median = measure(lock_id, open_now[family])
            print(f"{lock_id:28}{pairs:>10.0f}{median:>12.2f}", flush=True)
    finally:
        for servers in open_now.values():
            servers.stop()
        world.close()


if __name__ == "__main__":
    main()
