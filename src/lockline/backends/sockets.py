"""What can be seen of a socket without asking the other end."""

from __future__ import annotations

import select
from typing import Final

CLOSED: Final = getattr(select, "POLLRDHUP", 0)
"""What `poll` calls a connection that the server has closed, where it has a word for it."""


def was_closed(fd: int) -> bool:
    """Whether the other end has closed it: what is not sent then, was surely not received."""
    if fd < 0:
        # And so has this end: a loop does that by itself when it hears of a reset.
        return True
    poll = select.poll()
    poll.register(fd, CLOSED)
    return bool(poll.poll(0))
