"""One hot lock in one process: how often it changes hands, near the server and one millisecond away.

    python bench/hot.py                         # this version alone
    python bench/hot.py --baseline ../old/src   # side by side with another source tree

Far is behind a proxy, in a process of its own, that holds back whatever passes for half a millisecond, each way. Every run asserts,
by the tickets and the times of all grants, that nobody was inside together and that all came in the order of their arrival; in
the rows with a stranger, one thread of a second process stands in the same line. The server's part is what it counts itself: script
calls and the microseconds in them, for each grant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from report import Report, jain

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

if TYPE_CHECKING:
    from tests.servers.redis import RedisServer

NAME = "hot"
EACH_WAY = 0.0005


class Grant(NamedTuple):
    """One hold, on the clock that all processes of a machine share."""

    token: int
    got: float
    left: float
    who: int


# -- the proxy -----------------------------------------------------------------------------------------


def delay(server_port: int, each_way: float) -> None:
    """Pass everything on after that long, in one loop: `select` keeps microseconds, where epoll rounds up to milliseconds."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    partner: dict[socket.socket, socket.socket] = {}
    late: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        wait = None if not late else max(0.0, late[0][0] - time.monotonic())
        for ready in select.select([listener, *partner], [], [], wait)[0]:
            if ready is listener:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", server_port))
                partner[client], partner[server] = server, client
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                continue
            try:
                data = ready.recv(1 << 16)
            except ConnectionError:
                data = b""
            if data:
                late.append((time.monotonic() + each_way, partner[ready], data))
            else:
                partner.pop(ready).close()
                partner = {end: other for end, other in partner.items() if other is not ready}
        now = time.monotonic()
        while late and late[0][0] <= now:
            _, end, data = late.popleft()
            try:
                end.sendall(data)
            except OSError:
                pass  # gone meanwhile


# -- who takes part ------------------------------------------------------------------------------------


def take_part(flavour: str, many: int, port: int, seconds: float) -> None:
    """Lock and unlock with that many tasks or threads; tell all grants."""
    grants = asyncio.run(tasks(many, port, seconds)) if flavour == "tasks" else threads(many, port, seconds)
    json.dump(grants, sys.stdout)


def wait_for_start() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


async def tasks(many: int, port: int, seconds: float) -> list[Grant]:
    from lockline import aio

    grants: list[Grant] = []

    async def one(client: aio.Client, number: int, end: float) -> None:
        lock = client.lock(NAME)
        while time.monotonic() < end:
            async with lock as lease:
                got = time.monotonic()
                token = lease.token
                grants.append(Grant(token, got, time.monotonic(), number))

    async with aio.connect(f"redis://127.0.0.1:{port}") as client:
        async with client.lock("warm"):
            pass
        wait_for_start()
        end = time.monotonic() + seconds
        await asyncio.gather(*(one(client, number, end) for number in range(many)))
    return grants


def threads(many: int, port: int, seconds: float) -> list[Grant]:
    import lockline

    grants: list[Grant] = []

    def one(client: lockline.Client, number: int, end: float) -> None:
        lock = client.lock(NAME)
        while time.monotonic() < end:
            with lock as lease:
                got = time.monotonic()
                token = lease.token
                grants.append(Grant(token, got, time.monotonic(), number))

    with lockline.connect(f"redis://127.0.0.1:{port}") as client:
        with client.lock("warm"):
            pass
        wait_for_start()
        end = time.monotonic() + seconds
        crowd = [threading.Thread(target=one, args=(client, number, end)) for number in range(many)]
        for each in crowd:
            each.start()
        for each in crowd:
            each.join()
    return grants


def start(source: Path | None, *words: object) -> subprocess.Popen[str]:
    """This file in a process of its own, on the lockline of that source tree."""
    path = os.pathsep.join([*([str(source)] if source else []), str(HERE.parent)])
    return subprocess.Popen(
        [sys.executable, str(HERE), *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def measure(
    source: Path, flavour: str, many: int, port: int, seconds: float, stranger: bool, server: RedisServer
) -> dict[str, Any]:
    """One crowd's grants per second, and the server's part; AssertionError if the order or the exclusion was broken."""
    members = [start(source, "take-part", flavour, many, port, seconds)]
    if stranger:
        members.append(start(source, "take-part", "threads", 1, port, seconds))
    for member in members:
        assert member.stdout is not None
        assert member.stdout.readline() == "ready\n"
    server.command("CONFIG", "RESETSTAT")
    for member in members:
        assert member.stdin is not None
        member.stdin.write("go\n")
        member.stdin.flush()
    told = [[Grant(*grant) for grant in json.loads(member.communicate(timeout=seconds + 60)[0])] for member in members]
    line = sorted((grant for grants in told for grant in grants), key=lambda grant: grant.got)
    for before, after in pairwise(line):
        assert before.left <= after.got, f"inside together: {before} and {after}"
        assert before.token < after.token, f"out of order: {before} and then {after}"
    crowd = told[0]
    shares = [sum(grant.who == number for grant in crowd) for number in range(many)]
    took = crowd[-1].left - crowd[0].got
    stats = server.command("INFO", "commandstats")
    calls = [stats[name] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in stats]
    return {
        "grants_per_s": len(crowd) / took,
        "jain": jain(shares),
        "stranger_per_s": len(told[-1]) / took * stranger,
        "calls": sum(each["calls"] for each in calls) / len(line),
        "server_us": sum(each["usec"] for each in calls) / len(line),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, help="the src folder of another version, to be measured side by side")
    parser.add_argument("--only", nargs="*", default=["tasks", "threads"], help="tasks, threads or both")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()

    from tests.servers.redis import RedisServer

    versions = {"this version": HERE.parents[1] / "src"}
    if options.baseline:
        versions = {"baseline": options.baseline.resolve(), **versions}
    report = Report("hot", {"lockline": version("lockline"), "redis": version("redis")})
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        server.start()
        proxy = start(None, "delay", server.port, EACH_WAY)
        try:
            assert proxy.stdout is not None
            far = int(proxy.stdout.readline())
            rows = []
            for where, port, flavour, many, stranger in (
                ("1 ms away", far, "tasks", 32, False),
                ("1 ms away", far, "tasks", 32, True),
                ("1 ms away", far, "threads", 32, False),
                ("1 ms away", far, "threads", 32, True),
                ("near", server.port, "threads", 32, False),
                ("near", server.port, "tasks", 100, False),
                ("near", server.port, "tasks", 100, True),
            ):
                if flavour not in options.only:
                    continue
                best: dict[str, dict[str, Any]] = {}
                # Turn by turn, so that all meet the same machine.
                for _ in range(options.rounds):
                    for each, source in versions.items():
                        got = measure(source, flavour, many, port, options.seconds, stranger, server)
                        best[each] = max(got, best.get(each, got), key=lambda row: row["grants_per_s"])
                for each, row in best.items():
                    times = row["grants_per_s"] / best[next(iter(best))]["grants_per_s"]
                    what = {"server": where, "who": f"{many} {flavour}{' and a stranger' if stranger else ''}"}
                    rows.append({**what, "version": each, **row, "times": times})
            report.table("one hot lock, in order of arrival", rows)
        finally:
            proxy.kill()
            server.stop()
    report.write()


if __name__ == "__main__":
    if sys.argv[1:2] == ["delay"]:
        delay(int(sys.argv[2]), float(sys.argv[3]))
    elif sys.argv[1:2] == ["take-part"]:
        take_part(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    else:
        main()
