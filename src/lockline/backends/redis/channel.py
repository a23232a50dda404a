"""One script call, repeated until it is answered: every request carries its claim's id, so a repeat does it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.backend import REFUSAL
from ...errors import BackendUnavailable
from ...runtime import Runtime
from ..resp.commands import Script, ServerError, pack
from ..resp.errors import WAIT_AND_REPEAT, NoAnswer, Refused, code_of, refusal, unavailable
from ..resp.target import Address, spelled
from .connection import Connections
from .topology import Topology

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.25
ASKING = pack(("ASKING",))


class Channel:
    """Sends scripts to where their keys are."""

    def __init__(self, port: Connections, topology: Topology, runtime: Runtime) -> None:
        self.port = port
        self.topology = topology
        self._runtime = runtime
        self.now = runtime.now

    async def run(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[Any],
        until: float,
        unanswered: list[Exception] | None = None,
        *,
        insists: bool = True,
    ) -> Any:
        """The script's answer; `unanswered` collects the tries that the server may have seen and did not answer."""
        address = self.topology.known(keys[0])
        if address is None:
            return await self.insist(script, keys, args, until, unanswered, insists=insists)
        try:
            reply = await self.port.ask(address, script.by_digest(keys, args), until)
        except NoAnswer as problem:
            return await self.insist(script, keys, args, until, unanswered, address, problem, insists=insists)
        if type(reply) is ServerError:
            return await self.insist(script, keys, args, until, unanswered, address, reply, insists=insists)
        return reply

    async def insist(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[Any],
        until: float,
        unanswered: list[Exception] | None,
        address: Address | None = None,
        problem: Any = None,
        *,
        insists: bool = True,
    ) -> Any:
        """The same until the deadline, through everything that passes by itself.

        Without insisting, only for `REFUSAL` seconds where there is no connection to be had.
        """
        pause = FIRST_PAUSE
        # Whether any try may have reached the server, this one's or that of whoever called.
        reached = False
        refused_since: float | None = None
        by_digest = script.by_digest(keys, args)
        in_full = script.in_full(keys, args)
        while True:
            requests = [by_digest]
            wait = problem is not None
            reached = reached or _may_have_reached(problem)
            if isinstance(problem, NoAnswer):
                assert address is not None
                if problem.sent and unanswered is not None:
                    unanswered.append(problem)
                # What else is open to it is as dead, mostly; a wire that waited too long costs a try each.
                self.port.forget(address)
                self.topology.doubt(address)
            elif problem is not None:
                assert address is not None
                code = code_of(problem)
                if code == "NOSCRIPT":
                    requests, wait = [in_full], False
                elif code == "MOVED":
                    self.topology.moved(keys[0], self._told(problem, address))
                    wait = False
                elif code == "ASK":
                    address = self._told(problem, address)
                    requests, wait = [ASKING, in_full], False
                elif code in WAIT_AND_REPEAT:
                    self.topology.doubt(address)
                    if code == "READONLY":
                        # The other connections of the pool lead to the same replica.
                        self.port.forget(address)
                else:
                    raise refusal(problem, address)
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
                    raise self._given_up(problem, address, unsent=not reached)
                await self._runtime.sleep(min(pause, left))
                pause = min(pause * 2, LONGEST_PAUSE)
            try:
                if len(requests) == 1:
                    address = await self.topology.find(keys[0], until)
                assert address is not None
                problem = (await self.port.ask_all(address, requests, until))[-1]
            except Refused as refused:
                refused.unsent = refused.unsent and not reached
                raise
            except NoAnswer as no_answer:
                before, problem = problem, no_answer
                reached = reached or no_answer.sent
                if no_answer.late and before is not None:
                    raise self._given_up(before, address, unsent=not reached) from no_answer
                if address is None:
                    address = ("", 0)
                if self._runtime.now() >= until:
                    if no_answer.sent and unanswered is not None:
                        unanswered.append(no_answer)
                    # A last try that the deadline cut short tells less than the one before it.
                    told = no_answer if no_answer.sent or before is None else before
                    raise self._given_up(told, address, unsent=not reached) from no_answer
                continue
            if not isinstance(problem, ServerError):
                return problem

    def _told(self, reply: Any, asked: Address) -> Address:
        """The address in `MOVED slot host:port` or `ASK slot host:port`."""
        host, _, port = str(reply).split(" ")[2].rpartition(":")
        return (host or asked[0], int(port))

    def _given_up(self, problem: Any, address: Address | None, *, unsent: bool) -> BackendUnavailable:
        if isinstance(problem, NoAnswer):
            return unavailable(problem, unsent=unsent)
        where = spelled(address) if address else "?"
        return BackendUnavailable(f"Redis at {where} cannot serve now: {problem}")

    async def ask(self, address: Address, words: Sequence[Any], until: float) -> Any:
        """The answer of one server to a plain command that only reads; errors come out typed."""
        (reply,) = await self.ask_all(address, [pack(tuple(words))], until)
        if isinstance(reply, ServerError):
            raise refusal(reply, address)
        return reply

    async def ask_all(self, address: Address, requests: Sequence[bytes], until: float) -> list[Any]:
        """The answers of one server to commands that only read, sent together; its errors are among them."""
        try:
            return await self.port.ask_all(address, requests, until)
        except NoAnswer as problem:
            first = problem
        # Perhaps a connection that died while it was idle: once more on a new one.
        self.port.forget(address)
        try:
            return await self.port.ask_all(address, requests, until)
        except NoAnswer as problem:
            unsent = not (first.sent or problem.sent)
            raise unavailable(first if problem.late else problem, unsent=unsent) from problem


def _may_have_reached(problem: Any) -> bool:
    return problem is not None and not (isinstance(problem, NoAnswer) and not problem.sent)
