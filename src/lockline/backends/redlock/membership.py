"""Who belongs together: the cluster id is read from a majority at first use, and carried in every request from then on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from ...errors import QuorumNotReached
from ..resp.commands import ServerError, pack
from .commands import SETTINGS, NodeRequest, Reply, packed
from .rules import majority
from .scripts import SCRIPTS


class Greeting(NamedTuple):
    """What a node said of itself when the connection was made."""

    state: str
    """known, empty (never set up, or wiped) or forgot (part of its memory is gone)."""
    run: str
    cluster: str = ""
    size: int = 0
    longest: int = 0
    """The longest ttl, in milliseconds, that this cluster grants."""
    incarnation: int = 0
    members: str = ""
    gate: str = ""
    highest: int = 0

    @property
    def serves(self) -> bool:
        """Whether the gate is open, as far as this answer tells."""
        return self.state == "known" and self.gate == self.cluster


PREPARATION: Final = (
    pack(SETTINGS.args),
    *(pack(("SCRIPT", "LOAD", SCRIPTS[op].body)) for op in ("acquire", "promote", "extend", "release")),
)
"""What is asked on a new connection before the greeting, all at once. Other scripts are sent whole when they are first used."""


DURABLE: Final = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
LOOK_AGAIN: Final = 1.0
"""How often a client that uses a server looks at its settings again; they can be changed while it runs."""


def settings(reply: Reply) -> dict[str, str]:
    """What a server said of its settings; nothing where it may not be asked."""
    if not isinstance(reply, list):
        return {}
    words = [word.decode() for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


def durable(reply: Reply) -> str:
    """Whether everything is on the server's disk before it answers ("1"): then a restart forgets nothing."""
    said = settings(reply)
    return "1" if all(said.get(name) == wanted for name, wanted in DURABLE.items()) else "0"


def greet(settings: Reply) -> bytes:
    """The first request on a connection, after the server has told its settings."""
    return packed(NodeRequest("greet", (durable(settings),)), "", whole=True)


def greeting(reply: Any) -> Greeting:
    """The greeting in a node's answer."""
    if isinstance(reply, ServerError):
        raise ConnectionRefusedError(f"refused: {reply}")
    words = [word.decode() if isinstance(word, bytes) else word or "" for word in reply]
    if words[0] == "empty":
        return Greeting("empty", words[1])
    state, run, cluster, size, longest, incarnation, members, gate, highest = words
    return Greeting(
        state, run, cluster, int(size or 0), int(longest or 0), int(incarnation or 0), members, gate, int(highest or 0)
    )


class Membership:
    """What one client knows of the set of servers that it was given."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels
        self.cluster: str | None = None
        self.longest = float("inf")
        self.greetings: dict[int, Greeting] = {}
        self.problems: dict[int, str] = {}

    def met(self, node: int, said: Greeting) -> None:
        """A connection was made and the node has spoken."""
        self.greetings[node] = said
        self.problems.pop(node, None)
        size = len(self.labels)
        if self.cluster is None and said.state == "known" and said.size == size:
            same = [
                one for one in list(self.greetings.values()) if one.state == "known" and one.cluster == said.cluster
            ]
            if len({one.run for one in same}) >= majority(size) and not self.twins():
                self.longest = said.longest / 1000
                self.cluster = said.cluster
        # A server that would be counted twice makes the whole list worthless, whenever it is found out; so this is also
        # looked at last, because another thread may have met the twin in the meantime.
        if self.twins():
            self.cluster = None

    def heard(self, replies: Iterable[Reply]) -> None:
        """Read the cluster id again if a majority of servers say that they are another cluster's: wiped, and set up anew.

        Whoever begins now would take that id; a request that still carries the old one is refused, so nothing can be mixed.
        """
        moved = 0
        for reply in replies:
            if isinstance(reply, list) and reply[:2] == [b"shut", b"other"] and not reply[2].startswith(b"retired "):
                moved += 1
        if moved >= majority(len(self.labels)):
            self.cluster = None
            self.greetings.clear()

    def failed(self, node: int, problem: str) -> None:
        """A connection could not be made."""
        self.problems[node] = problem

    def twins(self) -> list[tuple[str, str]]:
        """Entries of the list that lead to the same server."""
        found: dict[str, int] = {}
        pairs = []
        for node, said in sorted(self.greetings.items()):
            if said.run in found:
                pairs.append((self.labels[found[said.run]], self.labels[node]))
            found.setdefault(said.run, node)
        return pairs

    def describe(self, node: int) -> str:
        """What keeps this node from serving, for people."""
        if node in self.problems:
            return self.problems[node]
        said = self.greetings.get(node)
        if said is None:
            return "no answer yet"
        if said.state == "empty":
            return "not ready: empty (never set up, or wiped)"
        if said.state == "forgot":
            return "not ready: part of its memory is gone"
        if said.size != len(self.labels):
            return f"belongs to a set of {said.size} servers, {len(self.labels)} are named here"
        if said.gate.startswith("retired"):
            return "retired: the set of servers has been changed"
        if said.gate.startswith("preparing"):
            return "not ready: its setting up was not finished"
        if said.gate.startswith("refusing"):
            return "not ready: refuses for a while after its restart"
        return f"cluster {said.cluster}"

    def error(self) -> QuorumNotReached:
        """Why these servers cannot be used together, and what to do."""
        nodes = {label: self.describe(node) for node, label in enumerate(self.labels)}
        greetings = list(self.greetings.values())
        states = Counter(said.state for said in greetings)
        known = [said for said in greetings if said.state == "known"]
        if self.twins():
            text = "the list names one server twice ({} and {})".format(*self.twins()[0])
        elif states["empty"] and not known:
            text = "these servers have not been set up as a cluster; run `lockline redlock init` once"
        elif any(said.size != len(self.labels) for said in known):
            text = (
                "the list of servers is not the cluster's own; name exactly its members, or `lockline redlock resize`"
            )
        elif len({said.cluster for said in known}) > 1:
            text = "these servers belong to different clusters; look at them with `lockline redlock status`"
        elif states["empty"] or states["forgot"]:
            text = "too few servers remember; `lockline redlock replace` for each empty one, `init --floor` if a majority is"
        else:
            text = "too few servers can be reached"
        error = QuorumNotReached(text, nodes=nodes)
        # Nothing is asked of servers that are not known to belong together.
        error.unsent = True
        return error
