"""Requests to Consul: to one agent as long as it answers, then to another; every request may be repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from ...core.backend import REFUSAL
from ...errors import BackendUnavailable, ClientClosed
from ...runtime import Runtime
from ..keyed.clock import SeenClock
from ..url import Endpoint
from .commands import Step
from .connection import ConsulLink, ConsulLinks, ConsulReply, ConsulRequest, NoReply, TooLate, Unsent
from .target import ConsulTarget

T = TypeVar("T")

PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""How long to wait after an agent could not serve; a little longer each time."""
MOST: Final = 4
"""Connections for the requests of one client, whatever the number of its threads and tasks; one more listens."""
A_CONNECTION: Final = 2.0
"""How long one agent of several has for an answer before the next is asked."""
ALONE: Final = 4.0
"""The same of the only one: it may be slow, and a connection may have died without a word while others would work."""
LONGEST_CONNECTION: Final = 30.0
"""The same when none of them was quick enough."""
FOREVER: Final = float("inf")
NO_NODE: Final = b"Missing node registration"
"""What a server says, with a 500, when a session is wanted on a node that the catalog does not have."""
SAYS_NO: Final = frozenset({400, 401, 403, 405, 413})
"""Answers that stay the same however often one asks."""


RIGHTS: Final = (
    "; the token needs key_prefix write for Lockline's prefix, and session and node write for the node lockline-claims"
)


class ConsulRefused(BackendUnavailable):
    """Consul answered, and the answer is no."""

    permanent = True


class ConsulAnswer(NamedTuple):
    """What came back."""

    reply: ConsulReply
    repeated: bool
    """Whether it went out more than once: an earlier time may have been applied, or still be on its way."""


class Transacted(NamedTuple):
    """What became of a transaction: all of it was done, or nothing."""

    entries: list[dict[str, Any]]
    """What its steps read and put, in their order."""
    failed: frozenset[int]
    """Which of its steps did not hold; nothing was done if there is one."""
    why: str
    repeated: bool


