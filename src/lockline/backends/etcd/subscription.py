"""All that one client watches, on one stream of its one connection."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from ...core.waiting import begun
from ...runtime import Alone
from ...runtime.section import Inside
from ..watchers import Watchers
from . import messages as m
from .channel import EtcdChannel
from .commands import WATCH, after
from .connection import EtcdLink
from .grpc import Broken, Full, GrpcCall, framed

HOME = ""
"""For whom the client's own keys are watched: for itself."""
LINE = "line "
"""What the id of all who watch one line begins with, for whom it is watched once: told of each change for each of them, a client with many
would be behind with what it reads, answers to renewals included."""


class Watches:
    """Who is to be told of which key. Whatever goes wrong with a watch, the one it is for is told to look again."""

    def __init__(
        self, channel: EtcdChannel, alone: Alone, home: bytes, tell: Callable[[str], object], tell_home: Callable[[bytes, bool], None]
    ) -> None:  # fmt: skip
        self._channel = channel
        self._link: EtcdLink | None = None
        self._alone = alone
        self._home = home
        self._tell = tell
        self._tell_home = tell_home
        self._numbers = itertools.count(1)
        self._stream: GrpcCall | None = None
        self.cut()

    def cut(self) -> None:
        """Another connection is in use now, or none: every watch has ended."""
        self._cancel_stream()
        self._link = None
        self._for: dict[int, str] = {}
        self._by_claim: dict[str, dict[bytes, int]] = {}
        self._lines: set[int] = set()
        """Watches of whole lines that the server has not confirmed yet."""
        self._watching: dict[str, str] = {}
        """Who watches which line."""
        self._untold: Watchers[str] = Watchers()
        """Those of them who have asked to be told of the next change."""
        self.at_home = False
        self._refused = False
        self.revision = 0
        """The latest change that was heard of. etcd may tell of a change a moment before its own reads show it."""

    def watch(self, claim_id: str, keys: Iterable[tuple[bytes, bool]], revision: int) -> bool:
        """Tell this claim when one of these keys is deleted (True: or put) after the revision; forget what it watched before.

        Nothing is missed in between: the server begins with the past. False when there is no connection now.
        """
        return self._unless_inside(self._watch, claim_id, dict(keys), revision)

    def watch_home(self, revision: int = 0) -> bool:
        """Hear of what happens to this client's own keys after this revision (0: from now on)."""
        return self._unless_inside(self._watch_home, revision)

    def watch_line(self, watcher: str, line: bytes) -> bool:
        """Tell this one, who stands in no line, as soon as it will be told of changes of that line, and then of each."""
        return self._unless_inside(self._watch_line, watcher, line)

    def drop(self, claim_id: str) -> None:
        """This claim waits no more, or nobody is there who watched."""
        if claim_id in self._watching:
            self._unless_inside(self._drop_watcher, claim_id)
        elif claim_id in self._by_claim:
            self._unless_inside(self._drop, claim_id)

    def _unless_inside(self, work: Callable[..., bool], *args: Any) -> bool:
        try:
            return self._alone(work, *args)
        except Inside:
            # A signal handler on top of another watch: without one of its own it looks again now and then, and what is
            # still heard for a claim that waits no more does no harm.
            return False

    def _watch(self, claim_id: str, wanted: dict[bytes, bool], revision: int) -> bool:
        self._leave_refused_stream()
        known = self._by_claim.get(claim_id, {})
        orders = [self._cancel_order(number) for key, number in known.items() if key not in wanted]
        fresh: dict[bytes, int] = {key: number for key, number in known.items() if key in wanted}
        for key, puts in wanted.items():
            if key not in known:
                fresh[key], create = self._create_order(claim_id, key, revision + 1)
                create.filters.extend([] if puts else [m.NO_PUT])
                orders.append(m.WatchRequest(create_request=create))
        self._by_claim[claim_id] = fresh
        return self._send(orders)

    def _watch_line(self, watcher: str, line: bytes) -> bool:
        who = LINE + line.decode("latin-1")
        self._leave_refused_stream()
        # First: whoever confirms it, or tells of a change, from here on finds it.
        self._watching[watcher] = who
        self._untold.add(who, watcher)
        if who in self._by_claim:
            if self._by_claim[who][line] not in self._lines:
                self._tell(begun(watcher))
            return True
        number, create = self._create_order(who, line, 0)
        create.range_end = after(line)
        self._by_claim[who] = {line: number}
        self._lines.add(number)
        if self._send([m.WatchRequest(create_request=create)]):
            return True
        self._by_claim.pop(who, None)
        self._lines.discard(number)
        return False

    def _watch_home(self, revision: int) -> bool:
        if self.at_home and self._stream is not None:
            return True
        self._leave_refused_stream()
        _, create = self._create_order(HOME, self._home, revision and revision + 1)
        create.range_end = after(self._home)
        self.at_home = self._send([m.WatchRequest(create_request=create)])
        return self.at_home

    def _create_order(self, who: str, key: bytes, revision: int) -> tuple[int, Any]:
        number = next(self._numbers)
        self._for[number] = who
        return number, m.WatchCreateRequest(key=key, start_revision=revision, watch_id=number)

    def _drop(self, claim_id: str) -> bool:
        known = self._by_claim.pop(claim_id, None)
        self._lines.difference_update((known or {}).values())
        return (
            not known or self._stream is None or self._send([self._cancel_order(number) for number in known.values()])
        )

    def _drop_watcher(self, watcher: str) -> bool:
        who = self._watching.pop(watcher, "")
        self._untold.discard(watcher)
        return who in self._watching.values() or self._drop(who)

    def _leave_refused_stream(self) -> None:
        """Begin anew with fresh credentials; whoever watched on the old stream looks again."""
        refused, self._refused = self._refused, False
        if refused and self._stream is not None:
            self._cancel_stream()
            self._end()

    def _cancel_stream(self) -> None:
        link, stream, self._stream = self._link, self._stream, None
        if link is not None and stream is not None and link.grpc.broken is None:
            stream.wake = None
            try:
                link.cancel(stream)
            except Broken:
                pass  # gone with its connection

    def _cancel_order(self, number: int) -> Any:
        self._for.pop(number, None)
        return m.WatchRequest(cancel_request=m.WatchCancelRequest(watch_id=number))

    def _send(self, orders: list[Any]) -> bool:
        if not orders:
            return True
        body = b"".join(framed(order.SerializeToString()) for order in orders)
        link = self._channel.link
        try:
            if link is None or link.grpc.broken is not None or not link.grpc.opening.done:
                return False
            if self._stream is None or self._stream.done or self._link is not link:
                self._link = link
                self._stream = link.start(WATCH.path, body, self._channel.token, self._hear, ends=False, who="watch")
                self._stream.wake = self._end
            else:
                link.more(self._stream, body)
        except (Broken, Full):
            return False
        return True

    def _hear(self, message: bytes) -> None:
        # Called in the middle of reading: nothing may be sent from here.
        answer = m.WatchResponse.FromString(message)
        who = self._for.get(answer.watch_id)
        if who is None:
            return
        if answer.canceled:
            self._for.pop(answer.watch_id, None)
            # Not for the past that is gone, so for the stream's own credentials, which may have run out by now.
            self._refused = self._refused or not answer.compact_revision
            if who == HOME:
                self.at_home = False
                self._tell_home(b"", True)
            else:
                self._by_claim.pop(who, None)
                self._lines.discard(answer.watch_id)
                self._tell_of_change(who, ended=True)
            return
        if not answer.events:
            if answer.created and answer.watch_id in self._lines:
                self._lines.discard(answer.watch_id)
                for watcher in [watcher for watcher, line in list(self._watching.items()) if line == who]:
                    self._tell(begun(watcher))
            return
        if who != HOME:
            self.revision = max(self.revision, *(event.kv.mod_revision for event in answer.events), 0)
            self._tell_of_change(who)
            return
        for event in answer.events:
            self._tell_home(event.kv.key, event.type == m.DELETE)

    def _end(self) -> None:
        """The server ended the stream: everybody looks again, and watches again if need be."""
        told = list(self._by_claim)
        self._stream = None
        self._lines.clear()
        self._for.clear()
        self._by_claim.clear()
        self.at_home = False
        for who in told:
            self._tell_of_change(who, ended=True)

    def _tell_of_change(self, who: str, *, ended: bool = False) -> None:
        """Tell this claim, or all who watch this line; if that has ended, those too who wait for its beginning."""
        if not who.startswith(LINE):
            self._tell(who)
            return
        for watcher in self._untold.take(who):
            if ended:
                self._tell(begun(watcher))
            self._tell(watcher)
