"""What a system must offer to carry lines. Every primitive goes through these few calls.

A backend is made for one runtime (blocking or asyncio) and used by one client. All calls are `async def`;
on the blocking runtime they never suspend. `until` is always a moment on `runtime.now()`: a call that has no answer by
then raises `BackendUnavailable`. Errors of the client library never come out raw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from ..guarantees import Guarantees
from ..runtime import Reader, Signal
from .claim import Ceiling, Claim, Gone, Grant, Line, Record, Unanswered, Waiting
from .waiting import Hints


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `lockline doctor` has to say about a backend."""

    level: Literal["ok", "warning", "error"]
    text: str
    cure: str = ""


Findings = list[Finding]

REFUSAL = 0.2
"""How long a call that does not insist goes on trying to connect while it could send nothing."""


class Backend(Protocol):
    """One system that carries lines.

    `enter` with `wait`, `leave` and `renew` insist: they try again until `until`, whatever stands in the way. The others, and
    `enter` without `wait`, do not: where no connection can be had and so nothing could be sent, they raise after `REFUSAL`.
    A BackendUnavailable says by `unsent` that nothing of the call can have reached the store.
    """

    guarantees: Guarantees
    url: str
    """Where it is, without secrets; for people and for the child of `lockline run`."""
    reader: Reader | None
    """How a waiting thread reads pushes itself; None where somebody else reads them, as always in asyncio."""

    def report_to(self, hints: Hints) -> None:
        """Where to pass on what is pushed; told once, before the first claim."""

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        """Put the claim at the end of its line; with `wait` false, only if it would hold at once (else None).

        The same claim id again changes nothing and gives the same answer.
        """

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        """Where a claim that waits stands now, and when it has to be looked at again at the latest.

        Asked after each hint and when that moment has come: a push is only ever a hint. Does not renew the claim.
        """

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        """Remove this claim and no other, waiting or holding; whether it was still there.

        `heir` is a claim of this client's of which `Waiting.behind` has said that it stands directly behind: it holds from now
        on, by the client's own word. It need not be told, and must not be taken for dead. Never given where nothing was said.
        """

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        """As `leave`, for many, in as few requests as the system allows.

        Where some got no answer it raises, and asking again for all of them is harmless.
        """

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Give each claim its ttl again from now, never less than it has; None for each that lives on.

        Never creates. A claim's weight may have gone down since (a writer became a reader): take it over,
        and let in whoever has room now. A claim whose ttl has run out is gone, even if nobody has removed it yet.
        """

    async def look(self, name: str, until: float) -> Line:
        """The whole line, without changing it."""

    async def list(self, prefix: str, until: float) -> list[str]:
        """The names that have a live claim, sorted."""

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        """Remove the holders of the line, let in the next, tell the victims; how many they were.

        With a token only the holder that has it, and nobody if none has: one step with the look.
        """

    async def attend(self) -> None:
        """Called by the keeper now and then while claims are held: read what lies unread, and from the second time on listen
        for what is pushed about a claim that is held (a short hold is not worth it). Never blocks.
        """

    async def examine(self, until: float) -> Findings:
        """What is good and what is dangerous about this system as it is set up."""

    async def close(self) -> None:
        """Let go of connections and files. Claims have been withdrawn before."""

    def forked(self) -> None:
        """In the child after a fork: drop everything inherited without a word to the server."""


# What only some systems have. Found by `isinstance`, once per client.


@runtime_checkable
class Guarding(Protocol):
    """A system whose own transactions can check a claim."""

    def guard(self, claim: Claim, token: int) -> object:
        """What makes the caller's own transaction on that system fail once the claim is gone. No I/O."""


@runtime_checkable
class GuardingCommits(Protocol):
    """A system where a connection of the caller's own has transactions that can check a claim."""

    def guard_commit(self, claim: Claim, token: int, connection: object) -> object:
        """Let the commit of the transaction that is open there fail once the claim is gone; to be awaited where the connection is."""


@runtime_checkable
class Narrow(Protocol):
    """A system that a client asks over few connections, or that serves only so many of its requests at once."""

    at_once: int
    """How many `enter`s are under way at the same time, at most: the others of a crowd have not asked yet, and wait for nothing but that."""


