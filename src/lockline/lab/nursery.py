"""Where clients come from: a process that has imported everything already and forks itself, in milliseconds.

Not multiprocessing's fork server: that one imports the main module of the program again, whatever that does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

ARGUMENT = 3
"""The descriptor on which the nursery takes its orders."""
MOST = 1 << 16


class Nursery:
    """Starts clients; when it is closed, or its owner dies, they die too."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._mutex = threading.Lock()
        with theirs:
            program = (
                f"import os; os.dup2({theirs.fileno()}, {ARGUMENT}); {ARGUMENT} == {theirs.fileno()} or os.close({theirs.fileno()}); "
                "from lockline.lab.nursery import main; main()"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(self, part: Any) -> tuple[int, Connection]:
        """A new client: its pid, and the line to it."""
        ours, theirs = socket.socketpair()
        with ours, theirs, self._mutex:
            pid = 0
            with contextlib.suppress(OSError):
                socket.send_fds(self._orders, [pickle.dumps(part)], [theirs.fileno()])
                pid = int(self._orders.recv(100) or b"0")
            if not pid:
                raise RuntimeError("the nursery of the laboratory is gone")
            return pid, Connection(os.dup(ours.fileno()))

    def close(self) -> None:
        """No client lives on."""
        # Whoever waits for an answer hears of it by this: the end of the nursery is not enough as long as a frozen client has the other end too.
        with contextlib.suppress(OSError):
            self._orders.shutdown(socket.SHUT_RDWR)
        self._orders.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)


def main() -> None:
    """The life of the nursery."""
    from . import preload  # noqa: F401
    from .actor import main as play

    # What locks and libraries warn of is what the schedules do to them: it belongs in the trace and not on the terminal.
    logging.getLogger().addHandler(logging.NullHandler())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    orders = socket.socket(fileno=ARGUMENT)
    while True:
        order, files, _, _ = socket.recv_fds(orders, MOST, 1)
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            play(pickle.loads(order), Connection(files[0]))
        os.close(files[0])
        with contextlib.suppress(OSError):
            orders.send(str(pid).encode())
