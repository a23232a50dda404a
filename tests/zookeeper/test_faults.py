"""Many processes on one lock while an ensemble of three is killed, cut and frozen: one holder at a time, and it goes on."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline.runtime.clock import now

from ..calm import calm
from ..servers.process import wait_for
from ..servers.zookeeper import Ensemble, ZooKeeper
from ..tier import sample
from .network import Network

pytestmark = [pytest.mark.server, pytest.mark.slow]

WORKERS = sample(3, 16)
ENOUGH = sample(80, 200)
AGAIN = 120.0
"""Seconds after which a lock that was not granted again counts as stuck; an election and a session take two or three."""


class Crowd:
    """The processes and what they said."""

    def __init__(self, url: str, folder: Path, network: Network) -> None:
        self.register = folder / "register"
        self.register.write_text("")
        self._enough = folder / "enough"
        self._said = [folder / f"worker{number}.jsonl" for number in range(WORKERS)]
        root = Path(__file__).parent.parent.parent
        self.processes = []
        for number, file in enumerate(self._said):
            # The last one sits in a namespace of its own, to be cut off.
            before = network.inside(3) if number == WORKERS - 1 else ()
            with open(file, "wb") as out:
                self.processes.append(
                    subprocess.Popen(
                        [
                            *before, sys.executable, "-m", "tests.zookeeper.fault_worker", url, str(self.register),
                            str(self._enough), str(number),
                        ],
                        cwd=root, stdout=out,
                    )
                )  # fmt: skip

    def said(self) -> list[dict[str, Any]]:
        """Every line of every worker that is complete."""
        lines: list[dict[str, Any]] = []
        for number, file in enumerate(self._said):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    lines.append({"worker": number, **json.loads(line)})
        return lines

    def holds(self) -> list[dict[str, Any]]:
        """Who held when, in order of time."""
        return sorted((line for line in self.said() if "token" in line), key=lambda line: line["from"])

    def wait_for_a_grant_after(self, moment: float, what: str) -> float:
        """How long after that moment somebody held again."""
        until = calm() + AGAIN
        while calm() < until:
            later = [line["from"] for line in self.holds() if line["from"] > moment]
            if later:
                return float(min(later) - moment)
            time.sleep(0.1)
        raise AssertionError(f"nobody held again after {what}")

    def finish(self) -> None:
        """Everybody comes to the end of what it is at, once there is enough to judge by."""
        wait_for(self._have_held, AGAIN, "a hold of every worker, and enough in all")
        self._enough.touch()
        for process in self.processes:
            process.wait(60)

    def _have_held(self) -> bool:
        holds = self.holds()
        return len(holds) > ENOUGH and {line["worker"] for line in holds} == set(range(WORKERS))

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)


def test_one_holder_at_a_time_through_every_fault(tmp_path: Path, network: Network, ensemble: Ensemble) -> None:
    """Longer than 5 s: there are four faults or seven, each with an election or a session that ends."""
    crowd = Crowd(f"{ensemble.url}/faults", tmp_path, network)
    try:
        crowd.wait_for_a_grant_after(0.0, "the start")
        gaps = {what: fault(crowd, what, act) for what, act in faults(ensemble, network, crowd)}
        crowd.finish()
        history(crowd, gaps)
    finally:
        crowd.stop()


def faults(
    ensemble: Ensemble, network: Network, crowd: Crowd
) -> Iterator[tuple[str, Callable[[], Callable[[], None]]]]:
    """Each fault as something to do, which returns how to undo it."""

    def kill(server: ZooKeeper) -> Callable[[], None]:
        server.kill()

        def undo() -> None:
            server.start()

        return undo

    def leader() -> ZooKeeper:
        wait_for(lambda: ensemble.leader is not None, 60, "a leader")
        found = ensemble.leader
        assert found is not None
        return found

    def cut(member: int) -> Callable[[], None]:
        network.cut(member)
        return lambda: network.heal(member)

    def freeze(worker: int) -> Callable[[], None]:
        os.kill(crowd.processes[worker].pid, signal.SIGSTOP)
        return lambda: os.kill(crowd.processes[worker].pid, signal.SIGCONT)

    # The death of the leader is the worst of them.
    for number, server in enumerate(ensemble.servers[: sample(0, 3)], 1):
        yield f"server {number} killed", partial(kill, server)
    yield "the leader killed", lambda: kill(leader())
    yield "the leader cut off", lambda: cut(ensemble.servers.index(leader()))
    yield "a client cut off", lambda: cut(3)
    yield "a client frozen", lambda: freeze(0)


def fault(crowd: Crowd, what: str, act: Callable[[], Callable[[], None]]) -> float:
    undo = act()
    moment = now()
    try:
        gap = crowd.wait_for_a_grant_after(moment + 0.05, what)
        if "killed" not in what:
            # Long enough for a session of two seconds to end.
            time.sleep(max(0.0, 3.0 - gap))
    finally:
        undo()
    crowd.wait_for_a_grant_after(now(), f"{what}, and undone")
    return gap


def history(crowd: Crowd, gaps: dict[str, float]) -> None:
    """One holder at a time, in the order of tokens, and a register whose tokens never went down."""
    holds = crowd.holds()
    print(f"{len(holds)} holds; again after: " + ", ".join(f"{what} {gap:.1f} s" for what, gap in gaps.items()))
    for before, after in itertools.pairwise(holds):
        assert before["to"] <= after["from"], f"two holders at once: {before} and {after}"
        assert before["token"] < after["token"], f"a token that went down: {before} and {after}"
    tokens = [int(word) for word in crowd.register.read_text().split()]
    assert tokens == sorted(tokens)


HOLDER = """
import sys, threading, time, lockline
from lockline.runtime.clock import now
client = lockline.connect(sys.argv[1])
lease = client.lock("x", ttl=5).acquire(timeout=60)
print("held", lease.token, flush=True)

