"""The mistakes of a store."""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from lockline.core.claim import Claim
from lockline.core.rule import admitted
from lockline.runtime.clock import now

from .toy import Stand, Store


class TokenOfSeconds(Store):
    def ticket(self, claim: Claim) -> int:
        return int(time.time())


class RandomToken(Store):
    def ticket(self, claim: Claim) -> int:
        return random.randrange(1, 1 << 40)


class RestartingToken(Store):
    def ticket(self, claim: Claim) -> int:
        line = self.lines.get(claim.name)
        return max((stand.ticket for stand in line), default=0) + 1 if line else 1


class PlaceAsToken(Store):
    def ticket(self, claim: Claim) -> int:
        return len(self.lines.get(claim.name, ())) + 1


class WrappingToken(Store):
    def ticket(self, claim: Claim) -> int:
        return next(self.tickets) % 256 + 1


class TokenOfTheDead(Store):
    """The counter goes up when a claim is released, and only then."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: defaultdict[str, int] = defaultdict(int)

    def ticket(self, claim: Claim) -> int:
        return self.counts[claim.name] + len(self.lines[claim.name]) + 1

    def leave(self, claim: Claim) -> list[Any]:
        self.counts[claim.name] += 1
        return super().leave(claim)


class NeverExpires(Store):
    def expired(self, stand: Stand) -> bool:
        return False


class WaitersNeverExpire(Store):
    """One that died while it waited holds the lock from its turn on, for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: set[str] = set()

    def stands(self, line: list[Stand], stand: Stand) -> list[Any]:
        answer = super().stands(line, stand)
        if answer[0] == "granted":
            self.heard.add(stand.claim.id)
        return answer

    def expired(self, stand: Stand) -> bool:
        return stand.claim.id in self.heard and super().expired(stand)


class ExpiresEarly(Store):
    def lasts(self, claim: Claim) -> float:
        return claim.ttl * 0.8


class WholeSeconds(Store):
    def lasts(self, claim: Claim) -> float:
        return int(claim.ttl)


class ClientsExpiry(Store):
    """What the client's clock said when it came, and the server's clock reads later."""

    def lasts(self, claim: Claim) -> float:
        return claim.since + claim.ttl - time.time()

    def renew(self, claim: Claim) -> list[Any]:
        return super().renew(claim._replace(since=time.time()))


class RenewalShortens(Store):
    def renew(self, claim: Claim) -> list[Any]:
        stand = self.find(self.line(claim.name), claim)
        if stand is None:
            return ["gone"]
        stand.expires = now() + claim.ttl / 4
        return ["yes"]


class Impatient(Store):
    PATIENCE = 0.3

    def line(self, name: str) -> list[Stand]:
        line = super().line(name)
        holders = self.holders(line)
        if holders and len(line) > holders and now() - line[holders].entered > self.PATIENCE:
            del line[0]
            self.tell(line)
        return line


class RenewalCreates(Store):
    def renew(self, claim: Claim) -> list[Any]:
        line = self.line(claim.name)
        if self.find(line, claim) is None:
            line.insert(0, Stand(claim, "", 1, now() + claim.ttl))
            line[0].told = True
        return super().renew(claim)


class ReleaseWithoutCompare(Store):
    def leave(self, claim: Claim) -> list[Any]:
        line = self.line(claim.name)
        if line:
            del line[0]
            self.tell(line)
        return ["yes"]


class CheckThenAct(Store):
    """Two that come within a moment both find it free."""

    MOMENT = 0.002

    def enter(self, claim: Claim, client: str, wait: bool) -> list[Any]:
        line = self.line(claim.name)
        if self.find(line, claim) is None and len(line) == 1 and now() - line[0].entered < self.MOMENT:
            line.append(Stand(claim._replace(weight=0), client, self.ticket(claim), now() + claim.ttl))
            return ["granted", line[1].ticket]
        return super().enter(claim, client, wait)


class OneTooMany(Store):
    def holders(self, line: Sequence[Stand]) -> int:
        held = admitted(line)
        return min(held + 1, len(line)) if line and line[0].claim.kind == "permit" else held


class ReadersBesideWriters(Store):
    def holders(self, line: Sequence[Stand]) -> int:
        held = admitted(line)
        while held and held < len(line) and line[held].claim.kind == "read":
            held += 1
        return held


class WriterBesideReaders(Store):
    def holders(self, line: Sequence[Stand]) -> int:
        held = admitted(line)
        if held and held < len(line) and line[held].claim.kind == "write" and line[0].claim.kind == "read":
            held += 1
        return held


class Forgets(Store):
    EVERY = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.wiped = now()

    def line(self, name: str) -> list[Stand]:
        if now() - self.wiped > self.EVERY:
            self.wiped = now()
            self.lines.clear()
            self.tickets = itertools.count(1)
        return super().line(name)


