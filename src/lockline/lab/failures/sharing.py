"""One lock object in several hands: threads, tasks, a forked child, a pooled connection."""

from __future__ import annotations

from ..locks.face import PublishedLock
from ..stage import Stage
from .face import Failure
from .schedule import contest, finish, holder

LONG = 20.0
"""Seconds: here no hold is to run out, however slow the machine is."""
MOMENT = 0.5 / LONG
"""Of that ttl: one who would be let in is let in by then."""


def one_object(stage: Stage) -> None:
    a = holder(stage)
    for hand in ("thread 2", "task 2"):
        if a.do("acquire", MOMENT * stage.ttl, hand=hand):
            a.do("read", hand=hand)
            a.do("write")
            a.do("write", hand=hand)
            a.do("release", hand=hand)
            break
    else:
        a.do("write")
    a.do("release")
    b = stage.client("B")
    if b.do("acquire", 0.5 * stage.ttl):
        finish(stage, b)


ONE_OBJECT = Failure(
    "one-object", "two threads or tasks, one object", "Two threads, then two tasks, of one process ask through one lock object.", one_object,
    {
        "lost update": "The lock takes two threads or tasks of one process for one and the same. Both were inside, and one update is gone.",
        "two holders": "The lock takes two threads or tasks of one process for one and the same.",
        "safe": "The second thread, and the second task, had to wait like anybody else.",
    },
    "A hold belongs to the object that acquire returns, not to a thread, a connection or a process.", "docs/guarantees.md", ttl=LONG,
)  # fmt: skip


def fork(stage: Stage) -> None:
    b, a = stage.client("B"), holder(stage)
    a.do("fork_and_release")
    contest(stage, a, b, wait=2 * MOMENT * stage.ttl)


FORK = Failure(
    "fork", "fork", "A forks while it holds; the child leaves the block and lets go; B asks.", fork,
    {
        "lost update": "The child inherited the proof of ownership and let go of its parent's lock. The next one came in beside the parent, and both wrote.",
        "two holders": "The child inherited the proof of ownership and let go of its parent's lock.",
        "safe": "The child holds nothing, and its release changed nothing.",
    },
    "After a fork the child holds nothing.", "docs/guarantees.md", ttl=LONG,
)  # fmt: skip


def pooled(stage: Stage) -> None:
    b, a = stage.client("B"), holder(stage)
    contest(stage, a, b, wait=2 * MOMENT * stage.ttl)


def on_postgresql(lock: type[PublishedLock]) -> str:
    return "" if lock.family == "postgresql" else "there is no PgBouncer in front of it"


POOLED = Failure(
    "pooled-connection", "pooled connection (PgBouncer)", "A and B come through a pooler that lends both the same session in turn.", pooled,
    {
        "lost update": "The pooler lent both clients the same session, and the session has the lock already. Both were inside, and one update is gone.",
        "two holders": "The pooler lent both clients the same session, and the session has the lock already.",
        "safe": "Nothing is kept in the session: a row is a row, whoever's connection it came through.",
    },
    "Locks that are rows and not sessions; or a pool that lends a session for as long as the client lives.", "docs/backends/postgresql.md",
    # The one session behind the pooler keeps what a cell left in it.
    wants="pooler", disturbs=True, applies=on_postgresql, ttl=LONG,
)  # fmt: skip

ALL = [ONE_OBJECT, FORK, POOLED]