def write():
    # Until the last moment: the answers are as fresh as they can be when the server is cut off.
    while lease.valid:
        try:
            client.lock("busy", ttl=2).acquire(timeout=1).release()
        except lockline.LocklineError:
            pass

threading.Thread(target=write, daemon=True).start()
trusted = 0.0
while True:
    moment = now()
    if not lease.valid:
        break
    trusted = moment
    time.sleep(0.001)
print("trusted until", trusted, flush=True)
time.sleep(60)
"""


def test_a_holder_that_is_cut_off_together_with_its_server_knows_before_the_next_one_holds(
    network: Network, ensemble: Ensemble
) -> None:
    """The server on the wrong side of the cut still answers reads and pings; none of that may count.

    Longer than 5 s: a session of two seconds ends.
    """
    for _ in range(sample(1, 3)):
        member = next(n for n, server in enumerate(ensemble.servers) if server.mode == "follower")
        with (
            lockline.connect(f"{ensemble.url}/cut") as other,
            subprocess.Popen(
                [*network.inside(member), sys.executable, "-c", HOLDER, f"{ensemble.servers[member].url}/cut"],
                stdout=subprocess.PIPE, text=True,
            ) as holder,
        ):  # fmt: skip
            assert holder.stdout is not None
            try:
                token = int(holder.stdout.readline().split()[1])
                # Its session was confirmed more than once by then; that it is trusted too long is looked for at any moment.
                time.sleep(1.5)
                network.cut(member)
                lease = other.lock("x", ttl=60).acquire(timeout=AGAIN)
                granted = now()
                trusted = float(holder.stdout.readline().split()[-1])
            finally:
                network.heal(member)
                holder.kill()
            assert trusted < granted
            assert lease.token > token
            lease.release()
        ensemble.servers[member].wait_ready()


def test_the_doctor_sees_the_ensemble_and_who_is_down(ensemble: Ensemble) -> None:
    with lockline.connect(ensemble.url) as client:
        texts = [f"{finding.level}: {finding.text}" for finding in client.examine()]
        assert any("ok: an ensemble of 3; 2 make a majority, 1 may fail" in text for text in texts)
        assert any("ok: the leader is" in text for text in texts)
        victim = next(server for server in ensemble.servers if server.mode == "follower")
        victim.kill()
        try:
            texts = [f"{finding.level}: {finding.text}" for finding in client.examine()]
            assert any(f"error: {victim.host}:{victim.port} does not answer" in text for text in texts)
            client.lock("x").acquire(timeout=60).release()
        finally:
            victim.start()
