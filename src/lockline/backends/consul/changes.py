"""Changes of lines, for one who stands in none: a blocking query for each line that is watched, as long as somebody does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ...core.waiting import begun
from ...core.worker import Worker
from ...errors import LocklineError
from ...runtime import Runtime
from ...runtime.section import Inside
from .blocking_query import AFTER_A_FAILURE, BlockingQuery
from .channel import ConsulChannel
from .commands import ConsulKeys
from .connection import NoReply

MOST_LINES: Final = 8
"""Each takes a connection, and in the blocking client a thread; one more line is looked at now and then."""
APART: Final = 0.01
"""Seconds between two queries at least: on a line that changes all the time they would be all that the agent does."""


class WatchedLine:
    """One line, and those who are told when somebody has come or gone."""

    def __init__(self, query: BlockingQuery[str], runtime: Runtime, heard: Callable[[str], None]) -> None:
        self._query = query
        self._runtime = runtime
        self._heard = heard
        self._watchers: dict[str, None] = {}
        self._seen: frozenset[str] | None = None
        """The keys that were there when it was last answered; None when the next change would not be noticed."""
        self._failing = False
        self._worker = Worker(
            runtime, "lockline-consul-watcher", self._listen, lambda: not self._watchers, linger=lambda: 0.0
        )

    def add(self, watcher: str) -> bool:
        """Tell this one as soon as the next change will be told, and then of each; False while that cannot be."""
        self._watchers[watcher] = None
        # In this order: the listener notes first what it has seen, and then tells whoever is there.
        if self._seen is not None:
            self._heard(begun(watcher))
        self._worker.by(self._runtime.now())
        return not self._failing

    def remove(self, watcher: str) -> bool:
        """Nobody is there to be told any more; whether it was the last one."""
        if watcher not in self._watchers:
            return False
        del self._watchers[watcher]
        return not self._watchers

    async def _listen(self) -> float:
        if self._query.ended:
            return self._runtime.now()
        try:
            # Which of them holds changes only when one has come or gone: a renewal changes a key, but not which there are.
            self._note(frozenset((await self._query.ask()).told), failing=False)
            await self._runtime.sleep(APART)
        except (NoReply, LocklineError):
            self._query.drop()
            if not self._query.ended:
                self._note(None, failing=True)
                await self._runtime.sleep(AFTER_A_FAILURE)
        except BaseException:
            self._query.drop()
            raise
        return self._runtime.now()

    def _note(self, seen: frozenset[str] | None, *, failing: bool) -> None:
        known, first = (self._seen, self._failing), self._seen is None and not self._failing
        self._seen, self._failing = seen, failing
        for watcher in list(self._watchers) if known != (seen, failing) else ():
            self._heard(begun(watcher))
            if not first:
                self._heard(watcher)

    def end(self) -> None:
        """Stop listening: the query under way is cut."""
        self._query.end()

    async def stop(self, until: float) -> None:
        """The same, and wait for that."""
        self.end()
        await self._worker.stop(until)

    def forked(self) -> None:
        """In a child: the parent listens on."""
        self._query.forked()


class LineChanges:
    """The lines that one client watches. `heard` is told whom a change concerns, and who will be told of the next."""

    def __init__(
        self, channel: ConsulChannel, keys: ConsulKeys, runtime: Runtime, heard: Callable[[str], None]
    ) -> None:
        self._channel = channel
        self._keys = keys
        self._runtime = runtime
        self._heard = heard
        self._alone = runtime.section()
        self._lines: dict[str, WatchedLine] = {}
        self._left: deque[WatchedLine] = deque(maxlen=MOST_LINES)
        """Those that nobody watches any more, whose last query may still be ending."""
        self._stopped = False

    def watch(self, name: str, watcher: str) -> bool:
        """Tell this one of changes of that line; whether that can be."""
        try:
            return self._alone(self._watch, name, watcher)
        except RuntimeError:
            return False  # no thread is to be had, or a signal handler on top of another watch (Inside): it looks now and then

    def _watch(self, name: str, watcher: str) -> bool:
        line = self._lines.get(name)
        if line is None:
            if self._stopped or len(self._lines) >= MOST_LINES:
                return False
            query = BlockingQuery(self._channel, self._runtime, self._keys.line(name), "keys", _keys)
            self._lines[name] = line = WatchedLine(query, self._runtime, self._heard)
        return line.add(watcher)

    def unwatch(self, watcher: str) -> None:
        """Nobody is there to be told any more; a line that nobody watches is not asked for."""
        try:
            self._alone(self._unwatch, watcher)
        except Inside:
            pass  # what is still heard for it does no harm

    def _unwatch(self, watcher: str) -> None:
        for name, line in list(self._lines.items()):
            if line.remove(watcher):
                del self._lines[name]
                line.end()
                self._left.append(line)

    async def stop(self, until: float) -> None:
        """End all of it."""
        self._stopped = True
        for line in [*self._lines.values(), *self._left]:
            await line.stop(until)

    def forked(self) -> None:
        """In a child: the parent listens on."""
        for line in self._lines.values():
            line.forked()


def _keys(told: Any) -> list[str]:
    return [str(key) for key in told]
