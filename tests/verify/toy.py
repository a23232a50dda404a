"""A small lock server of the tests' own, over a socket, and Lockline's backend for it: small enough to be broken in forty ways.

    python -m tests.verify.toy MUTATION      prints its port, serves until its stdin ends

As it stands it keeps the one rule; `tests/verify/broken.py` says what can be wrong with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TextIO

from lockline import aio, sync
from lockline.core.backend import Findings
from lockline.core.claim import Claim, Gone, Grant, Line, Standing, Waiting
from lockline.core.engine import Engine
from lockline.core.rule import admitted
from lockline.core.waiting import Hints
from lockline.errors import BackendUnavailable
from lockline.guarantees import Guarantees
from lockline.lab.verify.plan import Settings
from lockline.runtime import Runtime
from lockline.runtime.blocking import BlockingRuntime
from lockline.runtime.clock import now
from lockline.runtime.looping import LoopRuntime

ROOT = Path(__file__).parents[2]
PROMISED = Guarantees("server", True, True, frozenset({"release", "expiry"}), "One process that must not end.")
ONE_TRY = 0.7
"""Seconds that one request waits for its answer before it is sent again."""


class Stand:
    """One claim in its line."""

    def __init__(self, claim: Claim, client: str, ticket: int, expires: float) -> None:
        self.claim, self.client, self.ticket, self.expires = claim, client, ticket, expires
        self.told = False
        self.entered = now()

    @property
    def weight(self) -> int:
        return self.claim.weight

    @property
    def capacity(self) -> int:
        return self.claim.capacity


class Store:
    """The lines, in one thread."""

    def __init__(self) -> None:
        self.lines: dict[str, list[Stand]] = {}
        self.tickets = itertools.count(1)
        self.pushes: list[tuple[str, str]] = []

    # -- what a mutation changes ----------------------------------------------------------------------

    def ticket(self, claim: Claim) -> int:
        return next(self.tickets)

    def lasts(self, claim: Claim) -> float:
        return claim.ttl

    def holders(self, line: Sequence[Stand]) -> int:
        return admitted(line)

    def insert(self, line: list[Stand], stand: Stand) -> None:
        line.append(stand)

    def expired(self, stand: Stand) -> bool:
        return stand.expires <= now()

    def push(self, stand: Stand) -> None:
        self.pushes.append((stand.client, stand.claim.id))

    # -- the steps ------------------------------------------------------------------------------------

    def line(self, name: str) -> list[Stand]:
        line = self.lines.setdefault(name, [])
        line[:] = [stand for stand in line if not self.expired(stand)]
        self.tell(line)
        return line

    def tell(self, line: list[Stand]) -> None:
        for stand in line[: self.holders(line)]:
            if not stand.told:
                stand.told = True
                self.push(stand)

    def find(self, line: list[Stand], claim: Claim) -> Stand | None:
        return next((stand for stand in line if stand.claim.id == claim.id), None)

    def stands(self, line: list[Stand], stand: Stand) -> list[Any]:
        at = line.index(stand)
        if at < self.holders(line):
            stand.told = True
            return ["granted", stand.ticket]
        first = min(other.expires for other in line[:at])
        return ["waits", at, max(0.0, first - now())]

    def enter(self, claim: Claim, client: str, wait: bool) -> list[Any]:
        line = self.line(claim.name)
        stand = self.find(line, claim)
        if stand is None:
            stand = Stand(claim, client, self.ticket(claim), now() + self.lasts(claim))
            self.insert(line, stand)
            if not wait and line.index(stand) >= self.holders(line):
                line.remove(stand)
                return ["no"]
        return self.stands(line, stand)

    def place(self, claim: Claim) -> list[Any]:
        line = self.line(claim.name)
        stand = self.find(line, claim)
        return ["gone"] if stand is None else self.stands(line, stand)

    def leave(self, claim: Claim) -> list[Any]:
        line = self.line(claim.name)
        stand = self.find(line, claim)
        if stand is None:
            return ["gone"]
        line.remove(stand)
        self.tell(line)
        return ["yes"]

    def renew(self, claim: Claim) -> list[Any]:
        line = self.line(claim.name)
        stand = self.find(line, claim)
        if stand is None:
            return ["gone"]
        stand.expires = max(stand.expires, now() + self.lasts(claim))
        return ["yes"]

    def look(self, name: str) -> list[Any]:
        line = self.line(name)
        holders = self.holders(line)
        return [[stand.claim, stand.ticket, at < holders, stand.expires - now()] for at, stand in enumerate(line)]

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in list(self.lines) if name.startswith(prefix) and self.line(name))

    def evict(self, name: str) -> list[Any]:
        line = self.line(name)
        victims = line[: self.holders(line)]
        line[:] = line[len(victims) :]
        self.tell(line)
        return [len(victims)]

    def answer(self, do: str, client: str, *words: Any) -> Any:
        """One step."""
        match do:
            case "enter":
                return self.enter(Claim(*words[0]), client, words[1])
            case "place" | "leave" | "renew":
                return getattr(self, do)(Claim(*words[0]))
            case _:
                return getattr(self, do)(*words)


async def serve(store: Store) -> None:
    subscribers: dict[str, asyncio.StreamWriter] = {}

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                request = json.loads(line)
                if request[0] == "subscribe":
                    subscribers[request[1]] = writer
                    continue
                writer.write((json.dumps(store.answer(*request)) + "\n").encode())
                pushes, store.pushes = store.pushes, []
                for client, claim in pushes:
                    if client in subscribers and not subscribers[client].is_closing():
                        subscribers[client].write((json.dumps(claim) + "\n").encode())
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextmanager
def a_toy(mutation: str = "") -> Iterator[str]:
    """A server with that mistake in it; its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.verify.toy", mutation],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield f"toy://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


