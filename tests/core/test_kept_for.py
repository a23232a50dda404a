"""A name that is kept for a while after its release is kept for that long, and not for the ttl that its lease had: `memory:`, the reference."""

from __future__ import annotations

import secrets
import threading

import lockline


def test_a_name_is_free_when_its_time_is_over_and_not_a_ttl_later() -> None:
    """One who waits has planned to look when the ttl would have been over, which is in an hour. Longer than 5 s: so is the time."""
    with lockline.connect(f"memory:{secrets.token_hex(8)}") as client:
        lease = client.lock("x", ttl=3600, keep_for=6).acquire()
        waiting = threading.Thread(target=lambda: client.lock("x").acquire(timeout=60).release())
        waiting.start()
        lease.release()
        (kept,) = client.inspect("x").holders
        assert kept.remaining <= 6
        waiting.join(60)
        assert client.inspect("x").holders == ()
