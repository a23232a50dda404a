"""What breaks the protocol, broken on purpose: each mutant has to be caught, by a fixed seed, and the real thing has to pass the
very same story. The rows are those of the table in docs/backends/redlock.md; numbers above 2^53 are in test_scripts.py, where there is Lua."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockline.backends.redlock import rules
from lockline.backends.redlock.claims import Attempt
from lockline.backends.redlock.commands import NodeRequest
from lockline.backends.redlock.protocol import Protocol

from ..tier import sample
from .directed import Directed, Lagging
from .model import Lease, ModelNode
from .simulated import CLUSTER, Pause, SimulatedFanout
from .simulation import LONGEST, Resource, Story

SEED = 20
SECONDS = sample(40, 150)
"""Of virtual time; each mutant is caught in the first five of them."""


def crimes(story: Story) -> list[str]:
    """Everything that must not happen."""
    found = list(story.judge.wrong)
    if story.judge.overlaps:
        found.append(f"{story.judge.overlaps} overlapping leases")
    if story.resource is not None and story.resource.lost_updates:
        found.append(f"{story.resource.lost_updates} lost updates")
    assert story.judge.grants > 10, "the story was not worth telling"
    return found


def test_an_attempt_id_that_is_the_clients_gives_a_token_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def story() -> Story:
        told = Story(SEED, nodes=3, clients=4)
        told.universe.repeat = 0.1
        return told.run(sample(25, 100), faults_every=1.0)

    assert crimes(story()) == []
    monkeypatch.setattr(rules, "attempt_id", lambda claim_id, number: claim_id.partition("-")[0])
    assert crimes(story())


def test_one_round_trip_without_equal_numbers_gives_a_token_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crimes(Lagging(SEED).run(sample(30, 100))) == []
    monkeypatch.setattr(
        rules, "agreed", lambda numbers, needed: max(numbers.values()) if len(numbers) >= needed else None
    )
    assert any("twice" in crime or "after" in crime for crime in crimes(Lagging(SEED).run(sample(30, 100))))


class ServesAtOnce(Directed):
    """A wiped server that is simply set up again."""

    def replace(self, node: int) -> None:
        self.universe.nodes[node].apply(NodeRequest("install", (int(LONGEST * 1000), 0)), CLUSTER)


class WaitsButDoesNotRead(Directed):
    """A wiped server that waits one longest ttl and then starts from nothing."""

    def read_and_install(self, node: int, run: str) -> None:
        self.universe.nodes[node].apply(NodeRequest("install", (int(LONGEST * 1000), 0)), CLUSTER)


class ReadsButDoesNotWait(Directed):
    """A wiped server that reads the others at once: the votes in flight are not there yet."""

    def replace(self, node: int) -> None:
        self.read_and_install(node, self.universe.nodes[node].run)


@pytest.mark.parametrize(
    ("mutant", "in_flight"), [(ServesAtOnce, False), (WaitsButDoesNotRead, False), (ReadsButDoesNotWait, True)]
)
@pytest.mark.parametrize("fault", ["wipe", "flush"])
def test_a_server_that_forgets_gives_old_tokens(mutant: type[Directed], in_flight: bool, fault: str) -> None:
    assert crimes(Directed(SEED, fault=fault, in_flight=in_flight).run(SECONDS)) == []
    assert any("token" in crime for crime in crimes(mutant(SEED, fault=fault, in_flight=in_flight).run(SECONDS)))


def test_a_restored_backup_without_the_jump_gives_old_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crimes(Directed(SEED, fault="rollback").run(SECONDS)) == []
    monkeypatch.setattr(ModelNode, "_jump", lambda node: None)
    assert any("token" in crime for crime in crimes(Directed(SEED, fault="rollback").run(SECONDS)))


def test_evicted_counters_that_are_taken_for_zero_give_old_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Evicting(Directed):
        def _strike(self, node: int, snapshot: object = None) -> None:
            # The counters are gone, the rest is there: the node must notice, and be replaced.
            self.universe.nodes[node].memory.counters.clear()
            self.replace(node)

    assert crimes(Evicting(SEED, fault="evict").run(SECONDS)) == []
    honest = ModelNode._acquire

    def careless(node: ModelNode, *args: Any) -> list[Any]:
        node.memory.counters.setdefault("", 0)
        return honest(node, *args)

    monkeypatch.setattr(ModelNode, "_acquire", careless)
    assert any("token" in crime for crime in crimes(Evicting(SEED, fault="evict").run(SECONDS)))


class Overtaken(Story):
    """The servers' clocks jump while Ann holds; Bob comes and goes; then Ann asks whether she still holds."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, nodes=3, clients=0)
        self.universe.spawn(self._play())

    async def _play(self) -> None:
        universe = self.universe
        ann, bob = (Protocol(SimulatedFanout(universe, client)) for client in ("ann", "bob"))
        for number in range(1, 1000):
            mine = Attempt("x", f"ann-{number}.1", LONGEST, "")
            yours = Attempt("x", f"bob-{number}.1", LONGEST, "")
            if await ann.acquire(mine, universe.now + 1):
                self.judge.granted("x", mine, universe.now, universe.now)
                universe.steps = [step + self.random.choice((0, 5000)) for step in universe.steps]
                if await bob.acquire(yours, universe.now + 1):
                    self.judge.granted("x", yours, universe.now, universe.now)
                    await bob.release(yours, universe.now + 1)
                sent = universe.now
                (alive,) = await ann.extend([(mine, LONGEST)], universe.now + 1)
                if alive is True:
                    self.judge.extended("x", mine, sent, sent)
                await ann.release(mine, universe.now + 1)
            await Pause(universe.now + 0.1)


