"""What the kit costs: how long a leader that is told to go leaves nobody leading, and how fast a fresh value is.

python bench/kit.py [redis://...]
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lockline
import lockline.core.shells
import lockline.kit.once
from lockline.runtime.clock import now

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.servers.process import wait_for
from tests.servers.redis import a_redis

ROUNDS = 15
SECONDS = 2.0

LEADER = """
import sys, time, lockline
from lockline.runtime.clock import now
def main(term):
    print(now(), flush=True)
    term.lost.wait()
with lockline.connect(sys.argv[1]) as client:
    print("stands", flush=True)
    client.lead("boss", main, ttl=10)
"""
LEASE_LOOP = """
import sys, signal, time, lockline
from lockline.runtime.clock import now
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with lockline.connect(sys.argv[1]) as client:
    print("stands", flush=True)
    while True:
        lease = client.lock("boss", ttl=10).try_acquire()
        if lease is not None:
            with lease:
                print(now(), flush=True)
                lease.lost.wait()
        time.sleep(0.1)
"""
ELECTION = """
import sys, signal, time
from kazoo.client import KazooClient
from lockline.runtime.clock import now
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
client = KazooClient(sys.argv[1])
client.start()
def main():
    print(now(), flush=True)
    time.sleep(3600)
print("stands", flush=True)
try:
    client.Election("/boss", str(time.time())).run(main)
finally:
    client.stop()
"""


def hand_overs(program: str, target: str, stands: Callable[[], object]) -> list[float]:
    """Seconds from the signal to the next one's first line, again and again."""

    def begin() -> subprocess.Popen[str]:
        begun = subprocess.Popen([sys.executable, "-c", program, target], stdout=subprocess.PIPE, text=True)
        assert begun.stdout is not None
        assert begun.stdout.readline() == "stands\n"
        return begun

    took = []
    leads = begin()
    assert leads.stdout is not None
    leads.stdout.readline()
    for _ in range(ROUNDS):
        behind = begin()
        assert behind.stdout is not None
        stands()
        sent = now()
        leads.send_signal(signal.SIGTERM)
        took.append(float(behind.stdout.readline()) - sent)
        leads.wait(30)
        leads = behind
    leads.kill()
    leads.wait()
    return took


def a_moment() -> None:
    """Until it looks, and then not always the same time before the next look."""
    time.sleep(0.5 + random.random() / 10)


@contextlib.contextmanager
def a_zookeeper() -> Iterator[str]:
    from tests.servers.zookeeper import ZooKeeper

    with tempfile.TemporaryDirectory() as folder:
        server = ZooKeeper(Path(folder))
        server.start()
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            server.stop()


def per_second(call: Callable[[], object]) -> float:
    for _ in range(3):
        call()
    began, calls = time.perf_counter(), 0
    while time.perf_counter() < began + SECONDS:
        call()
        calls += 1
    return calls / (time.perf_counter() - began)


def hot(url: str) -> dict[str, float]:
    """Calls per second for a value that is fresh: `once`, and the same by hand with a lock and GET or SET."""
    import redis

    with lockline.connect(url) as client, lockline.connect(url) as other:
        server = redis.Redis.from_url(url)

        def by_hand() -> object:
            with client.lock("by-hand"):
                found = server.get("value")
                if found is None:
                    server.set("value", json.dumps({"orders": 42}), ex=60)
                    return {"orders": 42}
                return json.loads(found)

        def unremembered() -> object:
            # As another process would ask that has not seen it yet.
            lockline.kit.once.flights_of(other, lockline.core.shells.engine_of(other)).forked()
            return other.once("hot", lambda: {"orders": 42}, fresh=3600)

        return {
            "once, seen before": per_second(lambda: client.once("hot", lambda: {"orders": 42}, fresh=3600)),
            "once, from the store": per_second(unremembered),
            "lock + GET": per_second(by_hand),
        }


def show(title: str, took: list[float]) -> None:
    ms = sorted(1000 * seconds for seconds in took)
    print(f"{title:36} {statistics.median(ms):8.1f} ms median {ms[-1]:8.1f} ms worst of {len(ms)}", flush=True)


def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n\nhand-over of a leader on SIGTERM")
    with tempfile.TemporaryDirectory() as folder, a_redis() as server:
        for name, url in (("local", f"local://{folder}/locks.db"), ("redis", server.url)):
            with lockline.connect(url) as client:

                def stands(client: lockline.Client = client) -> None:
                    wait_for(lambda: client.inspect("boss").waiters, 60, "one who stands behind")

                show(f"client.lead on {name}", hand_overs(LEADER, url, stands))
            show(f"lease loop, a look every 0.1 s, {name}", hand_overs(LEASE_LOOP, url, a_moment))
        try:
            with a_zookeeper() as hosts:
                show("kazoo's Election on ZooKeeper", hand_overs(ELECTION, hosts, lambda: time.sleep(1)))
                url = f"zk://{hosts}"
                with lockline.connect(url) as client:

                    def stands_there() -> None:
                        wait_for(lambda: client.inspect("boss").waiters, 60, "one who stands behind")

                    show("client.lead on zookeeper", hand_overs(LEADER, url, stands_there))
        except ImportError as missing:
            print(f"no ZooKeeper: {missing}")
        print("\na value that is fresh, calls per second of one thread")
        found = hot(sys.argv[1] if len(sys.argv) > 1 else server.url)
        for title, speed in found.items():
            print(f"{title:36} {speed:10.0f} {speed / found['lock + GET']:8.1f} times lock + GET")


if __name__ == "__main__":
    main()
