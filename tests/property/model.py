"""Any backend beside `memory:`, the reference: the same steps to both, and no difference allowed.

Every world of the contract suite takes part by itself: the steps go to the backend protocol, below the engine, through
two clients of one place. What is compared after each step is what the promises are made of: who holds, who waits, in which
order, with which weight; whether tickets rise; and the answers of enter, place, leave, renew, evict and list. A claim that
lets go hands its turn on to the next one of its client, where the store has said that this stands directly behind it.

Time. A claim's ttl is SHORT or LONG. Where a backend goes by the runtime's clock (`World.runtime_clock`), both sides run on
a virtual one. Elsewhere the store's own clock rules: SHORT is then a real second on its side, and before any claim gets so old
that the two sides could disagree, the duel lets that second pass for all. Where a busy machine was slower than that, and they disagree,
nothing is shown: `out_of_step` says so, and another program is tried instead.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from typing import Any

from lockline.backends import open_backend
from lockline.backends.memory import MemoryBackend, Room
from lockline.core.backend import HandingOver
from lockline.core.claim import Claim, Gone, Grant, Kind, Waiting
from lockline.core.waiting import Hints
from lockline.runtime import clock
from lockline.runtime.blocking import BlockingRuntime, run
from lockline.runtime.looping import LoopRuntime
from tests.contract.scene import Passed
from tests.contract.worlds import World

SHORT, LONG = 5.0, 100_000.0
REAL_SHORT = 1.0
"""SHORT on a store whose clock we cannot turn."""
OLD = 0.0
"""The share of a real SHORT after which claims are let run out, before the two sides could disagree."""
TOO_OLD = 0.9
"""The share of it after which the store may have ended a claim that the reference still counts as alive."""
CLIENTS = 2


class VirtualClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.time = clock.now()

    def now(self) -> float:
        return self.time


class VirtualBlocking(BlockingRuntime):
    """Threads, on the test's clock."""

    def __init__(self, now: Any) -> None:
        super().__init__()
        self.now = now


class VirtualLoop(LoopRuntime):
    """A loop, on the test's clock."""

    def __init__(self, now: Any) -> None:
        super().__init__()
        self.now = now


