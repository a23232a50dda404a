"""The protocol, client side: acquire, extend, release and look on a majority of nodes. Pure: it knows time and nodes by its port.

A lease at a node is the node's promise not to give a lower or equal number to anyone else. An attempt that a majority of
nodes hold under one number has that number as its token: any later attempt shares a node with it, and got a higher one there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...errors import QuorumNotReached
from . import requests, rules
from .port import Port, Talk
from .requests import Failure, Reply, Request
from .words import nothing, too_long, unreached

GRACE = 0.0005
"""How long, beside the time already spent, an equal number from one more node is waited for before lower ones are lifted."""


class Attempt:
    """One try for one lease: what each node has said about it. Once granted it is the hold itself."""

    __slots__ = (
        "high", "id", "info", "name", "never_done", "numbers", "out_of_reach", "promoted", "refusals", "sent", "silent", "token", "ttl", "undone",
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

    # -- extend ------------------------------------------------------------------------------------

    async def extend(self, holds: Sequence[tuple[Attempt, float]], until: float) -> list[bool | QuorumNotReached]:
        """For each hold with its new ttl: True if a majority still holds it, False if none can; else why too few said.

        True also proves, without any clock, that no higher token was granted before this began.
        """
        port = self.port
        nodes = len(port.labels)
        needed = rules.majority(nodes)
        by_id = {hold.id: at for at, (hold, _) in enumerate(holds)}
        yes, no = [0] * len(holds), [0] * len(holds)
        said: list[dict[int, Reply]] = [{} for _ in holds]
        open_ones = set(range(len(holds)))

        def late(node: int, request: Request, reply: Reply) -> None:
            if request.op == "promote":
                holds[by_id[request.args[1]]][0].note(node, request, reply)

        talk = await port.talk(late, until, kept=True)
        try:
            # One that ends soon must not take the others' time: `until` is where it needs an answer.
            until = min(until, port.now() + port.patience(max(hold.ttl for hold, _ in holds)))
            for hold, ttl in holds:
                assert hold.token is not None
                request = requests.extend(hold.name, hold.id, hold.token, self.milliseconds(ttl))
                for node in range(nodes):
                    # A node that answered late, or with a lower number, joins the majority here.
                    if hold.numbers.get(node, 0) != hold.token:
                        talk.send(node, requests.promote(hold.name, hold.id, hold.token))
                    talk.send(node, request)
            while open_ones:
                answer = await talk.next(until)
                if answer is None:
                    break
                node, request, reply = answer
                at = by_id[request.args[1]]
                if request.op == "promote":
                    if not isinstance(reply, Failure) and reply[0] == b"yes":
                        holds[at][0].note(node, request, reply)
                    continue
                said[at][node] = reply
                if isinstance(reply, Failure) or reply[0] not in (b"yes", b"no"):
                    continue
                yes[at] += reply[0] == b"yes"
                no[at] += reply[0] == b"no"
                if yes[at] >= needed or no[at] > nodes - needed:
                    open_ones.discard(at)
        finally:
            talk.part()
        verdicts: list[bool | QuorumNotReached] = []
        for at, (hold, _) in enumerate(holds):
            if yes[at] >= needed or no[at] > nodes - needed:
                verdicts.append(yes[at] >= needed)
            else:
                what = f"the renewal of {hold.name!r} was not confirmed by a majority"
                verdicts.append(unreached(port, what, said[at], yes="confirmed"))
        return verdicts

    # -- release -----------------------------------------------------------------------------------

    async def release(self, attempt: Attempt, until: float) -> bool:
        """Take the lease back from every node; whether a majority still held it, as far as can be told.

        QuorumNotReached when too few answered; the port repeats it to each node until that has answered or the ttl is over.
        """
        port = self.port
        nodes = len(port.labels)
        needed = rules.majority(nodes)
        replies: dict[int, Reply] = {}
        yes = no = 0
        high = max(attempt.high, attempt.token or 0)
        talk = await port.talk(nothing, until)
        try:
            until = min(until, port.now() + port.patience(attempt.ttl))
            known = requests.release(attempt.name, attempt.id, high, 0)
            if len(attempt.numbers) == nodes:
                talk.send_all(known)
            else:
                for node in range(nodes):
                    if node in attempt.never_done:
                        replies[node] = attempt.refusals[node]
                    else:
                        talk.send(node, known if attempt.knows(node) else self._bury(talk, node, attempt, high))
            while yes < needed and len(replies) < nodes:
                answer = await talk.next(until)
                if answer is None:
                    break
                node, _, reply = answer
                replies[node] = reply
                if not isinstance(reply, Failure):
                    yes += reply[0] == b"yes"
                    no += reply[0] == b"no"
        finally:
            talk.part()
        if yes >= needed:
            return True
        if no > nodes - needed:
            return False
        if yes + no >= needed:
            return True
        raise unreached(port, f"the release of {attempt.name!r} was not confirmed by a majority", replies)

    async def release_all(self, attempts: Sequence[Attempt], until: float) -> list[bool]:
        """As `release`, for many holds in one conversation; QuorumNotReached if any of them was not confirmed by a majority."""
        port = self.port
        nodes = len(port.labels)
        needed = rules.majority(nodes)
        yes, no = Counter[str](), Counter[str]()
        replies: dict[int, Reply] = {}
        open_ones = {attempt.id for attempt in attempts}
        talk = await port.talk(nothing, until)
        try:
            until = min(until, port.now() + port.patience(max(attempt.ttl for attempt in attempts)))
            for attempt in attempts:
                high = max(attempt.high, attempt.token or 0)
                known = requests.release(attempt.name, attempt.id, high, 0)
                for node in range(nodes):
                    if node not in attempt.never_done:
                        talk.send(node, known if attempt.knows(node) else self._bury(talk, node, attempt, high))
            while open_ones:
                answer = await talk.next(until)
                if answer is None:
                    break
                node, request, reply = answer
                replies[node] = reply
                if isinstance(reply, Failure):
                    continue
                one = request.args[1]
                yes[one] += reply[0] == b"yes"
                no[one] += reply[0] == b"no"
                if yes[one] >= needed or no[one] > nodes - needed:
                    open_ones.discard(one)
        finally:
            talk.part()
        left = [one for one in open_ones if yes[one] + no[one] < needed]
        if left:
            raise unreached(port, f"{len(left)} of {len(attempts)} releases were not confirmed by a majority", replies)
        return [no[attempt.id] <= nodes - needed for attempt in attempts]