class StaleReplica(Store):
    """A copy is taken now and then, and becomes the store a little later."""

    EVERY = 1.0
    BEHIND = 0.05

    def __init__(self) -> None:
        super().__init__()
        self.taken = now()
        self.copy: dict[str, list[Stand]] | None = None

    def line(self, name: str) -> list[Stand]:
        if self.copy is None and now() - self.taken > self.EVERY:
            self.copy, self.taken = copy.deepcopy(self.lines), now()
        elif self.copy is not None and now() - self.taken > self.BEHIND:
            self.lines, self.copy = self.copy, None
        return super().line(name)


class Quorum(Store):
    """Three servers without a line: whoever has a majority holds, the others ask again."""

    NEEDED = 2
    ASKED = 3

    def __init__(self) -> None:
        super().__init__()
        self.servers = [Store() for _ in range(3)]
        for server in self.servers:
            server.tickets = itertools.count(random.randrange(1, 50))
        self.highest: defaultdict[str, int] = defaultdict(int)

    def number(self, claim: Claim, tickets: list[int]) -> int:
        self.highest[claim.name] = max(self.highest[claim.name] + 1, *tickets)
        return self.highest[claim.name]

    def enter(self, claim: Claim, client: str, wait: bool) -> list[Any]:
        asked = random.sample(self.servers, self.ASKED)
        said = [server.enter(claim, client, False) for server in asked]
        tickets = [answer[1] for answer in said if answer[0] == "granted"]
        if len(tickets) >= self.NEEDED:
            return ["granted", self.number(claim, tickets)]
        self.leave(claim)
        return ["waits", 1, 0.005, "nowhere"] if wait else ["no"]

    def place(self, claim: Claim) -> list[Any]:
        return self.enter(claim, "", True)

    def leave(self, claim: Claim) -> list[Any]:
        said = [server.leave(claim) for server in self.servers]
        return ["yes"] if ["yes"] in said else ["gone"]

    def renew(self, claim: Claim) -> list[Any]:
        said = [server.renew(claim) for server in self.servers]
        # One that waits stands nowhere, and is not to be missed.
        return ["yes"] if said.count(["yes"]) >= self.NEEDED else ["gone"]

    def look(self, name: str) -> list[Any]:
        return self.servers[0].look(name)

    def names(self, prefix: str) -> list[str]:
        return sorted({name for server in self.servers for name in server.names(prefix)})

    def evict(self, name: str) -> list[Any]:
        return [sum(server.evict(name)[0] for server in self.servers)]


class MajorityOfOne(Quorum):
    NEEDED = 1
    ASKED = 2


class NoPromote(Quorum):
    ASKED = 2

    def number(self, claim: Claim, tickets: list[int]) -> int:
        return max(tickets)


class RejoinsEmpty(Quorum):
    EVERY = 0.4

    def __init__(self) -> None:
        super().__init__()
        self.wiped = now()

    def enter(self, claim: Claim, client: str, wait: bool) -> list[Any]:
        if now() - self.wiped > self.EVERY:
            self.wiped = now()
            random.choice(self.servers).lines.clear()
        return super().enter(claim, client, wait)


class LosesWakeUps(Store):
    def push(self, stand: Stand) -> None:
        if stand.ticket % 7:
            super().push(stand)


class TellsNobody(Store):
    def push(self, stand: Stand) -> None: ...


class LosesReleases(Store):
    def leave(self, claim: Claim) -> list[Any]:
        stand = self.find(self.line(claim.name), claim)
        return ["yes"] if stand is not None and not stand.ticket % 12 else super().leave(claim)


class LastComeFirstServed(Store):
    def insert(self, line: list[Stand], stand: Stand) -> None:
        line.insert(self.holders(line), stand)


class SkipsWaiters(Store):
    def insert(self, line: list[Stand], stand: Stand) -> None:
        held = self.holders(line)
        line.insert(max(held, len(line) - 1) if not stand.ticket % 3 else len(line), stand)


class SortedByClients(Store):
    def insert(self, line: list[Stand], stand: Stand) -> None:
        line.append(stand)
        line.sort(key=lambda one: one.claim.since)


class ReadersOvertake(Store):
    def insert(self, line: list[Stand], stand: Stand) -> None:
        held = self.holders(line)
        joins = stand.claim.kind == "read" and held and line[0].claim.kind == "read"
        line.insert(held if joins else len(line), stand)


class LeavesDebris(Store):
    """What has left is no obstacle any more, and is still there."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: set[str] = set()

    def leave(self, claim: Claim) -> list[Any]:
        self.marked.add(claim.name)
        return super().leave(claim)

    def names(self, prefix: str) -> list[str]:
        return sorted({*super().names(prefix), *(name for name in self.marked if name.startswith(prefix))})

    def evict(self, name: str) -> list[Any]:
        self.marked.discard(name)
        return super().evict(name)
