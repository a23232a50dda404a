"""The third port: the same protocol on a virtual clock and network. Everything that happens follows from one seed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from lockline.backends.redlock import commands
from lockline.backends.redlock.channel import Fanout, TakeAnswer
from lockline.backends.redlock.commands import NodeAnswer, NodeFailure, NodeRequest, Reply
from lockline.backends.redlock.membership import LOOK_AGAIN

from .model import ModelNode

CLUSTER = "simulated"


class Task:
    """One client's coroutine."""

    __slots__ = ("coroutine", "done", "waits")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine
        self.waits = 0
        self.done = False


class Pause:
    """What a task awaits: a moment, or a nudge before it."""

    __slots__ = ("talk", "until")

    def __init__(self, until: float, talk: SimulatedTalk | None = None) -> None:
        self.until = until
        self.talk = talk

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


class Universe:
    """Time, events and nodes."""

    def __init__(self, seed: int, nodes: int, *, make: Callable[[Callable[[], float]], ModelNode] = ModelNode) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self.steps = [0.0] * nodes
        """By how many milliseconds each node's wall clock has been stepped."""
        self.rates = [1.0] * nodes
        """How fast each node's clock runs."""
        self.nodes = [make(self._clock_of(node)) for node in range(nodes)]
        self.epochs = [0] * nodes
        """Goes up whenever a node's connections break."""
        self.down: set[int] = set()
        self.cut: set[tuple[str, int]] = set()
        """(client, node) pairs between which nothing passes."""
        self.delay: Callable[[str, int, NodeRequest], float] = lambda client, node, request: self.random.uniform(
            0.0001, 0.002
        )
        self.durable = ["0"] * nodes
        """What each node's settings say now about its disk."""
        self.repeat = 0.0
        """The share of acquires that arrive once more, later."""

    def _clock_of(self, node: int) -> Callable[[], float]:
        return lambda: self.now * 1000 * self.rates[node] + self.steps[node]

    # -- events ------------------------------------------------------------------------------------

    def at(self, when: float, act: Callable[..., object], *args: Any) -> None:
        """Do this then."""
        heapq.heappush(self._events, (when, next(self._order), act, args))

    def after(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        self.at(self.now + seconds, act, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        """Let a client live."""
        task = Task(coroutine)
        self.at(self.now, self._resume, task, 0)
        return task

    def _resume(self, task: Task, number: int) -> None:
        if task.done or number != task.waits:
            return
        task.waits += 1
        try:
            pause = task.coroutine.send(None)
        except StopIteration:
            task.done = True
            return
        if pause.talk is not None:
            pause.talk.waiter = (task, task.waits)
        if pause.until != float("inf"):
            self.at(max(pause.until, self.now), self._resume, task, task.waits)

    def nudge(self, talk: SimulatedTalk) -> None:
        """An answer came for who waits in this conversation."""
        if talk.waiter is not None:
            waiter, talk.waiter = talk.waiter, None
            self.at(self.now, self._resume, *waiter)

    def run(self, until: float) -> None:
        """Let everything happen that happens before then."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, act, args = heapq.heappop(events)
            act(*args)
        self.now = max(self.now, until)

    # -- nodes -------------------------------------------------------------------------------------

    def set_up(self, longest: float, floor: int = 0, durable: str = "0") -> None:
        """What `init` does."""
        for node in self.nodes:
            node.apply(NodeRequest("install", (int(longest * 1000), floor, durable)), CLUSTER)

    def kill(self, node: int) -> None:
        """The node is gone; its connections break."""
        self.down.add(node)
        self.epochs[node] += 1

    def start(self, node: int, memory: Any) -> None:
        """The node is back with this memory, or with none."""
        self.nodes[node].restart(memory)
        self.epochs[node] += 1
        self.down.discard(node)


class SimulatedTalk:
    """One conversation."""

    __slots__ = ("_channel", "_due", "_note", "_open", "answers", "waiter")

    def __init__(self, port: SimulatedFanout, note: TakeAnswer) -> None:
        self._channel = port
        self._note = note
        self._open = True
        self._due = 0
        self.answers: deque[NodeAnswer] = deque()
        self.waiter: tuple[Task, int] | None = None

    def send(self, node: int, request: NodeRequest) -> None:
        self._due += 1
        self._channel.send(self, node, request)

    def send_all(self, request: NodeRequest, nodes: Sequence[int] | None = None) -> None:
        for node in range(len(self._channel.labels)) if nodes is None else nodes:
            self.send(node, request)

    def follows(self, node: int, attempt: str, sent: float) -> bool:
        return self._channel.connected_since(node) <= sent

    def take(self, node: int, request: NodeRequest, reply: Reply) -> None:
        self._due -= 1
        if not self._open:
            self._note((node, request, reply))
            return
        self.answers.append((node, request, reply))
        self._channel.universe.nudge(self)

    async def wait(self, until: float, least: int = 1) -> bool:
        while len(self.answers) < least and self._due and self._channel.now() < until:
            await Pause(until, self)
        return bool(self.answers)

    async def next(self, until: float) -> NodeAnswer | None:
        return self.answers.popleft() if self.answers or await self.wait(until) else None

    def part(self) -> None:
        self._open = False


class SimulatedFanout(Fanout):
    """One client's way to the nodes: one connection to each, in order, until it breaks."""

    def __init__(
        self, universe: Universe, client: str, *, node_timeout: float = 0.05, wall: Callable[[], int] | None = None
    ) -> None:
        self.universe = universe
        self.client = client
        super().__init__([f"node-{node}" for node in range(len(universe.nodes))], node_timeout)
        self.membership.cluster = CLUSTER
        # No help from clocks unless a test wants it: numbers have to rise without.
        self.wall = wall or (lambda: 0)  # type: ignore[method-assign]
        self._epochs: list[int | None] = [None] * len(self.labels)
        self._made = [0.0] * len(self.labels)
        self._looked = [0.0] * len(self.labels)
        self._arrives = [0.0] * len(self.labels)
        self._answers = [0.0] * len(self.labels)

    def now(self) -> float:
        return self.universe.now

    async def sleep(self, seconds: float) -> None:
        await Pause(self.universe.now + seconds)

    async def talk(self, note: TakeAnswer, until: float, *, kept: bool = False) -> SimulatedTalk:
        return SimulatedTalk(self, note)

    def connected_since(self, node: int) -> float:
        """When the connection to this node was made; it is yet to be made if it broke."""
        whole = self._epochs[node] == self.universe.epochs[node]
        return self._made[node] if whole else float("inf")

    def send(self, talk: SimulatedTalk | None, node: int, request: NodeRequest) -> None:
        """Put the request on the connection to this node; a new one is greeted first."""
        universe = self.universe
        if node in universe.down or (self.client, node) in universe.cut:
            self._epochs[node] = None
            self._fail(talk, node, request, NodeFailure("unreachable", "no connection"))
            return
        if self._epochs[node] != universe.epochs[node]:
            self._epochs[node] = universe.epochs[node]
            self._made[node] = universe.now
            self._arrives[node] = 0.0
            universe.nodes[node].apply(NodeRequest("greet", (universe.durable[node],)), CLUSTER)
            self._looked[node] = universe.now
        elif universe.now > self._looked[node] + LOOK_AGAIN:
            self._looked[node] = universe.now
            universe.nodes[node].apply(NodeRequest("vouch", (universe.durable[node],)), CLUSTER)
        epoch = universe.epochs[node]
        # A connection keeps its order.
        when = max(universe.now + universe.delay(self.client, node, request), self._arrives[node])
        self._arrives[node] = when
        universe.at(when, self._arrive, talk, node, request, epoch)
        if request.op == "acquire" and universe.repeat and universe.random.random() < universe.repeat:
            late = when + universe.random.uniform(0.0, 4 * self.node_timeout)
            universe.at(late, self._arrive, None, node, request, epoch)

    def _arrive(self, talk: SimulatedTalk | None, node: int, request: NodeRequest, epoch: int) -> None:
        universe = self.universe
        if universe.epochs[node] != epoch or node in universe.down or (self.client, node) in universe.cut:
            self._epochs[node] = None
            self._fail(talk, node, request, NodeFailure("error", "the connection broke"))
            return
        reply = universe.nodes[node].apply(request, CLUSTER)
        if talk is None:
            return
        when = max(universe.now + universe.delay(self.client, node, request), self._answers[node])
        self._answers[node] = when
        universe.at(when, self._answered, talk, node, request, reply, epoch)

    def _answered(self, talk: SimulatedTalk, node: int, request: NodeRequest, reply: Reply, epoch: int) -> None:
        # An answer that was on its way when the server died still arrives: votes in flight are the dangerous ones.
        if (self.client, node) in self.universe.cut:
            self._fail(talk, node, request, NodeFailure("error", "the connection broke"))
        else:
            talk.take(node, request, reply)

    def _fail(self, talk: SimulatedTalk | None, node: int, request: NodeRequest, failure: NodeFailure) -> None:
        if request.op == "release":
            # What must arrive is repeated on the next connection.
            self.universe.after(self.node_timeout, self._repeat, node, commands.again(request), self.universe.now + 60)
        if talk is not None:
            talk.take(node, request, failure)

    def _repeat(self, node: int, request: NodeRequest, until: float) -> None:
        universe = self.universe
        if universe.now >= until:
            return
        if node in universe.down or (self.client, node) in universe.cut:
            universe.after(self.node_timeout, self._repeat, node, request, until)
        else:
            self.send(None, node, request)
