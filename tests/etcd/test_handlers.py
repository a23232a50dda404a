"""A signal handler on top of the thread that reads the client's one connection for all."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

import lockline
from lockline.runtime import clock

from .conftest import backend_of

pytestmark = pytest.mark.server


def test_a_handler_on_top_of_the_one_who_reads_takes_a_lock_of_its_own(
    url: str, client_of: Callable[..., lockline.Client]
) -> None:
    client, other = client_of(url), client_of(url)
    held = other.lock("x", ttl=60).acquire()
    done: list[int] = []

    def handle(number: int, frame: object) -> None:
        with client.lock("free", ttl=60) as lease:
            done.append(lease.token)

    def sits_there() -> bool:
        # It waits in its read, and has read all that came: struck in the middle of a request, it could not begin another.
        link = backend_of(client)._channel.link
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        reads = frame.f_code.co_name == "_read" and frame.f_code.co_filename.endswith("connection_blocking.py")
        return link is not None and reads and len(other.inspect("x").waiters) == 1 and clock.now() - link.heard > 0.1

    def call_it() -> None:
        until = time.monotonic() + 60
        while not sits_there() and time.monotonic() < until:
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        while not done and time.monotonic() < until:
            time.sleep(0.01)
        held.release()

    before = signal.signal(signal.SIGALRM, handle)
    calling = threading.Thread(target=call_it)
    try:
        calling.start()
        client.lock("x", ttl=60).acquire(timeout=120).release()
    finally:
        calling.join()
        signal.signal(signal.SIGALRM, before)
    assert len(done) == 1
