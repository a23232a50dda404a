"""The live trial: client processes on real servers, faults while they run, and a judge over what they wrote down."""

from __future__ import annotations

import bisect
import contextlib
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lockline
from lockline.backends.redlock import cluster
from lockline.backends.redlock.channel import TROUBLE
from lockline.backends.redlock.target import understand
from lockline.errors import LocklineError
from tests.servers.redis import a_folder
from tests.steady_clock import steady_clock

from .proxy import Proxy
from .servers import Servers
from .stepped_clock import Clock, library

LONGEST = 1.0
OPTIONS = ("--appendonly", "yes", "--appendfsync", "everysec")


@dataclass
class Verdict:
    """What came of a trial."""

    grants: int = 0
    one_trip: int = 0
    twice: int = 0
    out_of_order: int = 0
    overlaps: int = 0
    refused: int = 0
    lost_updates: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: Verdict) -> None:
        for name in ("grants", "one_trip", "twice", "out_of_order", "overlaps", "refused", "lost_updates"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        share = 100 * self.one_trip / max(1, self.grants)
        return (
            f"{self.grants} grants ({share:.1f} % in one round trip) under {sum(self.faults.values())} faults ({faults}): "
            f"{self.twice} tokens twice, {self.out_of_order} out of order, {self.overlaps} overlapping leases, "
            f"{self.refused} stale accesses refused, {self.lost_updates} lost updates"
        )


def judge(folder: Path) -> Verdict:
    """Read what the clients wrote down."""
    verdict = Verdict()
    grants: dict[str, list[tuple[float, float, float, int]]] = {}
    for log in sorted(folder.glob("grants-*.log")):
        for line in log.read_text().splitlines():
            name, number, begun, got, ends_at, _, once, written = line.split()
            verdict.grants += 1
            verdict.one_trip += int(once)
            verdict.refused += not int(written)
            grants.setdefault(name, []).append((float(got), float(begun), float(ends_at), int(number)))
    for name, told in grants.items():
        told.sort()
        tokens = [token for *_, token in told]
        verdict.twice += len(tokens) - len(set(tokens))
        times: list[float] = []
        highest: list[int] = []
        for answered, sent, _, token in told:
            before = bisect.bisect_left(times, sent)
            if before and highest[before - 1] >= token:
                verdict.out_of_order += 1
            times.append(answered)
            highest.append(max(token, highest[-1] if highest else 0))
        ends = 0.0
        for answered, _, until, _ in told:
            verdict.overlaps += answered < ends
            ends = max(ends, until)
        words = (folder / f"resource-{name}").read_text().split()
        verdict.lost_updates += int(words[3]) - int(words[2])
    return verdict


class Trial:
    """Five servers, two of them behind a proxy, and everything that can happen to them.

    `pause`: for how long a client does nothing between two locks.
    """

    def __init__(self, folder: Path, seed: int, *, step_clocks: bool, pause: float = 0.0) -> None:
        self.pause = pause
        self.folder = folder
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.step_clocks = step_clocks
        self.servers = Servers(folder / "servers", 5, *OPTIONS)
        self.clocks: list[Clock] = []
        if step_clocks:
            built = library(folder / "clock")
            if built is not None:
                for number, server in enumerate(self.servers.nodes):
                    clock = Clock(built, folder / "clock" / f"offset-{number}")
                    server.env = clock.env
                    self.clocks.append(clock)
        else:
            even = steady_clock(folder / "clock")
            for server in self.servers.nodes:
                server.env = even
        self.servers.start()
        self.proxies = {0: Proxy(self.servers[0].port), 3: Proxy(self.servers[3].port)}
        ports = [
            self.proxies[number].port if number in self.proxies else node.port
            for number, node in enumerate(self.servers.nodes)
        ]
        self.url = "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        # The operator's own list is the clients': the addresses are the members' names.
        self.nodes = understand(self.url, "blocking").nodes
        cluster.init(self.nodes, longest=LONGEST).act()
        self._mending: threading.Thread | None = None

    def run(self, seconds: float, clients: int) -> Verdict:
        """Let the clients run so long, with a fault every now and then."""
        logs = self.folder / "logs"
        logs.mkdir()
        processes = [
            subprocess.Popen(
                [
                    sys.executable, "-m", "tests.redlock.live_client", self.url, str(logs), str(number), str(seconds),
                    str(self.pause),
                ],
                cwd=Path(__file__).parent.parent.parent,
            )
            for number in range(clients)
        ]  # fmt: skip
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end - 3:
                time.sleep(self.random.uniform(0.1, 0.6))
                self.fault()
            self._mended()
            for process in processes:
                process.wait(120)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        assert [process.returncode for process in processes] == [0] * clients
        verdict = judge(logs)
        verdict.faults = self.faults
        return verdict

    def fault(self) -> None:
        """Something happens to one server; what destroys memory happens to one at a time."""
        node = self.random.randrange(5)
        kinds = ["freeze", "cut", "cut one way"]
        if self._mending is None or not self._mending.is_alive():
            kinds += ["restart", "wipe", "rollback"] * 2
        if self.clocks:
            kinds += ["clock"] * 3
        kind = self.random.choice(kinds)
        self.faults[kind] += 1
        if kind == "freeze":
            server = self.servers[node]
            with contextlib.suppress(ProcessLookupError, AssertionError):
                server.freeze()
                time.sleep(self.random.uniform(0.05, 1.0))
                server.thaw()
        elif kind == "clock":
            self.clocks[node].step(self.random.choice((0.0, self.random.uniform(-5, 5))))
        elif kind.startswith("cut"):
            proxy = self.proxies[self.random.choice((0, 3))]
            proxy.black_hole() if kind == "cut" else proxy.lose_answers()
            time.sleep(self.random.uniform(0.05, 0.8))
            proxy.heal()
        else:
            self._mending = threading.Thread(target=self._destroy, args=(node, kind))
            self._mending.start()
            if self.random.random() < 0.5:
                self._mending.join()

    def _destroy(self, node: int, kind: str) -> None:
        server = self.servers[node]
        data, copy = server.folder / "appendonlydir", server.folder / "copy"
        if kind == "rollback":
            shutil.rmtree(copy, ignore_errors=True)
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(data, copy)
            time.sleep(self.random.uniform(0.1, 1.0))
        server.kill()
        if kind != "restart":
            shutil.rmtree(data, ignore_errors=True)
        if kind == "rollback" and copy.exists():
            shutil.copytree(copy, data)
        time.sleep(self.random.uniform(0.0, 0.3))
        server.start()
        self._until_it_serves(node)

    def _until_it_serves(self, node: int) -> None:
        until = time.monotonic() + 60
        label = self.nodes[node].label
        while time.monotonic() < until:
            try:
                (now,) = cluster.status([self.nodes[node]])
                if now.state == "serving":
                    return
                if now.state in ("empty", "forgot"):
                    cluster.replace(self.nodes, label).act()
            except (LocklineError, *TROUBLE):
                pass
            time.sleep(0.1)

    def _mended(self) -> None:
        if self._mending is not None:
            self._mending.join(120)
        for proxy in self.proxies.values():
            proxy.heal()

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()
        self.servers.stop()


def trial(seconds: float, seed: int, *, step_clocks: bool = False, clients: int = 8, pause: float = 0.0) -> Verdict:
    """One trial with random faults."""
    with a_folder("redlock-live") as folder:
        made = Trial(folder, seed, step_clocks=step_clocks, pause=pause)
        try:
            return made.run(seconds, clients)
        finally:
            made.close()


class Directed:
    """Ann and Bob, each with proxies of their own to three servers: the next majority is forced onto the server that came back and
    the one that lagged behind."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.servers = Servers(folder, 3, *OPTIONS).start()
        self.proxies = {who: [Proxy(node.port) for node in self.servers.nodes] for who in ("ann", "bob")}
        self.nodes = understand(self.servers.url, "blocking").nodes
        cluster.init(self.nodes, longest=LONGEST).act()
        self.tokens: list[int] = []
        self.verdict = Verdict()

    def _client(self, who: str) -> Any:
        url = "redlock://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies[who])
        client = lockline.connect(url, node_timeout=2.0)
        # No help from clocks.
        client._engine.backend.channel.wall = lambda: 0  # type: ignore[attr-defined]
        return client

    def _grant(self, client: Any, timeout: float = 60.0) -> None:
        until = time.monotonic() + timeout
        while True:
            try:
                lease = client.lock("x", ttl=LONGEST).acquire(timeout=timeout)
                break
            except lockline.BackendUnavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
        self.verdict.grants += 1
        self.verdict.twice += lease.token in self.tokens
        self.verdict.out_of_order += bool(self.tokens) and lease.token <= self.tokens[-1]
        self.tokens.append(lease.token)
        # A short one may be over by now on a busy machine; its number is what counts.
        with contextlib.suppress(lockline.LeaseLost):
            lease.release()

    def play(self, kind: str) -> None:
        """One round."""
        lagging, forgetful, witness = self.random.sample(range(3), 3)
        self.verdict.faults[f"directed {kind}"] += 1
        with self._client("ann") as ann, self._client("bob") as bob:
            for _ in range(3):
                self._grant(ann)
            server = self.servers[forgetful]
            data, copy = server.folder / "appendonlydir", server.folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            # What everysec has not written yet is in the copy's past: a little older than the grants that follow.
            shutil.copytree(data, copy)
            self.proxies["ann"][lagging].refuse()
            self.proxies["bob"][witness].refuse()
            for _ in range(5):
                self._grant(ann)
            server.kill()
            shutil.rmtree(data)
            if kind == "rollback":
                shutil.copytree(copy, data)
            server.start()
            if kind == "wipe":
                threading.Thread(target=cluster.replace(self.nodes, self.nodes[forgetful].label).act).start()
            self._grant(bob)
            for who in self.proxies:
                for proxy in self.proxies[who]:
                    proxy.heal()
            self._grant(ann)

    def close(self) -> None:
        for made in self.proxies.values():
            for proxy in made:
                proxy.close()
        self.servers.stop()


def directed(rounds: int, seed: int) -> Verdict:
    """Rounds of wiping and of rolling back, in turn."""
    with a_folder("redlock-directed") as folder:
        made = Directed(folder, seed)
        try:
            for number in range(rounds):
                made.play(("wipe", "rollback")[number % 2])
            return made.verdict
        finally:
            made.close()