class ConsulChannel:
    """The way to Consul of one client: few connections, whatever the number of threads, tasks and claims."""

    def __init__(self, target: ConsulTarget, runtime: Runtime, most: int = MOST) -> None:
        self.target = target
        self._runtime = runtime
        self.now = runtime.now
        self._links: ConsulLinks
        if runtime.flavour == "blocking":
            from .connection_blocking import BlockingConsulLinks

            self._links = BlockingConsulLinks(target, most)
        else:
            from .connection_asyncio import LoopConsulLinks

            self._links = LoopConsulLinks(target, most)
        self._at = 0
        self._patience = A_CONNECTION
        """Doubled with each silence: where all agents are slow, going from one to the next would never get an answer."""
        self._closed = False
        self.clock: SeenClock | None = None
        """Where it is noted what time it is at the agents, once somebody wants to know."""

    def close(self) -> None:
        """Let go of the connections."""
        self._closed = True
        self._links.close()

    def reset(self) -> None:
        """In a forked child."""
        self._links.forget()

    def path(self, path: str, **query: str) -> str:
        """Path and query of a request."""
        if self.target.datacenter is not None:
            query["dc"] = self.target.datacenter
        said = "&".join(f"{name}={quote(value, safe='')}" if value else name for name, value in query.items())
        return f"/v1/{quote(path)}" + (f"?{said}" if said else "")

    def apart(self) -> ConsulLink:
        """A connection of its own to the agent that answers."""
        return self._links.apart(self.target.endpoints[self._at])

    async def transact(
        self, steps: Sequence[Step], until: float, *, insist: bool = True, consistent: bool = False,
        only_in_time: bool = False,
    ) -> Transacted:  # fmt: skip
        """These steps, all or none; one that only reads asks the leader alone, unless it has to be consistent."""
        body = json.dumps([{"KV": step} for step in steps], separators=(",", ":")).encode()
        target = self.path("txn", **({"consistent": ""} if consistent else {}))
        reply, repeated = await self.ask(ConsulRequest("PUT", target, body, only_in_time), until, insist=insist)
        if reply.status != 409:
            return Transacted(self.understand(reply, _results), frozenset(), "", repeated)
        failed = self.understand(reply, _errors)
        if any("Permission denied" in what for what in failed.values()):
            raise self._refused("Permission denied", RIGHTS, repeated)
        return Transacted([], frozenset(failed), "; ".join(failed.values()), repeated)

    def understand(self, reply: ConsulReply, meaning: Callable[[Any], T]) -> T:
        """What this answer says; BackendUnavailable for one that is not Consul's: a page to log in, another server."""
        try:
            return meaning(json.loads(reply.body))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            problem = f"Consul does not answer like this ({reply.status}): {_shortened(reply.body)}"
            raise self._unavailable(problem, True, True) from None

    async def ask(self, request: ConsulRequest, until: float, *, insist: bool = True) -> ConsulAnswer:
        """One request until it is answered; ConsulRefused for an answer that asking again does not change."""
        problem = ""
        pause, went, said, repeated = PAUSE, False, False, False
        give_up = FOREVER if insist else self.now() + REFUSAL
        several = len(self.target.endpoints) > 1
        while True:
            if self._closed:
                raise ClientClosed()
            at = self._at
            sent = True
            began = self.now()
            # Of several another one has time; at the only one it is worth standing in line for a connection.
            patience = min(until, began + self._patience) if several else until
            most = FOREVER if several else max(self._patience, ALONE)
            try:
                reply = await self._links.exchange(self.target.endpoints[at], request, patience, most)
                went = True
                if self.clock is not None:
                    self.clock.note(self.target.endpoints[at], reply.date, began, self.now())
                if self.now() - began < A_CONNECTION:
                    self._patience = A_CONNECTION
                if reply.status < 300 or reply.status in (404, 409) or NO_NODE in reply.body:
                    return ConsulAnswer(reply, repeated)
                problem, said = f"{self.target.endpoints[at]} says {reply.status}: {_shortened(reply.body)}", True
                if reply.status in SAYS_NO or b"Invalid Session TTL" in reply.body:
                    raise self._refused(problem, _cure(reply), repeated)
                # It answers, so the connection is well; what it lacks (a leader) comes back, or another agent has it.
                pause = min(pause * 1.5, LONGEST_PAUSE)
            except Unsent as unsent:
                sent = False
                problem = problem or str(unsent)
                # At the only agent, or in the caller's last moments, there is nothing to wait for.
                late = isinstance(unsent, TooLate) and patience >= until
                if late or (not went and self.now() >= give_up):
                    raise self._unavailable(problem, went, said, late) from None
            except NoReply as silence:
                went = True
                if self.now() >= min(patience, began + most):
                    waited = min(patience - began, most)
                    self._patience = min(max(self._patience, 2 * waited), LONGEST_CONNECTION)
                    # What lies idle has died as well, mostly, and would cost a try each.
                    self._links.drop_idle()
                problem = problem if problem and self.now() >= until else str(silence)
            self.turn_from(self.target.endpoints[at])
            if self.now() + pause >= until:
                raise self._unavailable(problem, went, said) from None
            await self._runtime.sleep(pause)
            repeated = repeated or sent

    def turn_from(self, endpoint: Endpoint) -> None:
        """Ask another agent than this one; of many who found it silent, the first turns away from it."""
        if self.target.endpoints[self._at] == endpoint:
            self._at = (self._at + 1) % len(self.target.endpoints)

    def _refused(self, problem: str, cure: str, repeated: bool) -> ConsulRefused:
        error = ConsulRefused(f"Consul at {self.target.url} refused: {problem}{cure}")
        # The request went out before, without an answer: that one may have been applied.
        error.unsent = not repeated
        return error

    def _unavailable(self, problem: str, went: bool, said: bool, late: bool = False) -> BackendUnavailable:
        what = "could not serve" if said else "gave no answer in time" if went else "cannot be reached"
        if late and not went:
            what = "was not asked"
        error = BackendUnavailable(f"Consul at {self.target.url} {what}: {problem}")
        error.unsent = not went
        return error


def entries_of(told: Any) -> list[dict[str, Any]]:
    """Keys as Consul shows them."""
    entries: list[dict[str, Any]] = list(told)
    for entry in entries:
        entry["Key"], entry["CreateIndex"], entry["ModifyIndex"]
    return entries


def _results(told: Any) -> list[dict[str, Any]]:
    return entries_of(result["KV"] for result in told["Results"] or ())


def _errors(told: Any) -> dict[int, str]:
    return {error["OpIndex"]: str(error["What"]) for error in told["Errors"]}


def _shortened(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    return text if len(text) <= 200 else f"{text[:200]}…"


def _cure(reply: ConsulReply) -> str:
    if b"Invalid Session TTL" in reply.body:
        return "; the servers' session_ttl_min is another: say the least that they allow with ?session_ttl=…"
    if reply.status in (401, 403):
        return RIGHTS
    return ""
