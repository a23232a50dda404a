"""The protocol, client side: acquire, extend, release and look on a majority of nodes. Pure: it knows time and nodes by its channel.

A lease at a node is the node's promise not to give a lower or equal number to anyone else. An attempt that a majority of
nodes hold under one number has that number as its token: any later attempt shares a node with it, and got a higher one there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ...errors import QuorumNotReached
from . import commands, rules
from .answers import nothing, too_long, unreached
from .channel import Fanout, Talk
from .claims import Attempt, Extension
from .commands import NodeAnswer, NodeFailure, NodeRequest

S = TypeVar("S")
T = TypeVar("T")

GRACE = 0.0005
"""How long, beside the time already spent, an equal number from one more node is waited for before lower ones are lifted."""
PAUSE, LONGEST_PAUSE = 0.02, 0.1
"""Between two rounds of a call that insists; twice as long each time."""
TOO_SHORT = 0.01
"""What is left of a call's time is not worth another round."""


class Protocol:
    """The steps of the protocol through one channel."""

    def __init__(self, channel: Fanout, drift: float = 0.01, given_away: float = 0.01) -> None:
        self.channel = channel
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
        longest = self.channel.membership.longest
        if ttl * self._stretch > longest:
            raise too_long(ttl, ttl * self._stretch, longest)

    # -- acquire -----------------------------------------------------------------------------------

    async def acquire(self, attempt: Attempt, until: float) -> bool:
        """Whether a majority of nodes hold my lease under one number, and it is still good; otherwise all is undone.

        ConfigError, and nothing is asked, for a ttl or a time to be kept for that the cluster does not grant.
        """
        channel = self.channel
        talk = await channel.talk(attempt.note, until)
        try:
            self.check(max(attempt.ttl, attempt.kept_for))
            # Before the first send: whatever happens on the way is not added to the lease.
            attempt.sent = channel.now()
            request = commands.acquire(
                attempt.name,
                attempt.id,
                self.milliseconds(attempt.ttl),
                rules.hint(channel.wall(), self.high),
                attempt.info,
            )
            talk.send_all(request)
            if await self._gather(talk, attempt, min(until, attempt.sent + channel.patience(attempt.ttl))):
                self.grants += 1
                self.one_trip += not attempt.promoted
                return True
            nodes = len(channel.labels)
            attempt.out_of_reach = attempt.unreached(nodes, rules.majority(nodes))
            await self._undo(talk, attempt, until)
            attempt.undone = True
            return False
        finally:
            talk.part()
            if attempt.high > self.high:
                self.high = attempt.high

    async def _gather(self, talk: Talk, attempt: Attempt, until: float) -> bool:
        channel = self.channel
        nodes = len(channel.labels)
        needed = rules.majority(nodes)
        numbers = attempt.numbers
        target: int | None = None
        lifting: set[int] = set()
        answers = talk.answers
        first_majority = 0.0
        # Fewer answers decide hardly anything, one way or the other. Those already here are of nodes that could not be asked.
        await talk.wait(until, needed + len(answers))
        while True:
            while answers:
                attempt.note(answers.popleft())
            waiting = nodes - len(numbers) - len(attempt.refusals)
            counted = numbers
            if target is not None:
                # A node that is being lifted counts for its target only: the lower number may be gone there already.
                counted = {node: number for node, number in numbers.items() if number >= target or node not in lifting}
            token = rules.agreed(counted, needed)
            if token is not None:
                if rules.left(attempt.ttl, self.drift, attempt.sent, channel.now()) <= 0:
                    return False
                attempt.token = token
                return True
            # Others hold too many nodes: no use in waiting. Too many cannot be asked: wait, so that the error can tell of all.
            if len(numbers) + waiting < needed and (not waiting or not attempt.unreached(nodes, needed)):
                return False
            pause = until
            if len(numbers) >= needed:
                now = channel.now()
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
                            talk.send(node, commands.promote(attempt.name, attempt.id, target))
            if not await talk.wait(pause) and (
                channel.now() >= until or (not waiting and (target is not None or len(numbers) < needed))
            ):
                attempt.silent = waiting
                return False

    async def _undo(self, talk: Talk, attempt: Attempt, until: float) -> None:
        """Take back what was given, and what may still be given."""
        given = len(attempt.numbers)
        for node in range(len(self.channel.labels)):
            if node in attempt.numbers:
                talk.send(node, commands.release(attempt.name, attempt.id, attempt.high, 0))
            elif not attempt.knows(node):
                talk.send(node, self._bury(talk, node, attempt, attempt.high))
        until = min(until, self.channel.now() + self.channel.patience(attempt.ttl))
        while given > 0:
            answer = await talk.next(until)
            if answer is None:
                return
            node, request, _ = answer
            if request.op != "release":
                attempt.note(answer)
            elif node in attempt.numbers:
                given -= 1

    def _bury(self, talk: Talk, node: int, attempt: Attempt, high: int) -> NodeRequest:
        """The release for a node that may still be about to do the acquire: over another connection it can come second."""
        burial = self.milliseconds(attempt.ttl)
        if talk.follows(node, attempt.id, attempt.sent):
            burial = -burial
        return commands.release(attempt.name, attempt.id, high, burial)

    # -- insisting ---------------------------------------------------------------------------------

    async def insist(
        self,
        one_round: Callable[[S, float], Awaitable[T]],
        what: S,
        until: float,
        wait: Callable[[S], float] = lambda what: 0.0,
    ) -> T:
        """What a round about this gave, repeated until a majority took part; after `until`, what kept it from that.

        `wait`: for how long one that is among many holds back, beside the usual pause.
        """
        channel = self.channel
        told: QuorumNotReached | None = None
        pause = PAUSE
        while True:
            began = channel.now()
            try:
                return await one_round(what, until)
            except QuorumNotReached as problem:
                unsent = problem.unsent and (told is None or told.unsent)
                # A round that had less time than a node may take would call those silent who were not asked properly.
                if told is None or until - began >= channel.patience(float("inf")):
                    told = problem
                told.unsent = unsent
            left = until - channel.now()
            if left <= TOO_SHORT:
                raise told
            await channel.sleep(min(pause + wait(what), left / 2))
            pause = min(2 * pause, LONGEST_PAUSE)

    # -- extend ------------------------------------------------------------------------------------

    async def extend(
        self, holds: Sequence[tuple[Attempt, float]], until: float, *, exactly: bool = False
    ) -> list[bool | QuorumNotReached]:
        """For each hold with its new ttl: True if a majority still holds it, False if none can; else why too few said.
        `exactly`: they end when that is over, also if they had more.

        Insists until then while nothing can be said of any of them: who knows of one tells it. True also proves, without any
        clock, that no higher token was granted before this began.
        """
        extensions = {hold.id: Extension(hold, ttl, exactly) for hold, ttl in holds}
        try:
            return await self.insist(self._extend, extensions, until)
        except QuorumNotReached as problem:
            return [problem for _ in holds]

    def _unconfirmed(self, what: str, extension: Extension) -> QuorumNotReached:
        return unreached(
            self.channel, f"the renewal of {what} was not confirmed by a majority", extension.said, yes="confirmed"
        )

    async def _extend(self, extensions: dict[str, Extension], until: float) -> list[bool | QuorumNotReached]:
        """One round; QuorumNotReached if there is nothing to be said of any of them after it."""
        channel = self.channel
        nodes = len(channel.labels)
        undecided = set(extensions)

        def late(answer: NodeAnswer) -> None:
            _, (op, args), _ = answer
            if op == "promote":
                extensions[args[1]].hold.note(answer)

        talk = await channel.talk(late, until, kept=True)
        try:
            # One that ends soon must not take the others' time: `until` is where it needs an answer.
            until = min(until, channel.now() + channel.patience(max(one.hold.ttl for one in extensions.values())))
            for one in extensions.values():
                hold = one.hold
                assert hold.token is not None
                ttl = self.milliseconds(one.ttl)
                request = commands.extend(hold.name, hold.id, hold.token, -ttl if one.exactly else ttl)
                for node in one.begin(nodes):
                    # A node that answered late, or with a lower number, joins the majority here.
                    if hold.numbers.get(node, 0) != hold.token:
                        talk.send(node, commands.promote(hold.name, hold.id, hold.token))
                    talk.send(node, request)
            while undecided:
                answer = await talk.next(until)
                if answer is None:
                    break
                node, request, reply = answer
                one = extensions[request.args[1]]
                if request.op == "promote":
                    if not isinstance(reply, NodeFailure) and reply[0] == b"yes":
                        one.hold.note(answer)
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

    async def abandon(self, holds: Sequence[Attempt], until: float) -> None:
        """Have every node forget these, which are lost: a minority may still hold them. The channel repeats it, and no answer is waited for."""
        talk = await self.channel.talk(nothing, until)
        try:
            for hold in holds:
                self._send_release(talk, hold)
        finally:
            talk.part()

    # -- release -----------------------------------------------------------------------------------

    async def release(self, attempt: Attempt, until: float) -> bool:
        """Take the lease back from every node; whether a majority still held it, as far as can be told.

        One round; QuorumNotReached when too few answered. Asked again, it goes on from there, and what an earlier round may have
        removed is not missing. The channel, too, repeats it to each node until that has answered or the ttl is over.
        """
        channel = self.channel
        nodes = len(channel.labels)
        removal = attempt.removal
        talk = await channel.talk(removal.hear, until)
        try:
            until = min(until, channel.now() + channel.patience(attempt.ttl))
            self._send_release(talk, attempt)
            answers = talk.answers
            least = rules.majority(nodes)
            while await talk.wait(until, least):
                while answers:
                    removal.hear(answers.popleft())
                there = removal.certain(nodes)
                if there is not None:
                    return there
                least = 1
        finally:
            talk.part()
        there = removal.verdict(nodes)
        if there is None:
            what = f"the release of {attempt.name!r} was not confirmed by a majority"
            raise unreached(self.channel, what, attempt.removal.replies, yes="removed")
        return there

    async def release_all(self, attempts: Sequence[Attempt], until: float) -> list[bool]:
        """As `release`, for many holds in one conversation; QuorumNotReached if any of them was not confirmed by a majority."""
        channel = self.channel
        nodes = len(channel.labels)
        removals = {attempt.id: attempt.removal for attempt in attempts}

        def hear(answer: NodeAnswer) -> None:
            _, (_, args), _ = answer
            removals[args[1]].hear(answer)

        talk = await channel.talk(hear, until)
        try:
            until = min(until, channel.now() + channel.patience(max([attempt.ttl for attempt in attempts])))
            for attempt in attempts:
                self._send_release(talk, attempt)
            undecided = set(removals)
            while undecided and (answer := await talk.next(until)) is not None:
                hear(answer)
                _, (_, args), _ = answer
                if removals[args[1]].certain(nodes) is not None:
                    undecided.discard(args[1])
        finally:
            talk.part()
        verdicts = [attempt.removal.verdict(nodes) for attempt in attempts]
        if left := [at for at, there in enumerate(verdicts) if there is None]:
            what = f"{len(left)} of {len(attempts)} releases were not confirmed by a majority"
            raise unreached(self.channel, what, attempts[left[0]].removal.replies, yes="removed")
        return [there is True for there in verdicts]

    def _send_release(self, talk: Talk, attempt: Attempt) -> None:
        removal = attempt.removal
        high = max(attempt.high, attempt.token or 0)
        known = commands.release(attempt.name, attempt.id, high, 0)
        nodes = len(self.channel.labels)
        asked = removal.begin(nodes)
        if len(asked) == nodes == len(attempt.numbers):
            talk.send_all(known)
            return
        removal.never = never_done = attempt.never_done()
        # All that have done the acquire get the same bytes, and so do all that may still be about to.
        alike: dict[NodeRequest, list[int]] = {}
        for node in asked:
            if node in never_done:
                removal.replies[node] = never_done[node]
            elif attempt.knows(node):
                alike.setdefault(known, []).append(node)
            else:
                alike.setdefault(self._bury(talk, node, attempt, high), []).append(node)
        for request, alike_nodes in alike.items():
            talk.send_all(request, alike_nodes)
