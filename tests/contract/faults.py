"""Faults between a client and its backend: lost replies, errors, delays, at the call the test names.

faults = Faults(alice)
faults.fail("enter", after=True)        # it is applied, and the reply is lost
faults.fail("renew", times=2)           # two renewals do not reach the store
faults.hold("leave").set()              # nothing reaches the store until the event is set
faults.delay("enter", 0.3, after=True)  # the reply takes its time
faults.calls                            # what was asked for, in order
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from lockline import BackendUnavailable
from lockline.core.claim import Waiting
from lockline.runtime.clock import now

from .parties import LONG, Party

CALLS = ("enter", "place", "leave", "renew", "look", "list", "evict", "attend", "examine", "hand_over", "last")


def never_looks(party: Party) -> None:
    """Let no answer of the store tell this client's waiters to look again by themselves: only a push is left."""
    backend = party.client.real._engine.backend

    def seldom(ask: Any) -> Any:
        async def asked(*args: Any, **options: Any) -> Any:
            answer = await ask(*args, **options)
            # Except at once: that is how one that is not listened to yet begins to listen.
            later = type(answer) is Waiting and answer.look_by
            return answer._replace(look_by=now() + LONG) if later else answer

        return asked

    backend.enter, backend.place = seldom(backend.enter), seldom(backend.place)


class Faults:
    """Stands between the engine (and its keeper) and the backend."""

    def __init__(self, party: Party) -> None:
        self._engine = party.client.real._engine
        self._inner = self._engine.backend
        self._rules: dict[tuple[str, bool], list[Callable[[float], Any]]] = {}
        self._for_ever: dict[tuple[str, bool], Callable[[float], Any]] = {}
        self.calls: list[str] = []
        self._engine.backend = self._engine._keeper._backend = self

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """That of the backend: since Python 3.12 `isinstance` asks a protocol's members of the class, not by `__getattr__`."""
        return self._inner.__class__

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        # Whether one leaves or many do is all the same to a fault.
        name = "leave" if name == "leave_all" else name
        if name not in CALLS:
            return value

        async def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            until = options.get("until", args[-1] if args and isinstance(args[-1], float) else 0.0)
            await self._act(name, False, until)
            answer = await value(*args, **options)
            await self._act(name, True, until)
            if type(answer) is Waiting and self._looks_fail():
                # Else a story about looks would have to wait until one is due.
                return answer._replace(look_by=0.0)
            return answer

        return call

    def _looks_fail(self) -> bool:
        # Those that are still to fail: a look that is always due would keep a loop from everything else.
        return any(
            name == "place" for name, _ in (*(rule for rule, acts in self._rules.items() if acts), *self._for_ever)
        )

    async def _act(self, name: str, after: bool, until: float) -> None:
        rules = self._rules.get((name, after))
        if rules:
            await rules.pop(0)(until)
        elif (name, after) in self._for_ever:
            await self._for_ever[name, after](until)

    def _add(self, name: str, after: bool, times: int | None, act: Callable[[float], Any]) -> None:
        if times is None:
            self._for_ever[name, after] = act
        else:
            self._rules.setdefault((name, after), []).extend([act] * times)

    def fail(self, name: str, *, after: bool = False, times: int | None = 1, error: Any = None) -> None:
        """Raise instead of asking the store, or (`after`) instead of handing on its reply."""

        async def act(until: float) -> None:
            raise error or BackendUnavailable(f"injected: no answer to {name}")

        self._add(name, after, times, act)

    def delay(self, name: str, seconds: float, *, after: bool = False, times: int | None = 1) -> None:
        """Take so much longer."""

        async def act(until: float) -> None:
            await self._engine.runtime.sleep(seconds)

        self._add(name, after, times, act)

    def hang(self, name: str, *, times: int | None = None) -> None:
        """No answer until the caller's deadline; then BackendUnavailable, as a backend must."""

        async def act(until: float) -> None:
            while (left := until - self._engine.runtime.now()) > 0:
                await self._engine.runtime.sleep(min(left, 0.05))
            raise BackendUnavailable(f"injected: {name} had no answer in time")

        self._add(name, False, times, act)

    def hold(self, name: str, *, after: bool = False, times: int | None = None) -> threading.Event:
        """Let nothing through to the store, or (`after`) no answer from it, until the event is set."""
        opened = threading.Event()

        async def act(until: float) -> None:
            while not opened.is_set():
                await self._engine.runtime.sleep(0.01)

        self._add(name, after, times, act)
        return opened

    def heal(self) -> None:
        """From now on everything works."""
        self._rules.clear()
        self._for_ever.clear()

    def count(self, name: str) -> int:
        """How often this was asked for."""
        return self.calls.count(name)
