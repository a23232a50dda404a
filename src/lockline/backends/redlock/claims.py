"""What this client knows of its own claims: one object for each claim, for each try to get it, and for its end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Final, Literal, TypeVar

from ...core.claim import Claim
from ...errors import QuorumNotReached
from ...runtime import Runtime
from ...runtime.section import Inside
from . import rules
from .answers import parse_lease
from .commands import NodeAnswer, NodeFailure, Reply

T = TypeVar("T")

SPREAD = 0.001
"""Waiters that hear of one release try at random moments within this time; it grows while they meet half-way."""

FEW = 4.0
"""Answers' times within which those who hear of a release come, at most, where the last one came through."""
LOOK_EVERY = 2.0
"""How often a waiter tries although nothing was heard: the net under the hints."""


Fate = Literal["removed", "missing", "gone"]
"""Of a lease at a node that was asked to forget it. removed: it had it, and has it no more. missing: it had none when it was first
asked, because it had run out there or was evicted. gone: it has none now; an earlier request, whose answer did not come, may have
removed it."""
NEVER_DONE: Final = ("unreachable", "refused")
"""Failures of an acquire that show that the node has not done it, and will not."""


class Removal:
    """The end of one attempt, node by node, over every round in which it was asked for."""

    __slots__ = ("fates", "never", "repeated", "replies")

    def __init__(self) -> None:
        self.fates: dict[int, Fate] = {}
        """Of the lease at each node that has answered."""
        self.never: Collection[int] = ()
        """Nodes that never had it. Their word is not needed to know that too few have it; that it was removed they do not confirm."""
        self.replies: dict[int, Reply] = {}
        self.repeated: bool | None = None
        """Whether the nodes that have not answered yet were asked before the round that is under way; None before the first."""

    def begin(self, nodes: int) -> list[int]:
        """The nodes to be asked in a round that begins: those that have not answered in an earlier one."""
        if self.repeated is None:
            self.repeated = False
            return list(range(nodes))
        self.repeated = True
        return [node for node in range(nodes) if node not in self.fates]

    def hear(self, answer: NodeAnswer) -> None:
        """What a node answered, in time or late."""
        node, _, reply = answer
        self.replies[node] = reply
        if isinstance(reply, NodeFailure):
            return
        if reply[0] == b"yes":
            self.fates[node] = "removed"
        elif reply[0] == b"no":
            self.fates.setdefault(node, "gone" if self.repeated else "missing")

    def certain(self, nodes: int) -> bool | None:
        """Whether a majority held it, as soon as no other node's answer can change that; else None."""
        needed = rules.majority(nodes)
        fates = list(self.fates.values())
        if fates.count("removed") >= needed:
            return True
        if "missing" not in fates and not self.never:
            return None
        without = {node for node, fate in list(self.fates.items()) if fate == "missing"}.union(self.never)
        return False if len(without) > nodes - needed else None

    def verdict(self, nodes: int) -> bool | None:
        """Whether a majority held it, as far as can be told; None while too few have answered."""
        certain = self.certain(nodes)
        return True if certain is None and len(self.fates) >= rules.majority(nodes) else certain


class Attempt:
    """One try for one lease: what each node has said about it. Once granted it is the hold itself."""

    __slots__ = (
        "high", "id", "info", "kept_for", "name", "numbers", "out_of_reach", "promoted", "refusals", "removal", "sent", "silent", "token", "ttl", "undone",
    )  # fmt: skip

    def __init__(self, name: str, attempt_id: str, ttl: float, info: str) -> None:
        self.name = name
        self.id = attempt_id
        self.ttl = ttl
        self.info = info
        self.kept_for = 0.0
        """How long the name is to be held at least, also after a release."""
        self.sent = 0.0
        """When the first request went out."""
        self.numbers: dict[int, int] = {}
        """Nodes that hold my lease, and under which number."""
        self.refusals: dict[int, Reply] = {}
        self.silent = 0
        """How many nodes had said nothing when the time was over."""
        self.high = 0
        """The highest number seen anywhere; a release spreads it, so that the next attempt finds equal counters."""
        self.token: int | None = None
        self.promoted = False
        self.out_of_reach = False
        """It failed because no majority took part. What is heard after that has no say: others may be still to answer."""
        self.undone = False
        """It failed, and every node that gave something, or may have, was told to take it back."""
        self.removal = Removal()

    def note(self, answer: NodeAnswer) -> None:
        """What a node answered to an acquire or a promote, in time or late."""
        node, (op, _), reply = answer
        if isinstance(reply, NodeFailure):
            if op == "acquire":
                self.refusals[node] = reply
            return
        if op not in ("acquire", "promote"):
            return
        if reply[0] == b"yes":
            number = int(reply[1])
            self.numbers[node] = number
            if self.refusals:
                self.refusals.pop(node, None)
            if number > self.high:
                self.high = number
            return
        if op == "promote":
            self.numbers.pop(node, None)
        self.refusals[node] = reply
        if reply[0] == b"no" and reply[1]:
            self.high = max(self.high, int(reply[1].split(b" ", 2)[1]))

    def unreached(self, nodes: int, needed: int) -> bool:
        """Whether so many nodes failed to take part that no majority of votes was possible, for anybody."""
        refusals = list(self.refusals.values())
        failures = sum(isinstance(reply, NodeFailure) or reply[0] not in (b"no", b"buried") for reply in refusals)
        return failures + self.silent > nodes - needed

    def blockers(self) -> list[tuple[str, float]]:
        """Whose leases were in the way, and for how many seconds each."""
        # A copy first: another thread may note a late answer at any moment.
        refusals = list(self.refusals.values())
        return [
            (parse_lease(reply[1])[0], max(0, int(reply[2])) / 1000)
            for reply in refusals
            if not isinstance(reply, NodeFailure) and reply[0] == b"no" and len(reply) > 2 and reply[1]
        ]

    def never_done(self) -> dict[int, NodeFailure]:
        """Nodes that the acquire did not get to, or that refused it with an error."""
        refusals = list(self.refusals.items())
        return {node: why for node, why in refusals if isinstance(why, NodeFailure) and why.kind in NEVER_DONE}

    def knows(self, node: int) -> bool:
        """Whether the node has done the acquire, or never will: then a release can leave no trace."""
        refusal = self.refusals.get(node)
        if refusal is None:
            return node in self.numbers
        return not isinstance(refusal, NodeFailure) or refusal.kind in NEVER_DONE


