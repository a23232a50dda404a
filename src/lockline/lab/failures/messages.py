"""Messages that come late or not at all."""

from __future__ import annotations

import time

from ..locks.face import PublishedLock
from ..servers.process import wait_for
from ..stage import Stage
from .face import Failure
from .schedule import WHOLE, come_to_rest, finish, must_get


def late_request(stage: Stage) -> None:
    a, b = stage.client("A", patience=min(0.15 * stage.ttl, 4.0)), stage.client("B")
    a.do("warm_up")
    b.do("warm_up")
    for line in a.lines:
        line.strand()
    a.do("ask_once")  # no answer: it goes away
    if not b.do("acquire", 3 * stage.ttl):
        raise RuntimeError("B did not get a lock that nobody had")
    finish(stage, b)
    for line in a.lines:
        line.deliver()
    stage.trace.add("A", "note", "its request of a while ago arrives now")
    # It is there, and done, before the next one asks: its server has said something to it, or hung up.
    wait_for(lambda: not any(line.unanswered for line in a.lines), what="the server's answer to what came late")
    # Where the expiry is in the request itself, its time began when it was sent.
    if must_get(stage, b, time.monotonic(), late=0.3):
        finish(stage, b)


def has_a_line(lock: type[PublishedLock]) -> str:
    return "there is no network" if lock.family == "local" else ""


LATE_REQUEST = Failure(
    "late-request", "the request arrives late", "A's request hangs in the network; A gives up; then it arrives.", late_request,
    {
        "stuck for ever": "The request arrived when nobody waited for its answer any more, and took the lock for nobody: {stuck}.",
        "late": "The request arrived when nobody waited for its answer any more, and took the lock for nobody. The next one waited {late}.",
        "safe": "The request that came late changed nothing: its claim was withdrawn, or its session was over.",
        "lost update": "The request that came late let two in.",
    },
    "A claim with an id, withdrawn by that id: the store remembers the withdrawal for longer than a packet can travel.", "docs/guarantees.md",
    applies=has_a_line, ttl=4.0,
)  # fmt: skip


def lost_reply(stage: Stage) -> None:
    a = stage.client("A")
    a.do("warm_up")
    come_to_rest(a.lines)
    for line in a.lines[: len(a.lines) // 2 + 1]:
        # In Lockline's statements to a database the name is no plain text; there the next request is the one.
        line.drop_reply(
            b"" if stage.lock.id.startswith(("lockline-postgresql", "lockline-mysql")) else stage.name.encode()
        )
    if must_get(stage, a, time.monotonic(), late=WHOLE):
        finish(stage, a)
    if not any(line.lost for line in a.lines):
        raise RuntimeError("no reply was lost")


LOST_REPLY = Failure(
    "lost-reply", "the reply is lost, the client repeats", "A's request is done, its answer is lost; A asks again.", lost_reply,
    {
        "stuck for ever": "The lock was taken, nobody knows it, and the repeat is refused by the client's own hold: {stuck}.",
        "late": "The lock was taken, nobody knew it, and the repeat was refused by the client's own hold. It ran out after {late}.",
        "safe": "The repeat did the same thing once more, or the first request had ended with its connection.",
    },
    "A claim with an id: a repeat finds its own claim and is told that it holds.", "docs/guarantees.md", applies=has_a_line,
)  # fmt: skip

ALL = [LATE_REQUEST, LOST_REPLY]
