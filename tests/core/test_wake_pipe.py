"""What gets a thread out of a poll gets it out of the very first one, too."""

from __future__ import annotations

import select

from lockline.runtime.wake_pipe import WakePipe


def ready(pipe: WakePipe) -> bool:
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_whoever_rings_before_anybody_has_polled_is_heard() -> None:
    """One who is about to sleep, and has looked whether there is a reason not to, makes the pipe only after that."""
    pipe = WakePipe()
    pipe.ring()
    assert ready(pipe)
    pipe.clear()
    assert not ready(pipe)


def test_nobody_is_woken_who_was_not_called() -> None:
    pipe = WakePipe()
    assert not ready(pipe)
    pipe.ring()
    assert ready(pipe)
