"""One watch per store: it looks twice a second while somebody wants to know, however many they are, and not otherwise."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ..core.shells import AnyClient, engine_of
from ..errors import LocklineError
from ..runtime import Running
from ..runtime.fork import tell_after_fork
from .board import Board
from .survey import EVERY, Survey, rest_after

LINGERS: Final = 10.0
"""Seconds that it goes on looking after the last browser has gone: a page that is loaded again finds its history."""

log = logging.getLogger("lockline.web")


class WatchedBoard:
    """The board of one store, kept up to date while somebody watches."""

    def __init__(self, client: AnyClient[Any, Any]) -> None:
        self.client = client
        self.url = client.url
        self.looks = 0
        """How often the store was looked at."""
        self._engine = engine_of(client)
        self._mutex = threading.Lock()
        self.forked()
        tell_after_fork(self)

    def forked(self) -> None:
        """In a child nobody looks yet, whoever did in the parent."""
        self.board = Board()
        self._survey = Survey(self._engine)
        self._listeners: set[Callable[[], None]] = set()
        self._wanted_until = 0.0
        self._running: Running | None = None
        self._again = self._engine.runtime.signal()
        self._mutex = threading.Lock()

    def join(self, listener: Callable[[], None]) -> None:
        """Have the listener called after each look, from wherever that is made."""
        with self._mutex:
            self._listeners.add(listener)
        self.want()

    def leave(self, listener: Callable[[], None]) -> None:
        """No more of that."""
        with self._mutex:
            self._listeners.discard(listener)
            self._wanted_until = self._engine.runtime.now() + LINGERS

    def want(self) -> None:
        """Look for a while, for somebody who asks now and then."""
        with self._mutex:
            self._wanted_until = self._engine.runtime.now() + LINGERS
            if self._running is None:
                self._running = self._engine.runtime.spawn(self._work, "lockline-web-watch")

    def look_now(self) -> None:
        """Something has changed by our own hand: do not wait for the next look."""
        self._again.set()

    async def _work(self) -> None:
        now = self._engine.runtime.now
        try:
            while self._is_wanted(now()):
                began = now()
                self._again.clear()
                await self._look()
                self._call_all()
                await self._again.wait(now() + rest_after(now() - began))
        except BaseException:
            with self._mutex:
                self._running = None
            raise

    def _is_wanted(self, now: float) -> bool:
        with self._mutex:
            if self._listeners or now < self._wanted_until:
                return True
            # In one step with the look at who is there: whoever comes after this starts another.
            self._running = None
            self.board.pause()
            return False

    async def _look(self) -> None:
        try:
            seen = await self._survey.look()
        except LocklineError as problem:
            if self.board.fail(str(problem), time.time()):
                log.warning("no look at %s: %s", self.url, problem)
            return
        except Exception as problem:
            # A stranger's entry that nobody can read, or a mistake of ours: whoever watches is told, and the next look is made.
            if self.board.fail(f"a look failed with {type(problem).__name__}; the log has more", time.time()):
                log.exception("a look at %s failed", self.url)
            return
        finally:
            self.looks += 1
        self.board.take(seen, time.time())

    def _call_all(self) -> None:
        with self._mutex:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


__all__ = ["EVERY", "WatchedBoard"]