class ToyBackend:
    """One client of the server: every call is a line there and a line back, asked again until it is answered."""

    guarantees: ClassVar[Guarantees] = PROMISED
    reader = None

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.url = url
        host, _, port = url.partition("://")[2].partition(":")
        self._address = (host, int(port))
        self._runtime = runtime
        self._own = threading.local()
        self._open: dict[socket.socket, TextIO] = {}
        self.me = secrets.token_hex(6)
        self._closed = False
        self._subscribed = False

    def report_to(self, hints: Hints) -> None:
        self._heard = hints.heard
        self._heard_all = hints.heard_all

    # -- the wire -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._closed:
            with (
                contextlib.suppress(OSError, ValueError),
                socket.create_connection(self._address, ONE_TRY) as line,
                line.makefile() as words,
            ):
                self._open[line] = words
                line.sendall((json.dumps(["subscribe", self.me]) + "\n").encode())
                line.settimeout(None)
                self._heard_all()
                for word in words:
                    self._heard(json.loads(word))
            time.sleep(0.05)

    def _ask(self, until: float, *request: Any) -> Any:
        if not self._subscribed:
            self._subscribed = True
            threading.Thread(target=self._listen, daemon=True).start()
        problem: Exception | None = None
        while now() < until:
            try:
                line = getattr(self._own, "line", None)
                if line is None:
                    line = self._own.line = socket.create_connection(self._address, ONE_TRY)
                    self._own.read = self._open[line] = line.makefile()
                line.settimeout(max(0.01, min(ONE_TRY, until - now())))
                line.sendall((json.dumps(request) + "\n").encode())
                if not (answer := self._own.read.readline()):
                    raise OSError("closed")
                return json.loads(answer)
            except (OSError, ValueError) as found:
                problem = found
                if getattr(self._own, "line", None) is not None:
                    self._own.read.close()
                    self._own.line.close()
                    self._open.pop(self._own.line, None)
                self._own.line = None
                time.sleep(0.02)
        raise BackendUnavailable(f"{self.url} did not answer: {problem}")

    async def ask(self, until: float, *request: Any) -> Any:
        if self._runtime.flavour == "asyncio":
            return await asyncio.get_running_loop().run_in_executor(None, self._ask, until, *request)
        return self._ask(until, *request)

    # -- the calls ------------------------------------------------------------------------------------

    def granted(self, claim: Claim, token: int) -> Grant:
        return Grant(token)

    def _answer(self, claim: Claim, said: list[Any]) -> Any:
        if said[0] == "granted":
            return self.granted(claim, said[1])
        if said[0] == "waits":
            return Waiting(said[1], now() + said[2], stands=len(said) < 4)
        return Gone() if said[0] == "gone" else None

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        return self._answer(claim, await self.ask(until, "enter", self.me, claim, wait))  # type: ignore[no-any-return]

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        return self._answer(claim, await self.ask(until, "place", self.me, claim))  # type: ignore[no-any-return]

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        return bool((await self.ask(until, "leave", self.me, claim))[0] == "yes")

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        return [await self.leave(claim, until) for claim in claims]

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | None]:
        return [await self.renew_one(claim, until) for claim in claims]

    async def renew_one(self, claim: Claim, until: float) -> Gone | None:
        return None if (await self.ask(until, "renew", self.me, claim))[0] == "yes" else Gone()

    async def look(self, name: str, until: float) -> Line:
        return Line(
            name, tuple(_seen(Claim(*one[0]), *one[1:]) for one in await self.ask(until, "look", self.me, name))
        )

    async def list(self, prefix: str, until: float) -> list[str]:
        return await self.ask(until, "names", self.me, prefix)  # type: ignore[no-any-return]

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        return int((await self.ask(until, "evict", self.me, name))[0])

    async def attend(self) -> None: ...

    async def examine(self, until: float) -> Findings:
        return []

    async def close(self) -> None:
        self._closed = True
        for line, words in list(self._open.items()):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            words.close()
            line.close()

    def forked(self) -> None: ...


def _seen(claim: Claim, ticket: int, holds: bool, remaining: float) -> Standing:
    meta = json.loads(claim.meta) if claim.meta else None
    return Standing(
        claim.id, claim.owner, claim.kind, ticket, holds, claim.weight, claim.capacity, claim.ttl, remaining, claim.since,
        claim.since if holds else None, meta,
    )  # fmt: skip


def client(settings: Settings, owner: str) -> Any:
    """A client of either flavour, with the mistake that the settings name."""
    from .broken import BROKEN

    backend: Callable[[str, Runtime], Any] = ToyBackend
    # The one beside the workers, who looks and cleans up, makes no mistakes.
    if settings.mutation and settings.number >= 0:
        mutation = BROKEN[settings.mutation]
        backend = mutation.backend
        if mutation.patch is not None:
            mutation.patch()
    runtime: Any = LoopRuntime() if settings.flavour == "asyncio" else BlockingRuntime()
    engine = Engine(backend(settings.url, runtime), runtime, owner)
    return aio.Client(engine) if settings.flavour == "asyncio" else sync.Client(engine)


def falls_over(settings: Settings, owner: str) -> Any:
    """A client of which every worker has one, and that none of them can use."""
    made = client(settings, owner)
    if settings.number >= 0:
        made.lock = made.rwlock = made.semaphore = lambda *words, **terms: 1 / 0
    return made


if __name__ == "__main__":
    from tests.verify.broken import BROKEN

    named = sys.argv[1]
    asyncio.run(serve(BROKEN[named].store() if named else Store()))
