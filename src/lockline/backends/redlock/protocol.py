"""The protocol, client side: acquire, extend, release and look on a majority of nodes. Pure: it knows time and nodes by its port.

A lease at a node is the node's promise not to give a lower or equal number to anyone else. An attempt that a majority of
nodes hold under one number has that number as its token: any later attempt shares a node with it, and got a higher one there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TypeVar

from ...errors import QuorumNotReached
from . import requests, rules
from .port import Port, Talk
from .requests import Failure, Reply, Request
from .words import too_long, unreached

T = TypeVar("T")

GRACE = 0.0005
"""How long, beside the time already spent, an equal number from one more node is waited for before lower ones are lifted."""
PAUSE, LONGEST_PAUSE = 0.02, 0.1
"""Between two rounds of a call that insists; twice as long each time."""
TOO_SHORT = 0.01
"""What is left of a call's time is not worth another round."""


class Answer(Enum):
    """What a node has said about the release of a lease."""

    REMOVED = 1
    MISSING = 2
    """It had no such lease when it was first asked: the lease had run out there, or was evicted."""
    GONE = 3
    """It has none now; an earlier request, whose answer did not come, may have removed it."""


class Removal:
    """The end of one attempt, node by node, over every round in which it was asked for."""

    __slots__ = ("answers", "repeated", "replies")

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.replies: dict[int, Reply] = {}
        self.repeated: bool | None = None
        """Whether the nodes that have not answered yet were asked before the round that is under way; None before the first."""

    def begin(self) -> None:
        """A round of requests goes out to those who have not answered yet."""
        self.repeated = self.repeated is not None

    def hear(self, node: int, reply: Reply) -> None:
        """What a node answered, in time or late."""
        self.replies[node] = reply
        if isinstance(reply, Failure) or self.answers.get(node) is Answer.REMOVED:
            return
        if reply[0] == b"yes":
            self.answers[node] = Answer.REMOVED
        elif reply[0] == b"no":
            self.answers.setdefault(node, Answer.GONE if self.repeated else Answer.MISSING)

    def certain(self, nodes: int) -> bool | None:
        """Whether a majority held it, as soon as no other node's answer can change that; else None."""
        needed = rules.majority(nodes)
        said = list(self.answers.values())
        if said.count(Answer.REMOVED) >= needed:
            return True
        return False if said.count(Answer.MISSING) > nodes - needed else None

    def verdict(self, nodes: int) -> bool | None:
        """Whether a majority held it, as far as can be told; None while too few have answered."""
        certain = self.certain(nodes)
        return True if certain is None and len(self.answers) >= rules.majority(nodes) else certain


class Attempt:
    """One try for one lease: what each node has said about it. Once granted it is the hold itself."""

    __slots__ = (
        "high", "id", "info", "name", "never_done", "numbers", "out_of_reach", "promoted", "refusals", "removal", "sent", "silent", "token", "ttl", "undone",
    )  # fmt: skip

    def __init__(self, name: str, attempt_id: str, ttl: float, info: str) -> None:
        self.name = name
        self.id = attempt_id
        self.ttl = ttl
        self.info = info
        self.sent = 0.0
        """When the first request went out."""
        self.numbers: dict[int, int] = {}
        """Nodes that hold my lease, and under which number."""
        self.refusals: dict[int, Reply] = {}
        self.never_done: set[int] = set()
        """Nodes that the acquire did not get to, or that refused it with an error."""
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

    def note(self, node: int, request: Request, reply: Reply) -> None:
        """What a node answered to an acquire or a promote, in time or late."""
        if isinstance(reply, Failure):
            if request.op == "acquire":
                self.refusals[node] = reply
                if reply.kind in ("unreachable", "refused"):
                    self.never_done.add(node)
            return
        if request.op not in ("acquire", "promote"):
            return
        if reply[0] == b"yes":
            number = int(reply[1])
            self.numbers[node] = number
            self.refusals.pop(node, None)
            if number > self.high:
                self.high = number
            return
        if request.op == "promote":
            self.numbers.pop(node, None)
        self.refusals[node] = reply
        if reply[0] == b"no" and reply[1]:
            self.high = max(self.high, int(reply[1].split(b" ", 2)[1]))

    def unreached(self, nodes: int, needed: int) -> bool:
        """Whether so many nodes failed to take part that no majority of votes was possible, for anybody."""
        failures = sum(
            isinstance(reply, Failure) or reply[0] not in (b"no", b"buried") for reply in self.refusals.values()
        )
        return failures + self.silent > nodes - needed

    def knows(self, node: int) -> bool:
        """Whether the node has done the acquire, or never will: then a release can leave no trace."""
        if node in self.numbers or node in self.never_done:
            return True
        return node in self.refusals and not isinstance(self.refusals[node], Failure)