class Extension:
    """The renewal of one hold: what each node said to it, over every round."""

    __slots__ = ("exactly", "hold", "said", "ttl")

    def __init__(self, hold: Attempt, ttl: float, exactly: bool) -> None:
        self.hold = hold
        self.ttl = ttl
        self.exactly = exactly
        self.said: dict[int, Reply] = {}

    def begin(self, nodes: int) -> list[int]:
        """The nodes to be asked in a round that begins: those that have not said yes or no in an earlier one."""
        self.said = {node: reply for node, reply in self.said.items() if _yes_or_no(reply)}
        return [node for node in range(nodes) if node not in self.said]

    def alive(self, nodes: int) -> bool | None:
        """Whether a majority still holds it; None while that cannot be told."""
        needed = rules.majority(nodes)
        said = [reply[0] for reply in self.said.values() if _yes_or_no(reply)]
        if said.count(b"yes") >= needed:
            return True
        return False if said.count(b"no") > nodes - needed else None


def _yes_or_no(reply: Reply) -> bool:
    return not isinstance(reply, NodeFailure) and reply[0] in (b"yes", b"no")


class RedlockClaim:
    """A claim of this client, and its latest attempt."""

    __slots__ = ("attempt", "claim", "next_try", "show_at", "shown", "silence", "spread", "subscribed", "tries")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.attempt: Attempt | None = None
        self.tries = 0
        self.next_try = 0.0
        self.spread = SPREAD
        self.silence: QuorumNotReached | None = None
        """Why the latest try got no answer, while it is too early for the next one."""
        self.show_at = float("inf")
        """When people are to be told (again) that it waits."""
        self.shown = False
        self.subscribed = False
        """Whether it is the one of its line that hears of releases."""

    def hold_back(self, now: float, chance: Random) -> float:
        """Seconds until servers are asked again of which no majority answered: none where it is known that they are away."""
        return self.come_apart(now, chance) if self.attempt is not None and self.attempt.silent else 0.0

    def come_apart(self, now: float, chance: Random) -> float:
        """Seconds until the next try of one among many: those who come again before one of them can have got through only meet again."""
        self.spread = min(LOOK_EVERY, self.claim.ttl / 4, 2 * max(self.spread, self._took(now)))
        return chance.random() * self.spread

    def come_closer(self, now: float) -> None:
        """Somebody has got through. How long the answer took tells how many ask: one that is alone then comes at once."""
        self.spread = max(SPREAD, min(self.spread / 2, FEW * self._took(now)))

    def _took(self, now: float) -> float:
        """How long the latest attempt has taken: where many ask at once, each takes as long as all of them."""
        return now - self.attempt.sent if self.attempt is not None and self.attempt.sent else 0.0


class OwnLines:
    """Which of this client's claims wait for each name, in order of arrival. One line is changed at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._alone = runtime.section()
        self._lines: dict[str, list[str]] = {}

    def first(self, name: str) -> str:
        """The claim that is the next to try; empty if none waits."""
        return next(iter(self._lines.get(name, ())), "")

    def ahead(self, name: str, claim_id: str) -> int | None:
        """How many are ahead of this one; None if it does not wait."""
        try:
            return self._lines.get(name, []).index(claim_id)
        except ValueError:
            return None

    def stand(self, name: str, claim_id: str) -> None:
        """The last in the line, from now on."""
        self._change(lambda: self._lines.setdefault(name, []).append(claim_id))

    def step_out(self, name: str, claim_id: str) -> str | None:
        """Wait no longer; who is the first now, because this one was."""
        if name not in self._lines:
            return None  # the usual end of one that never had to wait; only it itself could have stood in there

        def change() -> str | None:
            line = self._lines.get(name, [])
            if claim_id not in line:
                return None
            was_first = line[0] == claim_id
            line.remove(claim_id)
            if not line:
                del self._lines[name]
            return line[0] if line and was_first else None

        return self._change(change)

    def _change(self, change: Callable[[], T]) -> T:
        # Else who comes could stand in a line that another thread is just taking down.
        try:
            return self._alone(change)
        except Inside:
            return change()  # a signal handler in the middle of just that, in this very thread
