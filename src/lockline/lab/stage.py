"""One run of one lock under one failure: its clients, its servers, the lines between them, and what was seen."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .actor import Part
from .calm import calm
from .crowd import CrowdTask
from .families import Servers
from .locks.face import Place, PublishedLock
from .nursery import Nursery
from .packets import named
from .register import Register
from .servers.process import freeze
from .servers.proxy import Proxy
from .trace import Trace, TraceEvent

TTL = 2.0
"""Seconds; the least that etcd gives."""
ANSWER = 90.0
"""Seconds after which a client that says nothing is a defect of the laboratory."""


class PlayedClient:
    """A process that plays one client."""

    def __init__(self, stage: Stage, label: str, *, shares: list[Proxy] | None = None, patience: float = 5.0) -> None:
        self.label = label
        self._stage = stage
        self.lines = shares if shares is not None else stage.lines_for(label)
        addresses = tuple(("127.0.0.1", line.port) for line in self.lines)
        place = Place(addresses, stage.name, stage.ttl, patience, stage.servers.url)
        part = Part(label, place, stage.lock, stage.register.file, stage.lock.fenced)
        self.pid, self._line = stage.nursery.start(part)
        self._answer()

    def do(self, word: str, *rest: Any, hand: str = "") -> Any:
        """Say what to do and wait for the answer."""
        self.begin(word, *rest, hand=hand)
        return self._answer()

    def begin(self, word: str, *rest: Any, hand: str = "") -> None:
        """Say what to do."""
        self._line.send((word, hand, *rest))

    def begin_crowd(self, turns: CrowdTask) -> None:
        """Let many of it take turns; the answer is what each of them waited for."""
        self._line.send(("crowd", turns))

    def enough(self) -> None:
        """Its crowd need not go on."""
        self._line.send(("enough", ""))

    def finish(self) -> Any:
        """The answer to what was begun."""
        return self._answer()

    def stop_at(self, checkpoint: str) -> None:
        """It will wait when its lock comes to this step."""
        self._line.send(("stop at", checkpoint))

    def reaches(self, checkpoint: str) -> None:
        """Wait until it stands there."""
        word = self._next()
        if word != ("at", checkpoint):
            raise RuntimeError(f"{self.label} did not come to {checkpoint!r}: {word}")

    def go_on(self) -> None:
        """Let it go on from its checkpoint."""
        self._line.send(("go",))

    def step_clock_there(self, seconds: float) -> None:
        """Step its clock while it waits at a checkpoint."""
        self._line.send(("clock", seconds))

    def freeze(self) -> None:
        """SIGSTOP."""
        freeze(self.pid)
        self._stage.trace.add(self.label, "froze")

    def wake(self) -> None:
        """SIGCONT."""
        self._stage.trace.add(self.label, "woke")
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, also where it stands still."""
        self._stage.trace.add(self.label, "killed")
        self.end()

    def end(self) -> None:
        """No process any more."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(EOFError, OSError):
            while self._line.poll(1.0):  # until the end that the kernel closed for it
                self._take(self._line.recv())
        self._line.close()

    def _answer(self) -> Any:
        word, answer = self._next()
        if word != "done":
            raise RuntimeError(f"{self.label} waits at {answer!r}")
        return answer

    def _next(self) -> tuple[str, Any]:
        until = calm() + ANSWER
        while True:
            while not self._line.poll(1.0):
                if calm() > until:
                    raise RuntimeError(f"{self.label} did not answer within {ANSWER:.0f} s")
            try:
                message: tuple[str, Any] = self._line.recv()
            except EOFError:
                raise RuntimeError(f"{self.label} is gone") from None
            if not self._take(message):
                return message

    def _take(self, message: tuple[str, Any]) -> bool:
        if message[0] == "event":
            self._stage.trace.take(message[1])
            return True
        return False


class Stage:
    """Where a schedule plays."""

    def __init__(
        self, lock: type[PublishedLock], servers: Servers, nursery: Nursery, folder: Path, name: str, ttl: float = TTL
    ) -> None:
        self.nursery = nursery
        self.lock = lock
        self.servers = servers
        self.name = name
        self.ttl = ttl
        self.trace = Trace()
        self.register = Register(folder / "register.db", fenced=lock.fenced)
        self.register.create()
        self.clients: list[PlayedClient] = []
        self._proxies: list[Proxy] = []
        self.facts: dict[str, Any] = {}
        self.late: float | None = None
        """How long somebody waited for what nobody used."""
        self.stuck: str = ""
        """Why somebody waited in vain."""
        self.costly: str = ""
        self.figure: str = ""

    def client(self, label: str, *, patience: float = 5.0) -> PlayedClient:
        """One more client, with lines of its own to each server."""
        client = PlayedClient(self, label, patience=patience)
        self.clients.append(client)
        return client

    def crowd_client(self, label: str, lines: list[Proxy]) -> PlayedClient:
        """One that shares its lines with others."""
        client = PlayedClient(self, label, shares=lines)
        self.clients.append(client)
        return client

    def lines_for(self, label: str, *, watched: bool = True) -> list[Proxy]:
        """A line to each server."""
        made = []
        for address, server in zip(self.servers.addresses, self.servers.labels, strict=False):
            proxy = Proxy(address, Wire(self.trace, label, server)) if watched else Proxy(address)
            self._proxies.append(proxy)
            made.append(proxy)
        return made

    def lead_all_to(self, address: tuple[str, int]) -> None:
        """The name of the service now means this server."""
        for proxy in self._proxies:
            if isinstance(proxy.on_packet, Wire):
                proxy.on_packet.server = self.servers.labels[-1]
            proxy.lead_to(address)

    def close(self) -> None:
        """No client, no line any more."""
        for client in self.clients:
            with contextlib.suppress(Exception):
                client.end()
        for proxy in self._proxies:
            proxy.close()


class Wire:
    """Writes down what passes between a client and a server."""

    def __init__(self, trace: Trace, client: str, server: str) -> None:
        self.trace = trace
        self.client = client
        self.server = server

    def __call__(self, to_server: bool, data: bytes, fate: str) -> None:
        now = time.monotonic()
        if to_server:
            kind = "held back" if fate == "held back" else "request"
            self.trace.take(TraceEvent(now, self.client, kind, named(data), to=self.server))  # type: ignore[arg-type]
        else:
            self.trace.take(TraceEvent(now, self.server, "lost" if fate == "lost" else "reply", to=self.client))


@contextlib.contextmanager
def a_stage(
    lock: type[PublishedLock], servers: Servers, nursery: Nursery, folder: Path, name: str, ttl: float = TTL
) -> Iterator[Stage]:
    """A stage for as long as the block lasts."""
    stage = Stage(lock, servers, nursery, folder, name, ttl)
    try:
        yield stage
    finally:
        stage.close()
