"""Looks at lines, shared: of all claims of this client on one name that want to look, one does, and tells the others.

A list of a line is as long as the line. If each of two thousand waiters read it when it comes, and again when the connection
breaks, that would be millions of names to read. So at most one look at a line is under way; whoever wants to look meanwhile is
served by the next one, which is sent after whatever it has sent itself, and so sees that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from kazoo import exceptions as problems
from kazoo.protocol.serialization import GetChildren

from .line import Place, read_line
from .wire import Wire

log = logging.getLogger("lockline.zookeeper")


class View:
    """A line as it was read, or why it was not."""

    __slots__ = ("answer", "line", "places")

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.line: list[Place] | None = None
        if isinstance(answer, list):
            self.line = read_line(answer)
        elif isinstance(answer, problems.NoNodeError):
            # Where the parent is gone, nobody stands.
            self.line = []
        self.places = {place.id: at for at, place in enumerate(self.line or ())}
        """Where each claim stands."""


Tell = Callable[[View], None]


class Look:
    """A look that is under way, and who wants the one after it. No mutex: nothing here is left half done by an exception."""

    __slots__ = ("done", "later")

    def __init__(self) -> None:
        self.done = False
        self.later: deque[Tell] = deque()

    def join(self, tell: Tell) -> bool:
        """Whether this one will be told by the next look; False if this one had ended."""
        self.later.append(tell)
        if not self.done:
            return True
        try:
            self.later.remove(tell)
        except ValueError:
            # Kazoo's thread was faster and has taken it along.
            return True
        return False


class Looks:
    """What one client wants to see."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._under_way: dict[str, Look] = {}

    def is_free(self, parent: str) -> bool:
        """Whether nobody looks at this line now, so that one may look by oneself, together with what one sends."""
        look = self._under_way.get(parent)
        return look is None or look.done

    def begun(self, parent: str, look: Look) -> None:
        """The caller looks by himself, and has sent that; he says `seen` when it is answered."""
        if not look.done:
            self._under_way[parent] = look
            if look.done:
                self._forget(parent, look)

    def look(self, parent: str, tell: Tell) -> None:
        """Look after all that was sent until now, and tell in kazoo's thread."""
        under_way = self._under_way.get(parent)
        if under_way is None or not under_way.join(tell):
            self._send(parent, [tell])

    def _send(self, parent: str, those: list[Tell]) -> None:
        look = Look()

        def answered(answers: list[Any]) -> None:
            self.seen(parent, look, View(answers[0]), those)

        self._wire.post(GetChildren(parent, None), then=answered)
        self.begun(parent, look)

    def seen(self, parent: str, look: Look, view: View, those: list[Tell]) -> None:
        """In kazoo's thread: a look has ended. Send the next one, if somebody wants it, and tell those who waited for this one."""
        look.done = True
        self._forget(parent, look)
        later = []
        while look.later:
            later.append(look.later.popleft())
        if later:
            self._send(parent, later)
        for tell in those:
            try:
                tell(view)
            except Exception:
                # The others are to hear of it too.
                log.exception("a look at a line could not be handled")

    def _forget(self, parent: str, look: Look) -> None:
        if self._under_way.get(parent) is look:
            self._under_way.pop(parent, None)