@runtime_checkable
class Sessional(Protocol):
    """A system that ties claims to a session of the client."""

    def ceiling(self, claim: Claim) -> Ceiling:
        """Until when the session that carries an entered claim may be trusted. No I/O."""


@runtime_checkable
class Entrusting(Protocol):
    """A system where others know of our death by a handle that the kernel closes."""

    def entrust(self, pid: int) -> int:
        """The handle, before the first claim: as long as the process `pid` has it too, we count as alive."""


@runtime_checkable
class Calling(Protocol):
    """A system on which another process can speak to our keeper."""

    def signal(self) -> Signal:
        """What the keeper waits on, which a word about a held claim sets too."""


@runtime_checkable
class Keeping(Protocol):
    """A system that keeps a small value beside a line, written under the token, and knows what time it is."""

    async def kept(self, name: str, what: str, until: float, token: int = 0, ttl: float = 0.0) -> Record:
        """What is kept there, and the time. With a token nobody with a lower one writes from now on, for at least the ttl.

        As at a fence: the mark goes up when the new holder arrives, or an old one could still write between its read and write.
        """

    async def keep(self, name: str, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
        """Keep this value for that long; False, and nothing is changed, if a higher token has been here. Can be repeated.

        A store may ask for more, in the same step: that the claim with this token stands in its line, so that no higher one holds.
        """


@runtime_checkable
class TellsWhatIsKept(Protocol):
    """A system that sends a value along to the clients that wait in its line, before it wakes them."""

    def expect_kept(self, name: str, what: str) -> None:
        """From now on, remember what comes."""

    def told_of_kept(self, name: str, what: str) -> Record | None:
        """What has come since, if anything has; expected no more. Sent when it was written, and nobody knows how long ago that was."""


@runtime_checkable
class KeepingLess(Protocol):
    """A system that takes no values as large as the others do."""

    largest_kept: int
    """Bytes of a value."""


@runtime_checkable
class AskedForTime(Protocol):
    """A system that keeps values, but tells the time only to those who ask, and not exactly."""

    async def tell_time(self, span: float, until: float) -> None:
        """Find out what time it is there, for what is looked up next: exactly enough to measure such a span, if that can be had."""


@runtime_checkable
class LookingAtMany(Protocol):
    """A system that shows many lines for less than a request each."""

    async def look_many(self, names: Sequence[str], until: float) -> Sequence[Line]:
        """Each of these lines as `look` shows it, in this order. Not one moment for all: each line is one.

        A line that cannot be read is left out; where none can, it raises.
        """


@runtime_checkable
class Watching(Protocol):
    """A system that tells of changes also one who stands in no line."""

    async def watch(self, name: str, watcher: str, until: float) -> bool:
        """Tell a hint for `begun(watcher)` as soon as the next change of the line will be told, one for the watcher when it comes; whether it can.

        Asked again after each change; again before that, it has begun at once. What changes with the time alone need not be told.
        """

    async def unwatch(self, watcher: str) -> None:
        """Nobody is there to be told any more. Never waits for an answer."""


@runtime_checkable
class EndingWithClient(Protocol):
    """A system that may end the claims of a client that is no more before their ttl is over."""

    ends_with_client: bool


@runtime_checkable
class HandingOver(Protocol):
    """A system on which another claim can take the place of one that holds."""

    async def hand_over(self, old: str, claim: Claim, until: float) -> Grant | Waiting | Gone:
        """Let this claim hold in the place of the one with that id, in one step: nobody comes between, and nobody else moves.

        Its ticket is higher than every one on the line so far; so whoever waits gets a higher one still, in the same order. Weight and
        capacity are the old one's. Again it changes nothing; Waiting if the old one waits, Gone if it is gone. A claim whose id begins
        with `DETACHED` is nobody's: it ends by its ttl, whoever dies.
        """


@runtime_checkable
class Lasting(Protocol):
    """A system on which a claim can outlive its client."""

    async def last(self, claim: Claim, ttl: float, until: float) -> bool:
        """Let a claim that holds go on for that long and then end by itself, whoever dies; whether it was still there.

        A store that cannot shorten what the claim has lets it go on for that.
        """
