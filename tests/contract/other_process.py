"""The other process of a contract test: reads orders as JSON lines, answers each with one.

Orders: hello · acquire · try_acquire · release · look_at · watch · fork_and_acquire · end. Errors are answered by name:
`{"error": "LeaseLost", "text": "..."}`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

from lockline.runtime.clock import now

from .faults import never_looks
from .parties import Face, Party, TaskParty, ThreadParty, connect


class Obedient:
    """Carries out orders through one party."""

    def __init__(self, party: Party) -> None:
        self.party = party
        self.lease: Any = None
        self.sent = 0.0

    def _lock(self, name: str, kind: str = "lock", **options: Any) -> Face:
        make = getattr(self.party, kind)
        return make(name, **options)  # type: ignore[no-any-return]

    def hello(self) -> dict[str, Any]:
        return {}

    def acquire(self, timeout: float = 60.0, **lock: Any) -> dict[str, Any]:
        """With a timeout, or a new process that takes longer than a short ttl to reach its store would give up."""
        self.sent = now()
        self.lease = self._lock(**lock).acquire(timeout=timeout)
        return {"token": self.lease.token}

    def try_acquire(self, **lock: Any) -> dict[str, Any]:
        self.sent = now()
        lease = self._lock(**lock).try_acquire()
        if lease is None:
            return {"token": None}
        self.lease = lease
        return {"token": lease.token}

    def look_seldom(self) -> dict[str, Any]:
        """Let no answer of the store tell the one that waits to look again before it is notified."""
        never_looks(self.party)
        return {}

    def release(self) -> dict[str, Any]:
        self.lease.release()
        return {}

    def detach(self, ttl: float) -> dict[str, Any]:
        return {"ticket": self.lease.detach(ttl)}

    def attach(self, ticket: str) -> dict[str, Any]:
        self.sent = now()
        self.lease = self.party.client.attach(ticket)
        return {"token": self.lease.token}

    def look_at(self) -> dict[str, Any]:
        return {"valid": self.lease.valid, "lost": self.lease.lost.is_set(), "remaining": self.lease.remaining()}

    def watch(self, seconds: float, began: str) -> dict[str, Any]:
        """Look at `valid` without a pause until so long after a look came more than a ttl late; count the times it was True after that.

        The file is there once it looks.
        """
        lease = self.lease.real
        trusted_until = self.sent + lease.ttl
        lies = looks = longest_gap = 0.0
        last = now()
        end = time.monotonic() + 60
        Path(began).touch()
        while time.monotonic() < end:
            before = now()
            if longest_gap <= lease.ttl < before - last:
                end = time.monotonic() + seconds
            longest_gap = max(longest_gap, before - last)
            if lease.valid and before >= trusted_until and longest_gap > lease.ttl:
                lies += 1
            looks += 1
            last = before
        return {"lies": lies, "looks": looks, "longest_gap": longest_gap}

    def take_from_pool(self, name: str, items: list[int], ttl: float) -> dict[str, Any]:
        self.lease = self.party.pool(name, items, ttl).acquire(timeout=60)
        return {"item": self.lease.item}

    def compute_for_ever(self, key: str, ttl: float) -> dict[str, Any]:
        """Be the one who computes a value, and never come back."""

        async def never() -> None:
            await asyncio.sleep(60)

        self.party.client.once(key, never if self.party.flavour == "asyncio" else (lambda: time.sleep(60)), 60, ttl=ttl)
        return {}

    def count_up(self, path: str, times: int, **lock: Any) -> dict[str, Any]:
        """Read, add one, write back, under the lock: a lost update shows as a missing one."""
        for _ in range(times):
            with self._lock(**lock):
                with open(path) as file:
                    value = int(file.read())
                with open(path, "w") as file:
                    file.write(str(value + 1))
        return {}


def obey(flavour: str, target: str, options: dict[str, Any], line: socket.socket) -> None:
    """The life of the other process: until it is told to end, or nobody is there to give orders."""
    party: Party
    if flavour == "sync":
        party = ThreadParty("other")
    else:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        party = TaskParty("other", loop)
    party.client = Face(party, party.do(lambda: connect(flavour, target, **options)).real)
    obedient = Obedient(party)
    answers = line.makefile("w")

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    for text in line.makefile("r"):
        order = json.loads(text)
        name = order.pop("order")
        if name == "end":
            party.client.close()
            say({})
            return
        try:
            answer = getattr(obedient, name)(**order)
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        say(answer)
