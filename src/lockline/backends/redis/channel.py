"""One script call, repeated until it is answered: every request carries its claim's id, so a repeat does it once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ...core.backend import REFUSAL
from ...errors import BackendUnavailable
from ...runtime import Runtime
from ..resp.commands import Script, ServerError, pack
from ..resp.errors import WAIT_AND_REPEAT, NoAnswer, Refused, code_of, refusal, unavailable
from ..resp.target import Address, spelled
from .connection import Connections
from .topology import Topology

T = TypeVar("T")

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.25
FOLLOWED = 5
"""How many times in a row a request goes at once where a server of a cluster sends it: two may each take the other for the owner."""
ASKING = pack(("ASKING",))


class Call(NamedTuple):
    """One call of a script; on a cluster all keys are in one slot."""

    script: Script
    keys: Sequence[bytes]
    args: Sequence[Any]

    @property
    def by_digest(self) -> bytes:
        return self.script.by_digest(self.keys, self.args)

    @property
    def in_full(self) -> bytes:
        return self.script.in_full(self.keys, self.args)


class Answer(NamedTuple):
    """What the script gave back."""

    value: Any
    repeated: bool = False
    """A try before this one may have been received and was not answered: what was found done may have been done by that."""
    insisted: bool = False
    """It took more than the first try: perhaps another server has answered than the one that was first asked."""


class Failed(NamedTuple):
    """A first try, and what came instead of an answer."""

    address: Address
    problem: NoAnswer | ServerError


class Channel:
    """Sends scripts to where their keys are."""

    def __init__(self, connections: Connections, topology: Topology, runtime: Runtime) -> None:
        self.connections = connections
        self.topology = topology
        self._runtime = runtime
        self.now = runtime.now

    async def run(self, call: Call, until: float, *, insists: bool = True) -> Answer:
        """The script's answer."""
        address = self.topology.known(call.keys[0])
        if address is None:
            return await self.insist(call, until, insists=insists)
        try:
            reply = await self.connections.ask(address, call.by_digest, until)
        except NoAnswer as problem:
            return await self.insist(call, until, Failed(address, problem), insists=insists)
        if type(reply) is ServerError:
            return await self.insist(call, until, Failed(address, reply), insists=insists)
        return Answer(reply)

    async def insist(self, call: Call, until: float, failed: Failed | None = None, *, insists: bool = True) -> Answer:
        """The same until the deadline, through everything that passes by itself.

        Without insisting, only for `REFUSAL` seconds where there is no connection to be had.
        """
        address: Address | None
        problem: Any
        address, problem = failed or (None, None)
        # Whether any try may have reached the server, and whether one of those stayed unanswered.
        reached = repeated = False
        pause = FIRST_PAUSE
        refused_since: float | None = None
        redirected = 0
        while True:
            next_address, requests, wait = self._next_try(call, address, problem)
            redirected += isinstance(problem, ServerError) and code_of(problem) in ("MOVED", "ASK")
            wait = wait or redirected > FOLLOWED
            if isinstance(problem, NoAnswer):
                repeated = repeated or problem.sent
            reached = reached or repeated or isinstance(problem, ServerError)
            if wait:
                now = self._runtime.now()
                left = until - now
                if not (isinstance(problem, NoAnswer) and problem.refused):
                    refused_since = None
                elif refused_since is None:
                    refused_since = now
                if refused_since is not None and not insists:
                    left = min(left, refused_since + REFUSAL - now)
                if left <= 0:
                    raise _given_up(problem, address, unsent=not reached)
                await self._runtime.sleep(min(pause, left))
                pause = min(pause * 2, LONGEST_PAUSE)
            try:
                address = next_address or await self.topology.find(call.keys[0], until)
                reply = (await self.connections.ask_all(address, requests, until))[-1]
            except Refused as refused:
                refused.unsent = refused.unsent and not reached
                raise
            except NoAnswer as no_answer:
                before, problem = problem, no_answer
                reached = reached or no_answer.sent
                if no_answer.late and before is not None:
                    raise _given_up(before, address, unsent=not reached) from no_answer
                if self._runtime.now() >= until:
                    # A last try that the deadline cut short tells less than the one before it.
                    told = no_answer if no_answer.sent or before is None else before
                    raise _given_up(told, address, unsent=not reached) from no_answer
                continue
            if not isinstance(reply, ServerError):
                return Answer(reply, repeated, insisted=True)
            problem = reply

    def _next_try(
        self, call: Call, address: Address | None, problem: Any
    ) -> tuple[Address | None, Sequence[bytes], bool]:
        """Where to send what next (to the server of the key, unless it is said), and whether to wait before that."""
        if problem is None:
            return None, (call.by_digest,), False
        address = address or ("", 0)
        if isinstance(problem, NoAnswer):
            # What else is open to it is as dead, mostly; a connection that waited too long costs a try each.
            self.connections.forget(address)
            self.topology.doubt(address)
            return None, (call.by_digest,), True
        code = code_of(problem)
        if code == "NOSCRIPT":
            return None, (call.in_full,), False
        if code == "MOVED":
            self.topology.moved(call.keys[0], _told(problem, address))
            return None, (call.by_digest,), False
        if code == "ASK":
            there = self.topology.named(_told(problem, address))
            # Of one that nobody can name: the slot is its own as soon as the move is over, and then it is found.
            return (there, (ASKING, call.in_full), False) if there else (None, (call.by_digest,), True)
        if code in WAIT_AND_REPEAT:
            self.topology.doubt(address)
            if code == "READONLY":
                # The other connections of the pool lead to the same replica.
                self.connections.forget(address)
            return None, (call.by_digest,), True
        raise refusal(problem, address)

    async def ask_around(self, question: Callable[[], Awaitable[T]], until: float) -> T:
        """The answer to a question for every primary, begun anew while one of them does not serve: another may have its place by now.

        It raises NoAnswer where a server is there and says that it cannot serve yet; one that is not there is tried for `REFUSAL` seconds.
        """
        began, pause = self._runtime.now(), FIRST_PAUSE
        while True:
            try:
                return await question()
            except NoAnswer as problem:
                error, end = unavailable(problem), until
            except BackendUnavailable as problem:
                error, end = problem, min(until, began + REFUSAL)
            if error.permanent or self._runtime.now() + pause >= end:
                raise error
            await self._runtime.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def ask(self, address: Address, words: Sequence[Any], until: float) -> Any:
        """The answer of one server to a plain command that only reads; errors come out typed."""
        (reply,) = await self.ask_all(address, [pack(words)], until)
        if isinstance(reply, ServerError):
            raise refusal(reply, address)
        return reply

    async def ask_all(self, address: Address, requests: Sequence[bytes], until: float) -> list[Any]:
        """The answers of one server to commands that only read, sent together; its errors are among them."""
        try:
            return await self.connections.ask_all(address, requests, until)
        except NoAnswer as problem:
            first = problem
        # Perhaps a connection that died while it was idle: once more on a new one.
        self.connections.forget(address)
        try:
            return await self.connections.ask_all(address, requests, until)
        except NoAnswer as problem:
            # Else one who only asks would never look where its servers are by now.
            self.topology.doubt(address)
            unsent = not (first.sent or problem.sent)
            raise unavailable(first if problem.late else problem, unsent=unsent) from problem


def _told(reply: object, asked: Address) -> Address:
    """The address in `MOVED slot host:port` or `ASK slot host:port`."""
    host, _, port = str(reply).split(" ")[2].rpartition(":")
    return (host or asked[0], int(port))


def _given_up(problem: Any, address: Address | None, *, unsent: bool) -> BackendUnavailable:
    if isinstance(problem, NoAnswer):
        return unavailable(problem, unsent=unsent)
    where = spelled(address) if address else "?"
    return BackendUnavailable(f"Redis at {where} cannot serve now: {problem}")
