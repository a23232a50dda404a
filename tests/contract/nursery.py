"""Where the other processes of the contract come from: one that has imported everything already and forks itself, in milliseconds.

It has no client and never had one: what it forks has inherited nothing but the imported code.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

MOST = 1 << 17


@cache
def _nursery() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The end at which it takes orders: with the last one who has that, it ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.nursery", str(theirs.fileno())],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ours, process


def fork_elsewhere(flavour: str, target: str, options: dict[str, Any], story: str = "") -> tuple[int, socket.socket]:
    """A new process that obeys, or tells that story of a fork: its pid, and the line to it."""
    orders, _ = _nursery()
    ours, theirs = socket.socketpair()
    with theirs:
        order = json.dumps([flavour, target, options, story, dict(os.environ)])
        socket.send_fds(orders, [order.encode()], [theirs.fileno()])
        return int(orders.recv(100)), ours


def _import_everything() -> None:
    from lockline import backends

    for each in pkgutil.walk_packages(backends.__path__, f"{backends.__name__}."):
        try:
            importlib.import_module(each.name)
        except ImportError:
            pass  # the client library of a system that is not there


def main() -> None:
    """The life of the nursery."""
    from . import fork_stories, other_process

    _import_everything()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    orders = socket.socket(fileno=int(sys.argv[1]))
    while True:
        order, files, _, _ = socket.recv_fds(orders, MOST, 1)
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            flavour, target, options, story, environment = json.loads(order)
            os.environ.clear()
            os.environ.update(environment)
            # What was installed since: a store that comes in a package of its own.
            sys.path[:0] = [
                path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path
            ]
            with socket.socket(fileno=files[0]) as line:
                if story:
                    fork_stories.tell(flavour, target, options, story, line)
                else:
                    other_process.obey(flavour, target, options, line)
            return
        os.close(files[0])
        orders.send(str(pid).encode())


if __name__ == "__main__":
    main()
