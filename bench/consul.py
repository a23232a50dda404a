"""Consul: Lockline against the sequence of requests of `consul lock`, on bare httpx, in one run.

python bench/consul.py [--seconds 4] [--rounds 5] [--processes 16]
"""

from __future__ import annotations

import argparse
import base64
import importlib.metadata
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from crowd import Locker, contended, uncontended
from report import Report

from tests.servers.consul import ConsulCluster


@contextmanager
def lockline_locker(address: str) -> Iterator[Locker]:
    import lockline

    with lockline.connect(f"consul://{address}/bench") as client:
        lock = client.lock("bench")
        yield lambda: lock


@contextmanager
def recipe_locker(address: str) -> Iterator[Locker]:
    """What `consul lock` does, with its session made once: acquire the key, wait for it by blocking query, release it.

    Its lock-delay is 0 here: with the 15 seconds of its default nobody would get the lock after a crash for so long.
    """
    import httpx

    with httpx.Client(base_url=f"http://{address}/v1/", timeout=120) as client:
        wish = {"TTL": "15s", "Behavior": "delete", "LockDelay": "0s"}
        session = client.put("session/create", json=wish).json()["ID"]
        key = "kv/recipe/.lock"

        @contextmanager
        def held() -> Iterator[None]:
            while client.put(key, params={"acquire": session}, content=b"me").text.strip() != "true":
                index = 0
                while True:
                    answer = client.get(key, params={"index": index, "wait": "15s"})
                    if answer.status_code == 404 or not answer.json()[0].get("Session"):
                        break
                    index = int(answer.headers["x-consul-index"])
            yield
            client.put(key, params={"release": session}, content=b"me")

        yield held
        client.put(f"session/destroy/{session}")


@contextmanager
def bare_locker(address: str) -> Iterator[Locker]:
    """Not a lock: one key locked in a transaction and deleted in another, the least that any fair lock on Consul must do."""
    import httpx

    with httpx.Client(base_url=f"http://{address}/v1/", timeout=120) as client:
        session = client.put("session/create", json={"TTL": "60s", "Behavior": "delete"}).json()["ID"]
        value = base64.b64encode(b"x" * 90).decode()

        def transact(*steps: dict[str, Any]) -> None:
            assert client.put("txn", json=[{"KV": step} for step in steps]).status_code == 200

        @contextmanager
        def made() -> Iterator[None]:
            key = f"bare/{secrets.token_hex(8)}"
            transact({"Verb": "lock", "Key": key, "Session": session, "Value": value})
            yield
            transact({"Verb": "delete", "Key": key})

        yield made
        client.put(f"session/destroy/{session}")


PEERS = {"lockline": lockline_locker, "consul lock's requests": recipe_locker}
LIMIT = "bare lock+delete"


def run_all(report: Report, address: str, given: argparse.Namespace) -> None:
    with lockline_locker(address) as ours, recipe_locker(address) as recipe, bare_locker(address) as bare:
        lockers = {"lockline": ours, "consul lock's requests": recipe, LIMIT: bare}
        uncontended(lockers, 1, 50)
        times = uncontended(lockers, given.rounds, 200)
    report.table(
        "uncontended acquire + release",
        [{"peer": peer, "ms": seconds * 1e3, "of_limit": seconds / times[LIMIT]} for peer, seconds in times.items()],
    )
    for processes in given.processes:
        found = []
        for peer, opener in PEERS.items():
            runs = [contended(opener, address, processes, 0.001, given.seconds) for _ in range(2)]
            found.append({"peer": peer, **max(runs, key=lambda run: run["grants_per_s"])})
        report.table(f"{processes} processes, 1 ms inside", found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--processes", type=int, nargs="*", default=[16])
    given = options.parse_args()
    versions = {peer: importlib.metadata.version(peer) for peer in ("lockline", "httpx", "httpcore")}
    with tempfile.TemporaryDirectory() as folder:
        cluster = ConsulCluster(Path(folder)).start()
        try:
            report = Report("consul", {**versions, "consul": cluster.servers[0].ask("agent/self")["Config"]["Version"]})
            run_all(report, f"127.0.0.1:{cluster.servers[0].port}", given)
        finally:
            cluster.stop()
    report.write()


if __name__ == "__main__":
    main()
