"""Who waits for what: each claim watches only the nodes that decide its turn, and each holder its own.

All of this runs in kazoo's thread, one step after the other: a waiter is woken when its turn has come, and not for each step
on the way there. Where the user's own kazoo client brings several threads it is still safe: what is known of a line ahead can
only err by what has left it already.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from kazoo import exceptions as problems
from kazoo.protocol.states import EventType

from .channel import KazooChannel
from .claims import OwnNode
from .commands import LIGHTER, ClaimNode, read_line
from .requests import ChildNames, WatchOnly

log = logging.getLogger("lockline.zookeeper")

FEW: Final = 64
"""How many departures from a line are remembered at least, beside two for each of ours that waits there."""


class View:
    """A line as it was read, or why it was not."""

    __slots__ = ("_line", "_places", "_plain", "answer", "names")

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.names: frozenset[str] | None = None
        """The nodes that stand there; None if nobody knows."""
        if isinstance(answer, list):
            # Two thousand may be told of this view, and each looks for all that stand ahead of it.
            self.names = frozenset(answer)
        elif isinstance(answer, problems.NoNodeError):
            # Where the parent is gone, nobody stands.
            self.names = frozenset()
        self._plain: bool | None = None
        self._line: list[ClaimNode] = []
        self._places: dict[str, int] | None = None

    @property
    def plain(self) -> bool:
        """Whether somebody stands there, and nobody has become lighter: then names alone say who is still there."""
        if self._plain is None:
            self._plain = bool(self.names) and max(self.names or ()) < LIGHTER
        return self._plain

    def place_of(self, node: OwnNode) -> tuple[list[ClaimNode], int | None]:
        """The line, and where this claim stands in it; read when the first asks."""
        if self._places is None:
            self._line = read_line(self.names or ())
            self._places = {place.id: at for at, place in enumerate(self._line)}
        return self._line, self._places.get(node.claim.id)


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
    """Looks at lines, shared: of all claims of this client on one name that want to look, one does, and tells the others.

    A list of a line is as long as the line. If each of two thousand waiters read it when it comes, and again when the connection
    breaks, that would be millions of names to read. So at most one look at a line is under way; whoever wants to look meanwhile
    is served by the next one, which is sent after whatever it has sent itself, and so sees that.
    """

    def __init__(self, channel: KazooChannel) -> None:
        self._channel = channel
        self._under_way: dict[str, Look] = {}

    def is_free(self, parent: str) -> bool:
        """Whether nobody looks at this line now, so that one may look by oneself, together with what one sends."""
        look = self._under_way.get(parent)
        return look is None or look.done

    def begin(self, parent: str, look: Look) -> None:
        """The caller looks by himself, and has sent that; he calls `end` when it is answered."""
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
            self.end(parent, look, View(answers[0]), those)

        self._channel.post(ChildNames(parent, None), then=answered)
        self.begin(parent, look)

    def end(self, parent: str, look: Look, view: View, those: list[Tell]) -> None:
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


class Subscription:
    """The watches of one client. `heard` is told which claim has to look again."""

    def __init__(
        self, channel: KazooChannel, nodes: dict[str, OwnNode], chroot: str, heard: Callable[[str], None]
    ) -> None:
        self._channel = channel
        self._nodes = nodes
        self._chroot = chroot
        self._heard = heard
        self.looks = Looks(channel)
        self._waiters: dict[str, set[str]] = {}
        """Who watches a node."""
        self._gone: dict[str, set[str]] = {}
        """Nodes of a line that have left it, as long as somebody of ours waits there: what one hears of, all know."""
        self._waiting: dict[str, set[str]] = {}
        """Who of ours waits in a line."""
        self._own: dict[str, str] = {}
        """Holders that watch their own node."""

    def forget_all(self) -> None:
        """The connection was lost, and with it every watch: each line has to be read again."""
        for known in (self._waiters, self._own, self._gone, self._waiting):
            known.clear()
        for node in list(self._nodes.values()):
            node.watched.clear()
            node.stale = True

    def forget(self, node: OwnNode) -> None:
        """This claim has been removed by ourselves."""
        if node.path is not None:
            self._own.pop(node.path, None)
        for name in tuple(node.watched):
            # An empty set stays for as long as that watch does: kazoo's thread may be adding to it.
            self._waiters.get(f"{node.parent}/{name}", set()).discard(node.claim.id)
        waiting = self._waiting.get(node.parent)
        if waiting is not None:
            waiting.discard(node.claim.id)
            if not waiting:
                self._waiting.pop(node.parent, None)
                self._gone.pop(node.parent, None)

    # -- those who wait ------------------------------------------------------------------------------

    def watch(self, node: OwnNode) -> None:
        """Watch what decides this claim's turn, and nothing else."""
        if node.holds or node.gone or node.withdrawn:
            return
        wanted = node.to_watch()
        if not wanted:
            return
        self._waiting.setdefault(node.parent, set()).add(node.claim.id)
        for name in wanted:
            # Before the request goes out: the event may be here before its answer is.
            node.watched.add(name)
            self._waiters.setdefault(f"{node.parent}/{name}", set()).add(node.claim.id)
        # `get`, not `exists`: a watch on what has gone meanwhile would stay for ever.
        self._channel.post(
            *(WatchOnly(f"{node.parent}/{name}", self._on_event) for name in wanted),
            then=partial(self._on_watched, node, wanted),
        )

    def take_in(self, node: OwnNode, view: View) -> None:
        """The line was read again."""
        knows = node.holds and not node.stale
        node.stale = view.names is None
        if view.names is not None and not (view.plain and node.close_up(view.names)):
            node.take_in(*view.place_of(node))
        if not knows or node.stale or node.gone:
            self._go_on(node)

    def _on_watched(self, node: OwnNode, names: list[str], answers: list[Any]) -> None:
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, problems.NoNodeError):
                self._note_end(f"{node.parent}/{name}", name)
                # No watch was set, so no event will come and take this along.
                for waiter in self._living({node.claim.id, *self._waiters.pop(f"{node.parent}/{name}", ())}):
                    self._take_out(waiter, name)
            elif isinstance(answer, Exception):
                node.stale = True
                self._go_on(node)

    def _take_out(self, node: OwnNode, name: str) -> None:
        """A deletion is the ensemble's own decision and there is no way back into the line, so it counts as it is."""
        if node.withdrawn or node.gone:
            return
        node.watched.discard(name)
        gone = self._gone.setdefault(node.parent, set())
        gone.add(name)
        knows = node.holds
        node.take_out(gone)
        self._remember_few(node.parent, gone)
        if knows:
            return
        if node.holds:
            # Nobody has seen it there since it was last read: that one may not have gone alone.
            self.watch_own(node)
            self._go_on(node)
        else:
            # Who stood ahead of that one may have left unwatched.
            self.looks.look(node.parent, partial(self.take_in, node))

    def _living(self, claim_ids: Iterable[str]) -> list[OwnNode]:
        """Those that still stand in their line, with a place that is known."""
        nodes = [self._nodes.get(claim_id) for claim_id in tuple(claim_ids)]
        return [node for node in nodes if node is not None and not node.gone and node.mine is not None]

    def _remember_few(self, parent: str, gone: set[str]) -> None:
        """In a line where somebody of ours always waits, nobody would ever forget who has left it.

        So at times each that waits takes in what has gone; who comes later reads a line without those.
        """
        waiting = self._waiting.get(parent, set())
        if len(gone) <= FEW + 2 * len(waiting):
            return
        for node in self._living(waiting):
            held = node.holds
            node.take_out(gone)
            if node.holds and not held:
                self._go_on(node)
        gone.clear()

    def _go_on(self, node: OwnNode) -> None:
        if node.holds or node.stale or node.gone:
            self._heard(node.claim.id)
        else:
            self.watch(node)

    # -- those who hold ------------------------------------------------------------------------------

    def watch_own(self, node: OwnNode) -> None:
        """Hear of the eviction of a claim, if it holds and does not listen yet."""
        path = node.path
        if not node.holds or node.gone or node.withdrawn or path is None or path in self._own:
            return
        self._own[path] = node.claim.id

        def watched(answers: list[Any]) -> None:
            if isinstance(answers[0], problems.NoNodeError):
                self._hear_of_end(node)
            elif isinstance(answers[0], Exception):
                self._own.pop(path, None)

        self._channel.post(WatchOnly(path, self._on_event), then=watched)

    def _on_event(self, event: Any) -> None:
        """A node that somebody watches has gone or changed."""
        if event.type == EventType.NONE:
            return
        path = self._chroot + event.path
        name = path.rpartition("/")[2]
        deleted = event.type == EventType.DELETED
        if deleted:
            self._note_end(path, name)
        for node in self._living(self._waiters.pop(path, ())):
            if deleted:
                self._take_out(node, name)
            else:
                node.stale = True
                node.watched.discard(name)
                self._go_on(node)
        self._own.pop(path, None)

    def _note_end(self, path: str, name: str) -> None:
        """If that node was one of ours: who waits behind it has heard of its end before it could itself.

        And before that one goes on: where all of a line is taken away, each would take its turn on the end of the one ahead.
        """
        own = next((self._nodes.get(place.id) for place in read_line([name])), None)
        if own is not None and own.path == path:
            self._hear_of_end(own)

    def _hear_of_end(self, node: OwnNode) -> None:
        # One's own release is no news, and would have the keeper look round at each.
        if not node.withdrawn:
            node.end = node.end or "evicted"
            self._heard(node.claim.id)