class Extension:
    """The renewal of one hold: what each node said to it, over every round."""

    __slots__ = ("hold", "said", "ttl")

    def __init__(self, hold: Attempt, ttl: float) -> None:
        self.hold = hold
        self.ttl = ttl
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
    return not isinstance(reply, Failure) and reply[0] in (b"yes", b"no")


class Protocol:
    """The steps of the protocol through one port."""

    def __init__(self, port: Port, drift: float = 0.01, given_away: float = 0.01) -> None:
        self.port = port
        self.drift = drift
        # Nodes are told a longer ttl, by what the drift exceeds the share that the core gives away.
        self._stretch = (1 - given_away) / (1 - drift)
        self.high = 0
        self.grants = 0
        self.one_trip = 0

    def milliseconds(self, ttl: float) -> int:
        """The ttl that nodes are told."""
        return max(1, -int(-(ttl * 1000 * self._stretch) // 1))

    def check(self, ttl: float) -> None:
        """ConfigError for a ttl that would outlive the time for which a server that comes back refuses."""
        longest = self.port.membership.longest
        if ttl * self._stretch > longest:
            raise too_long(ttl, ttl * self._stretch, longest)

    # -- acquire -----------------------------------------------------------------------------------

    async def acquire(self, attempt: Attempt, until: float) -> bool:
        """Whether a majority of nodes hold my lease under one number, and it is still good; otherwise all is undone."""
        port = self.port
        talk = await port.talk(attempt.note, until)
        try:
            self.check(attempt.ttl)
            # Before the first send: whatever happens on the way is not added to the lease.
            attempt.sent = port.now()
            request = requests.acquire(
                attempt.name,
                attempt.id,
                self.milliseconds(attempt.ttl),
                rules.hint(port.wall(), self.high),
                attempt.info,
            )
            talk.send_all(request)
            if await self._gather(talk, attempt, min(until, attempt.sent + port.patience(attempt.ttl))):
                self.grants += 1
                self.one_trip += not attempt.promoted
                return True
            nodes = len(port.labels)
            attempt.out_of_reach = attempt.unreached(nodes, rules.majority(nodes))
            await self._undo(talk, attempt, until)
            attempt.undone = True
            return False
        finally:
            talk.part()
            if attempt.high > self.high:
                self.high = attempt.high

    async def _gather(self, talk: Talk, attempt: Attempt, until: float) -> bool:
        port = self.port
        nodes = len(port.labels)
        needed = rules.majority(nodes)
        numbers = attempt.numbers
        target: int | None = None
        lifting: set[int] = set()
        waiting = nodes
        first_majority = 0.0
        while True:
            token = rules.agreed(numbers, needed)
            if token is not None:
                if rules.left(attempt.ttl, self.drift, attempt.sent, port.now()) <= 0:
                    return False
                attempt.token = token
                return True
            # Others hold too many nodes: no use in waiting. Too many cannot be asked: wait, so that the error can tell of all.
            if len(numbers) + waiting < needed and (not waiting or not attempt.unreached(nodes, needed)):
                return False
            pause = until
            if len(numbers) >= needed:
                now = port.now()
                first_majority = first_majority or now
                patience = first_majority + (first_majority - attempt.sent) + GRACE
                if target is None and (not waiting or now >= patience):
                    target = rules.worth_promoting(numbers.values(), needed)
                    attempt.promoted = True
                if target is None:
                    pause = min(until, patience)
                else:
                    for node, number in numbers.items():
                        if number < target and node not in lifting:
                            lifting.add(node)
                            talk.send(node, requests.promote(attempt.name, attempt.id, target))
            answer = await talk.next(pause)
            if answer is None:
                if port.now() >= until or (not waiting and (target is not None or len(numbers) < needed)):
                    attempt.silent = waiting
                    return False
                continue
            node, request, reply = answer
            attempt.note(node, request, reply)
            if request.op == "acquire":
                waiting -= 1

    async def _undo(self, talk: Talk, attempt: Attempt, until: float) -> None:
        """Take back what was given, and what may still be given."""
        given = len(attempt.numbers)
        for node in range(len(self.port.labels)):
            if node in attempt.numbers:
                talk.send(node, requests.release(attempt.name, attempt.id, attempt.high, 0))
            elif not attempt.knows(node):
                talk.send(node, self._bury(talk, node, attempt, attempt.high))
        until = min(until, self.port.now() + self.port.patience(attempt.ttl))
        while given > 0:
            answer = await talk.next(until)
            if answer is None:
                return
            node, request, reply = answer
            if request.op != "release":
                attempt.note(node, request, reply)
            elif node in attempt.numbers:
                given -= 1

    def _bury(self, talk: Talk, node: int, attempt: Attempt, high: int) -> Request:
        """The release for a node that may still be about to do the acquire: over another connection it can come second."""
        burial = self.milliseconds(attempt.ttl)
        if talk.follows(node, attempt.id, attempt.sent):
            burial = -burial
        return requests.release(attempt.name, attempt.id, high, burial)

    # -- insisting ---------------------------------------------------------------------------------

    async def insist(self, one_round: Callable[[], Awaitable[T]], until: float) -> T:
        """What a round gave, repeated until a majority took part; after `until`, what kept it from that."""
        port = self.port
        told: QuorumNotReached | None = None
        pause = PAUSE
        while True:
            began = port.now()
            try:
                return await one_round()
            except QuorumNotReached as problem:
                unsent = problem.unsent and (told is None or told.unsent)
                # A round that had less time than a node may take would call those silent who were not asked properly.
                if told is None or until - began >= port.patience(float("inf")):
                    told = problem
                told.unsent = unsent
            left = until - port.now()
            if left <= TOO_SHORT:
                raise told
            await port.sleep(min(pause, left / 2))
            pause = min(2 * pause, LONGEST_PAUSE)

    # -- extend ------------------------------------------------------------------------------------

    async def extend(self, holds: Sequence[tuple[Attempt, float]], until: float) -> list[bool | QuorumNotReached]:
        """For each hold with its new ttl: True if a majority still holds it, False if none can; else why too few said.

        Insists until then while nothing can be said of any of them: who knows of one tells it. True also proves, without any
        clock, that no higher token was granted before this began.
        """
        extensions = {hold.id: Extension(hold, ttl) for hold, ttl in holds}
        try:
            return await self.insist(lambda: self._extend(extensions, until), until)
        except QuorumNotReached as problem:
            return [problem for _ in holds]

    def _unconfirmed(self, what: str, extension: Extension) -> QuorumNotReached:
        return unreached(
            self.port, f"the renewal of {what} was not confirmed by a majority", extension.said, yes="confirmed"
        )

    async def _extend(self, extensions: dict[str, Extension], until: float) -> list[bool | QuorumNotReached]:
        """One round; QuorumNotReached if there is nothing to be said of any of them after it."""
        port = self.port
        nodes = len(port.labels)
        undecided = set(extensions)

        def late(node: int, request: Request, reply: Reply) -> None:
            if request.op == "promote":
                extensions[request.args[1]].hold.note(node, request, reply)

        talk = await port.talk(late, until, kept=True)
        try:
            # One that ends soon must not take the others' time: `until` is where it needs an answer.
            until = min(until, port.now() + port.patience(max(one.hold.ttl for one in extensions.values())))
            for one in extensions.values():
                hold = one.hold
                assert hold.token is not None
                request = requests.extend(hold.name, hold.id, hold.token, self.milliseconds(one.ttl))
                for node in one.begin(nodes):
                    # A node that answered late, or with a lower number, joins the majority here.
                    if hold.numbers.get(node, 0) != hold.token:
                        talk.send(node, requests.promote(hold.name, hold.id, hold.token))
                    talk.send(node, request)
            while undecided:
                answer = await talk.next(until)
                if answer is None:
                    break
                node, request, reply = answer
                one = extensions[request.args[1]]
                if request.op == "promote":
                    if not isinstance(reply, Failure) and reply[0] == b"yes":
                        one.hold.note(node, request, reply)
                    continue
                one.said[node] = reply
                if one.alive(nodes) is not None:
                    undecided.discard(one.hold.id)
        finally:
            talk.part()
        if len(undecided) == len(extensions):
            first = next(iter(extensions.values()))
            raise self._unconfirmed(
                repr(first.hold.name) if len(extensions) == 1 else f"{len(extensions)} leases", first
            )
        alive = ((one, one.alive(nodes)) for one in extensions.values())
        return [self._unconfirmed(repr(one.hold.name), one) if lives is None else lives for one, lives in alive]

    # -- release -----------------------------------------------------------------------------------

    async def release(self, attempt: Attempt, until: float) -> bool:
        """Take the lease back from every node; whether a majority still held it, as far as can be told.

        One round; QuorumNotReached when too few answered. Asked again, it goes on from there, and what an earlier round may have
        removed is not missing. The port, too, repeats it to each node until that has answered or the ttl is over.
        """
        await self._release((attempt,), until)
        there = attempt.removal.verdict(len(self.port.labels))
        if there is None:
            what = f"the release of {attempt.name!r} was not confirmed by a majority"
            raise unreached(self.port, what, attempt.removal.replies, yes="removed")
        return there

    async def release_all(self, attempts: Sequence[Attempt], until: float) -> list[bool]:
        """As `release`, for many holds in one conversation; QuorumNotReached if any of them was not confirmed by a majority."""
        await self._release(attempts, until)
        verdicts = [attempt.removal.verdict(len(self.port.labels)) for attempt in attempts]
        if left := [at for at, there in enumerate(verdicts) if there is None]:
            what = f"{len(left)} of {len(attempts)} releases were not confirmed by a majority"
            raise unreached(self.port, what, attempts[left[0]].removal.replies, yes="removed")
        return [there is True for there in verdicts]

    async def _release(self, attempts: Sequence[Attempt], until: float) -> None:
        port = self.port
        nodes = len(port.labels)
        removals = {attempt.id: attempt.removal for attempt in attempts}

        def hear(node: int, request: Request, reply: Reply) -> None:
            removals[request.args[1]].hear(node, reply)

        talk = await port.talk(hear, until)
        try:
            until = min(until, port.now() + port.patience(max(attempt.ttl for attempt in attempts)))
            for attempt in attempts:
                self._send_release(talk, attempt)
            undecided = set(removals)
            while undecided:
                answer = await talk.next(until)
                if answer is None:
                    break
                hear(*answer)
                released = answer[1].args[1]
                if removals[released].certain(nodes) is not None:
                    undecided.discard(released)
        finally:
            talk.part()

    def _send_release(self, talk: Talk, attempt: Attempt) -> None:
        removal = attempt.removal
        high = max(attempt.high, attempt.token or 0)
        known = requests.release(attempt.name, attempt.id, high, 0)
        removal.begin()
        nodes = len(self.port.labels)
        if len(attempt.numbers) == nodes and not removal.answers:
            talk.send_all(known)
            return
        for node in range(nodes):
            if node in attempt.never_done:
                removal.replies[node] = attempt.refusals[node]
            elif node not in removal.answers:
                talk.send(node, known if attempt.knows(node) else self._bury(talk, node, attempt, high))
