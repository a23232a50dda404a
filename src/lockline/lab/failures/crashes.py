"""A client dies, lingers, stands still, or lets go of what is not its own."""

from __future__ import annotations

import time

from ..servers.process import wait_for
from ..stage import Stage
from .face import Failure
from .schedule import collide, come_to_rest, contest, finish, holder, must_get


def crash(stage: Stage) -> None:
    b, a = stage.client("B"), holder(stage)
    a.kill()
    if must_get(stage, b, time.monotonic()):
        finish(stage, b)


HOLDER_CRASHES = Failure(
    "holder-crashes", "holder crashes", "A holds the lock and is killed; B asks.", crash,
    {
        "stuck for ever": "The holder was killed and nothing ends its hold: {stuck}. Everybody else waits for ever.",
        "late": "The holder was killed; its hold ran out after {late}, and then the next one came in.",
        "safe": "The holder's end was noticed at once, and the next one came in.",
    },
    "No lock without an expiry, set in the same step that takes it; a store that watches the process itself tells at once.",
    "docs/road.md#1-setnx-who-sets-the-key-has-the-lock",
)  # fmt: skip


def crash_between(stage: Stage) -> None:
    a, b = stage.client("A"), stage.client("B")
    if stage.lock.crash_at:
        a.stop_at(stage.lock.crash_at)
        a.begin("acquire", 5.0)
        a.reaches(stage.lock.crash_at)
    elif a.lines:
        # In one step: so between the request and its reply.
        a.do("warm_up")
        come_to_rest(a.lines)
        for line in a.lines:
            line.mute()
        a.begin("acquire", 5.0)
        # A majority has done it, where there are several: fewer would hold nothing.
        most = len(a.lines) // 2 + 1
        wait_for(lambda: sum(line.lost > 0 for line in a.lines) >= most, what="a majority that has done it")
    else:
        a.do("acquire", 5.0)
    a.kill()
    if must_get(stage, b, time.monotonic()):
        finish(stage, b)


CRASH_BETWEEN = Failure(
    "crash-between-steps", "crash between two steps", "A is killed between two steps of its acquire; B asks.", crash_between,
    {
        "stuck for ever": "The client died when the lock was taken and had no expiry yet: {stuck}. Two steps are not one.",
        "late": "The client died before it knew that it had the lock. Its hold ran out after {late}.",
        "safe": "The client died in the middle of its acquire, and nothing was left that others would have to wait for.",
    },
    "Take the lock and set its expiry in one step on the server.", "docs/road.md#2-setnx-then-expire",
)  # fmt: skip


def outlive(stage: Stage) -> None:
    b, a = stage.client("B"), holder(stage)
    contest(stage, a, b, wait=2.2 * stage.ttl)


WORK_OUTLIVES = Failure(
    "work-outlives-ttl", "work longer than the ttl", "A works for two ttls, awake; B asks meanwhile.", outlive,
    {
        "lost update": "The hold ran out while its owner was still at work, and the next one came in. Both wrote what they had in mind, one on top of the other.",
        "two holders": "The hold ran out while its owner was still at work, and the next one came in.",
        "safe": "The second came in only when the first had let go, or the first knew that its time was over and did not write.",
        "late": "The second was let in {late} late.",
    },
    "Renew while the holder lives, and let the holder see its own deadline.", "docs/road.md#5-the-work-takes-longer-than-the-ttl",
)  # fmt: skip


def foreign(stage: Stage) -> None:
    b, c = stage.client("B"), stage.client("C")
    if not (stage.lock.expires or stage.lock.session) or stage.lock.id == "advisory":
        # Nothing runs out here: so one who was refused runs the `finally` of its block.
        a = holder(stage)
        b.do("ask_once")
        b.do("release")
        if collide(stage, a, c, wait=0.5):
            c.do("release")
        a.do("release")
        return
    a = holder(stage)
    a.do("write")
    if stage.lock.release_at:
        a.stop_at(stage.lock.release_at)
        a.begin("release")
        a.reaches(stage.lock.release_at)
    else:
        stage.trace.add("A", "letting go", "its work is done")
    a.freeze()
    got = b.do("acquire", 3 * stage.ttl)
    if not got:
        # Those who ask keep the first one's time from running out. So the one who was refused runs the `finally` of its block.
        b.do("release")
        if not b.do("acquire", 0.3):
            return
    b.do("read")
    a.wake()
    if stage.lock.release_at:
        a.go_on()
        a.finish()
    else:
        a.do("release")
    if c.do("acquire", 0.3 * stage.ttl):
        c.do("read")
        b.do("write")
        c.do("write")
        c.do("release")
    else:
        b.do("write")
    b.do("release")


FOREIGN_RELEASE = Failure(
    "foreign-release", "foreign release", "A lets go after its time is over, when the lock is B's; C asks.", foreign,
    {
        "lost update": "A release removed what was another's by then, and a third came in beside the holder. One of the two updates is gone.",
        "two holders": "A release removed what was another's by then, and a third came in beside the holder.",
        "safe": "The late release found that the lock was not its own any more and removed nothing.",
    },
    "The release compares the owner and removes in one step on the server.", "docs/road.md#4-an-owners-value-look-then-delete",
)  # fmt: skip


def frozen(stage: Stage) -> None:
    b, a = stage.client("B"), holder(stage)
    a.do("check")
    a.freeze()
    began = time.monotonic()
    if b.do("acquire", 2.6 * stage.ttl):
        b.do("read")
        b.do("write")
        a.wake()
        a.do("write")  # it looked before, and cannot know how long ago that was
        b.do("release")
        a.do("release")
        return
    a.wake()
    a.do("write")
    a.do("release")
    must_get(stage, b, began)
    finish(stage, b)


FROZEN = Failure(
    "frozen", "frozen between check and write", "A checks its lock, is stopped (SIGSTOP), and writes when it wakes; B came meanwhile.", frozen,
    {
        "lost update": "The holder looked at its lock, was stopped, and wrote when it woke; its hold had run out and another had written since. No lock can help here, whatever it is made of.",
        "late": "Nothing ends this hold by time, so the next one waited as long as the holder slept: {late}.",
        "safe": "The late write came with an old token, and the resource refused it.",
    },
    "A fencing token, checked at the resource.", "docs/fencing.md",
)  # fmt: skip


ALL = [HOLDER_CRASHES, CRASH_BETWEEN, WORK_OUTLIVES, FOREIGN_RELEASE, FROZEN]