def test_an_extend_that_creates_confirms_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crimes(Overtaken(SEED).run(sample(20, 60))) == []
    honest = ModelNode._extend

    def creates(node: ModelNode, cluster: str, name: str, attempt: str, number: int, ttl: int) -> list[Any]:
        if node.memory.gate == cluster and name not in node.memory.leases:
            node.memory.leases[name] = Lease(attempt, number, "", node.clock() + ttl)
        return honest(node, cluster, name, attempt, number, ttl)

    monkeypatch.setattr(ModelNode, "_extend", creates)
    assert any("confirmed" in crime for crime in crimes(Overtaken(SEED).run(sample(20, 60))))


class SplitLists(Story):
    """Two groups of clients whose lists of servers differ: {0, 1, 2} and {2, 3, 4}, each a cluster by itself if nobody looks."""

    def __init__(self, seed: int, carries_id: bool) -> None:
        super().__init__(seed, nodes=5, clients=0)
        for number, members in enumerate(((0, 1, 2), (2, 3, 4))):
            port = Partial(self, f"g{number}", members)
            self.universe.spawn(self._client(number, Protocol(port), ["x"]))
        if carries_id:
            # The second list was never set up as this cluster; its other two members say so.
            for node in (3, 4):
                self.universe.nodes[node].memory.gate = "another"


class Partial(SimulatedFanout):
    """A client that knows only some of the servers."""

    def __init__(self, story: Story, client: str, members: tuple[int, ...]) -> None:
        super().__init__(story.universe, client)
        self.labels = [f"node-{node}" for node in members]
        self._members = members

    def send(self, talk: Any, node: int, request: NodeRequest) -> None:
        renamed: Any = talk and Renamed(talk, node)
        super().send(renamed, self._members[node], request)


class Renamed:
    """Hands answers on under the number that the client knows the node by."""

    def __init__(self, talk: Any, node: int) -> None:
        self._talk = talk
        self._node = node

    def take(self, node: int, request: NodeRequest, reply: Any) -> None:
        self._talk.take(self._node, request, reply)


def test_lists_that_differ_give_two_majorities_unless_requests_carry_the_cluster_id() -> None:
    assert crimes(SplitLists(SEED, carries_id=True).run(sample(20, 60))) == []
    assert any("twice" in crime for crime in crimes(SplitLists(SEED, carries_id=False).run(sample(20, 60))))


@pytest.mark.parametrize("nodes", [4])
def test_half_of_the_servers_is_no_majority(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert crimes(Story(SEED, nodes=nodes, clients=4).run(sample(20, 60), faults_every=1.0)) == []
    monkeypatch.setattr(rules, "majority", lambda count: count // 2)
    found = crimes(Story(SEED, nodes=nodes, clients=4).run(sample(20, 60), faults_every=1.0))
    assert any("overlapping" in crime for crime in found)


def slow_network(story: Story) -> Story:
    story._delay = lambda client, node, request: story.random.uniform(0.001, 0.018)  # type: ignore[method-assign]
    story.universe.delay = story._delay
    return story


def test_validity_that_counts_from_the_reply_gives_two_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    def story() -> Story:
        return slow_network(Story(SEED + 1, nodes=3, clients=6, ttl=(0.2, 0.3))).run(sample(40, 300))

    assert crimes(story()) == []
    monkeypatch.setattr(rules, "left", lambda ttl, drift, started, now: ttl * (1 - drift))
    assert any("overlapping" in crime for crime in crimes(story()))


def test_drift_left_out_gives_two_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    def story() -> Story:
        told = Story(SEED, nodes=3, clients=8, ttl=(0.9, 1.0))
        # The servers' clocks run fast, by a little less than the margin.
        told.universe.rates = [1.009] * 3
        told._delay = lambda client, node, request: 0.00005  # type: ignore[method-assign]
        told.universe.delay = told._delay
        return told.run(sample(15, 120))

    assert crimes(story()) == []
    monkeypatch.setattr(rules, "left", lambda ttl, drift, started, now: ttl - (now - started))
    assert any("overlapping" in crime for crime in crimes(story()))


def test_a_resource_that_checks_only_writes_loses_updates() -> None:
    def story(enters: bool) -> Story:
        return Story(SEED, nodes=3, clients=5, resource=Resource(enters=enters)).run(sample(40, 200), faults_every=1.0)

    assert crimes(story(enters=True)) == []
    assert any("lost updates" in crime for crime in crimes(story(enters=False)))


def test_a_release_without_a_tombstone_is_overtaken_by_its_own_acquire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a wrong token, but a lease that nobody holds and nobody can take until its ttl is over."""

    def stranded(burial: Callable[[ModelNode, str], object]) -> int:
        node = ModelNode(lambda: 0.0)
        node.apply(NodeRequest("install", (1000, 0)), CLUSTER)
        node.apply(NodeRequest("release", ("x", "a-1.1", 0, 1000)), CLUSTER)
        burial(node, "a-1.1")
        node.apply(NodeRequest("acquire", ("x", "a-1.1", 1000, 0, "")), CLUSTER)
        return len(node.memory.leases)

    assert stranded(lambda node, attempt: None) == 0
    assert stranded(lambda node, attempt: node.memory.tombstones.pop(attempt, None)) == 1