class Side:
    """One of the two: its clients, and how its calls are run."""

    def __init__(self, now: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self.backends: list[Any] = []
        self.hints: list[Hints] = []
        self.now = now
        self._loop = loop

    def add(self, backend: Any, runtime: Any) -> None:
        """One more client."""
        self.hints.append(Hints(runtime, backend.reader, lambda: None))
        backend.report_to(self.hints[-1])
        self.backends.append(backend)

    def do(self, coroutine: Any) -> Any:
        return run(coroutine) if self._loop is None else self._loop.run_until_complete(coroutine)


@dataclasses.dataclass
class Entered:
    """A claim that both sides were asked to let in, and what they may be told of it later."""

    client: int
    model: Claim
    real: Claim
    waits: bool
    born: Passed | None
    """How long ago it gave its last sign of life; None once its end is no matter of luck."""
    granted: bool = False
    """It has been told that it holds, and asks no more where it stands."""
    behind: str = ""
    """Whom the store has said that it stands directly behind."""


class Duel:
    """The reference and the backend under test, step by step."""

    def __init__(self, world: World, flavour: str) -> None:
        self.virtual = world.runtime_clock
        self.ends_late = world.sessions
        """Whether the store ends claims by its own work, for which a busy machine may give it no time."""
        self.clock = VirtualClock()
        self._loop = asyncio.new_event_loop() if flavour == "asyncio" else None
        room = Room(self.clock.now)
        blocking = VirtualBlocking(self.clock.now)
        self.model = Side(self.clock.now, None)
        for _ in range(CLIENTS):
            self.model.add(MemoryBackend(room, blocking, "memory:"), blocking)
        now = self.clock.now if self.virtual else clock.now
        place = world.place()
        self.real = Side(now, self._loop)
        for _ in range(CLIENTS):
            runtime: Any
            if self._loop is None:
                runtime = VirtualBlocking(now) if self.virtual else BlockingRuntime()
            else:
                runtime = VirtualLoop(now) if self.virtual else LoopRuntime()
            self.real.add(open_backend(place, runtime, dict(world.options())), runtime)
        self._ids = (f"{duel}-{number}" for duel in [world.unique()] for number in itertools.count(1))
        self._rounds = itertools.count(1)
        self.begin()

    def begin(self) -> None:
        """A new program, on names that none before it has used."""
        self.prefix = f"round{next(self._rounds)}/"
        self.claims: list[Entered] = []
        self._slow = False
        self.names: set[str] = set()

    def end(self) -> None:
        """Leave nothing behind for the next program."""
        for entered in self.claims:
            self.real.do(self._of_real(entered).leave(entered.real, self.real.now() + 60))

    def close(self) -> None:
        for backend in self.real.backends:
            self.real.do(backend.close())
        if self._loop is not None:
            self._loop.close()

    def _of_model(self, entered: Entered) -> Any:
        return self.model.backends[entered.client]

    def _of_real(self, entered: Entered) -> Any:
        return self.real.backends[entered.client]

    # -- time --------------------------------------------------------------------------------------

    def pass_time(self, share: float = 1.2) -> None:
        """Let so many SHORTs pass on both sides."""
        self.clock.time += SHORT * share
        if self.virtual:
            return
        if share > 1:
            for entered in self.claims:
                entered.born = None
        if self._loop is not None:
            # A client whose loop stands still is a frozen one, and the end of its claims another story.
            self._loop.run_until_complete(asyncio.sleep(REAL_SHORT * share))
        else:
            time.sleep(REAL_SHORT * share)

    def keep_in_step(self) -> None:
        """Where the store has a clock of its own: no SHORT claim may get so old that its end is a matter of luck."""
        if self.virtual:
            return
        if self._oldest() > REAL_SHORT * OLD:
            self.pass_time()
            # A store need not look at the time of a claim that leaves and stands alone: its client has done so. As `compare` does.
            for name in self.names:
                self.real.do(self.real.backends[0].look(name, self.real.now() + 60))

    def out_of_step(self) -> bool:
        """Whether a SHORT claim got so old on the store's side that its end there, and not on the other, is no difference."""
        return not self.virtual and (self._slow or self._oldest() > REAL_SHORT * TOO_OLD)

    def _oldest(self) -> float:
        """How long ago the SHORT claim that has been silent for longest gave its last sign of life."""
        ages = [one.born() for one in self.claims if one.model.ttl == SHORT and one.born is not None]
        return max(ages, default=0.0)

    # -- steps -------------------------------------------------------------------------------------

    def enter(self, client: int, name: str, kind: Kind, weight: int, capacity: int, ttl: float, wait: bool) -> None:
        self.keep_in_step()
        name = self.prefix + name
        self.names.add(name)
        model = Claim(name, next(self._ids), f"client-{client}", kind, weight, capacity, ttl, 0.0, "")
        real = model._replace(ttl=ttl if self.virtual or ttl != SHORT else REAL_SHORT)
        entered = Entered(client, model, real, wait, Passed())
        if self._enter(entered) is not None:
            self.claims.append(entered)

    def _enter(self, entered: Entered) -> Any:
        self.real.hints[entered.client].expect(entered.real.id)
        expected = self.model.do(
            self._of_model(entered).enter(entered.model, wait=entered.waits, until=self.clock.time + 60)
        )
        got = self.real.do(self._of_real(entered).enter(entered.real, wait=entered.waits, until=self.real.now() + 60))
        assert type(got) is type(expected), f"enter {entered.model}: {got}, and by the rule {expected}"
        self._take_in(entered, got)
        return got

    def _take_in(self, entered: Entered, got: Any) -> None:
        """What the store says of the one directly ahead must be so, unless that one is gone by now."""
        if type(got) is not Waiting or not got.behind or entered.model.weight != entered.model.capacity:
            return
        entered.behind = got.behind
        line = [claim.id for claim in self._model_line(entered.model.name).claims]
        ahead = line[: line.index(entered.model.id)] if entered.model.id in line else []
        assert got.behind not in ahead[:-1], f"{entered.model} is said to be behind {got.behind}, and it is {ahead[-1]}"
        (seen,) = [
            claim.token
            for claim in self.real.do(self._of_real(entered).look(entered.model.name, self.real.now() + 60)).claims
            if claim.id == entered.model.id
        ] or [got.ticket]
        assert got.ticket == seen, f"the ticket of {entered.model}: {got.ticket}, and others see {seen}"

    def _heir_of(self, entered: Entered) -> Entered | None:
        """Who holds as soon as this one lets go, by what its own client was told."""
        if entered.model.weight != entered.model.capacity or not self._holds(entered):
            return None
        return next(
            (
                one
                for one in self.claims
                if one.behind == entered.model.id
                and one.client == entered.client
                and not one.granted
                and any(claim.id == one.model.id for claim in self._model_line(one.model.name).claims)
            ),
            None,
        )

    def enter_again(self, entered: Entered) -> None:
        """The same request once more, as a network may deliver it; only while the claim stands."""
        self.keep_in_step()
        if any(claim.id == entered.model.id for claim in self._model_line(entered.model.name).claims):
            self._enter(entered)

    def leave(self, entered: Entered) -> None:
        self.keep_in_step()
        heir = self._heir_of(entered)
        next_one = {} if heir is None else {"heir": heir.model.id}
        expected = self.model.do(self._of_model(entered).leave(entered.model, self.clock.time + 60, **next_one))
        got = self.real.do(self._of_real(entered).leave(entered.real, self.real.now() + 60, **next_one))
        if heir is not None:
            assert self._holds(heir), f"{heir.model} was handed a turn that is not its own"
            heir.granted = True
        assert got == expected, f"leave {entered.model}: {got}, and by the rule {expected}"
        self.claims.remove(entered)

    def hand_over(self, client: int, entered: Entered) -> None:
        """Somebody of that client takes this one's place; where the store cannot, nothing happens."""
        if not isinstance(self._of_real(entered), HandingOver):
            return
        self.keep_in_step()
        new_id = next(self._ids)
        model = entered.model._replace(id=new_id, owner=f"client-{client}")
        new = Entered(client, model, entered.real._replace(id=new_id, owner=model.owner), False, Passed(), True)
        for _ in range(2):
            expected = self.model.do(self._of_model(new).hand_over(entered.model.id, new.model, self.clock.time + 60))
            got = self.real.do(self._of_real(new).hand_over(entered.real.id, new.real, self.real.now() + 60))
            assert type(got) is type(expected), f"hand over {entered.model}: {got}, and by the rule {expected}"
        if type(got) is Grant:
            self.claims[self.claims.index(entered)] = new

    def renew(self, client: int, batch: list[Entered], lighter: bool) -> None:
        self.keep_in_step()
        self._renew(client, batch, lighter)

    def _renew(self, client: int, batch: list[Entered], lighter: bool) -> None:
        batch = [entered for entered in batch if entered.client == client]
        if not batch:
            return
        if lighter:
            for entered in batch:
                if self._holds(entered):
                    entered.model = entered.model._replace(weight=1, kind="read")
                    entered.real = entered.real._replace(weight=1, kind="read")
        sent = Passed()
        expected = self.model.do(
            self.model.backends[client].renew([entered.model for entered in batch], self.clock.time + 60)
        )
        got = self.real.do(self.real.backends[client].renew([entered.real for entered in batch], self.real.now() + 60))
        same = [isinstance(one, Gone) == isinstance(two, Gone) for one, two in zip(got, expected, strict=True)]
        assert all(same), f"renew {[entered.model for entered in batch]}: {got}, and by the rule {expected}"
        for entered in batch:
            self._slow = self.out_of_step()
            entered.born = sent

    def evict(self, client: int, name: str) -> None:
        self.keep_in_step()
        name = self.prefix + name
        expected = self.model.do(self.model.backends[client].evict(name, self.clock.time + 60))
        got = self.real.do(self.real.backends[client].evict(name, self.real.now() + 60))
        assert got == expected, f"evict {name}: {got}, and by the rule {expected}"

    def crash(self, client: int) -> None:
        """That client is heard of no more, while the others renew: its SHORT claims end, theirs do not."""
        self.keep_in_step()
        for entered in self.claims:
            if entered.client == client:
                entered.born = None
        for share in (0.6, 0.6, 0.0):
            for other in range(CLIENTS):
                if other != client:
                    self._renew(other, self.claims, lighter=False)
            self.pass_time(share)
        self.claims = [entered for entered in self.claims if entered.client != client or entered.model.ttl == LONG]

    # -- what is compared --------------------------------------------------------------------------

    def _model_line(self, name: str) -> Any:
        return self.model.do(self.model.backends[0].look(name, self.clock.time + 60))

    def _holds(self, entered: Entered) -> bool:
        line = self._model_line(entered.model.name)
        return any(claim.id == entered.model.id and claim.holds for claim in line.claims)

    def compare(self) -> None:
        """Nothing may differ, whoever looks."""
        self.keep_in_step()
        for name in sorted(self.names):
            expected = self._model_line(name)
            for backend in self.real.backends:
                got = self._look(backend, name, expected)
                assert self._essence(got) == self._essence(expected), f"the line of {name}"
                tickets = [claim.token for claim in got.claims]
                assert tickets == sorted(set(tickets)), f"tickets of {name} in the order of the line: {tickets}"
        expected_names = self.model.do(self.model.backends[0].list(self.prefix, self.clock.time + 60))
        got_names = self.real.do(self.real.backends[0].list(self.prefix, self.real.now() + 60))
        assert got_names == expected_names
        for entered in self.claims:
            if entered.waits and not entered.granted:
                self._compare_turn(entered)

    def _look(self, backend: Any, name: str, expected: Any) -> Any:
        """The line, once the store has ended the claims that are over, unless it needs so long for that that others are over too."""
        over = time.monotonic() + 60
        while True:
            got = self.real.do(backend.look(name, self.real.now() + 60))
            there, wanted = ({claim.id for claim in line.claims} for line in (got, expected))
            if not (self.ends_late and wanted < there) or self.out_of_step() or time.monotonic() > over:
                return got
            if self._loop is not None:
                self._loop.run_until_complete(asyncio.sleep(0.05))
            else:
                time.sleep(0.05)

    def _compare_turn(self, entered: Entered) -> None:
        expected = self.model.do(self._of_model(entered).place(entered.model, self.clock.time + 60))
        got = self._place(entered)
        # A store over a network tells by a push, and may answer from what it knows until that has come.
        patience = time.monotonic() + 60
        while (
            type(got) is Waiting and type(expected) is not Waiting and time.monotonic() < patience and not self.virtual
        ):
            self.real.do(self.real.hints[entered.client].wait(entered.real.id, self.real.now() + 0.05))
            got = self._place(entered)
        assert type(got) is type(expected), f"place of {entered.model}: {got}, and by the rule {expected}"
        self._take_in(entered, got)
        # Asked of claims that wait: who holds hears of its end by a renewal.
        entered.granted = type(got) is Grant

    def _place(self, entered: Entered) -> Any:
        return self.real.do(self._of_real(entered).place(entered.real, self.real.now() + 60))

    @staticmethod
    def _essence(line: Any) -> list[tuple[Any, ...]]:
        return [(claim.id, claim.holds, claim.weight, claim.capacity, claim.kind, claim.owner) for claim in line.claims]


__all__ = ["CLIENTS", "LONG", "SHORT", "Duel", "Entered", "Grant", "Waiting"]
