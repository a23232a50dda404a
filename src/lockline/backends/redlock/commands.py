"""The requests that a node understands, as values and as wire commands; and what comes back when no answer does."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from ..resp.commands import pack, pack_texts
from . import scripts


class NodeRequest(NamedTuple):
    """One step asked of one node. The cluster id is added on the way out, to every one of them."""

    op: str
    args: tuple[Any, ...]


class NodeFailure(NamedTuple):
    """No answer, and why; this is not a no."""

    kind: Literal["timed out", "unreachable", "error", "refused"]
    """unreachable: it was never sent. refused: the server answered with an error, and has not done it."""
    text: str


Reply = list[Any] | NodeFailure


NodeAnswer = tuple[int, NodeRequest, Reply]
"""What one node said to one request. No type of its own: each acquire makes as many as there are nodes."""


TIDYING: Final = ("release", "hide")
"""What is to be done although nobody may wait for the answer any more."""


def acquire(name: str, attempt: str, ttl: int, hint: int, info: str) -> NodeRequest:
    """Give me your lease on this name, with a number of at least the hint."""
    return NodeRequest("acquire", (name, attempt, ttl, hint, info))


def promote(name: str, attempt: str, number: int) -> NodeRequest:
    """Lift my lease's number to this one."""
    return NodeRequest("promote", (name, attempt, number))


def extend(name: str, attempt: str, number: int, ttl: int) -> NodeRequest:
    """Give my lease with exactly this number its ttl again; a negative one ends it after that, also if it had more."""
    return NodeRequest("extend", (name, attempt, number, ttl))


def release(name: str, attempt: str, high: int, burial: int) -> NodeRequest:
    """Forget my lease; where there is none, refuse this attempt for `burial` milliseconds should it still come.

    Zero: the acquire is known to be done. Negative: it went over the same connection before, so it cannot come after this,
    unless this has to be repeated on another connection.
    """
    return NodeRequest("release", (name, attempt, high, burial))


def look(name: str) -> NodeRequest:
    """Whose lease is it, and for how long?"""
    return NodeRequest("look", (name,))


def evict(name: str, attempt: str, burial: int) -> NodeRequest:
    """End this attempt's lease, whoever asks."""
    return NodeRequest("evict", (name, attempt, burial))


def show(name: str, claim: str, ttl: int, info: str) -> NodeRequest:
    """Let people see that this claim waits."""
    return NodeRequest("show", (name, claim, ttl, info))


def hide(name: str, claim: str) -> NodeRequest:
    """This claim waits no longer."""
    return NodeRequest("hide", (name, claim))


def scan(cursor: str, prefix: str) -> NodeRequest:
    """Some of the names that have a lease."""
    return NodeRequest("scan", (cursor, prefix))


SETTINGS: Final = NodeRequest("raw", ("CONFIG", "GET", "*append*"))
"""How does the server write to its disk? All that matters is in names with this word."""


def again(request: NodeRequest) -> NodeRequest:
    """The same release on another connection: what it undoes may now come after it."""
    name, attempt, high, burial = request.args
    return release(name, attempt, high, abs(burial))


def client_of(attempt: str) -> str:
    """The part of an attempt's id that all attempts of one client share."""
    return attempt.partition("-")[0]


def claim_of(attempt: str) -> str:
    """The claim that an attempt was made for."""
    return attempt.rpartition(".")[0]


def keys_and_arguments(request: NodeRequest, cluster: str) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """What the script for this request is called with."""
    op, args = request
    if op == "acquire":
        name, attempt, ttl, hint, info = args
        return (
            (scripts.GATE, scripts.COUNTERS, scripts.LEASE + name, scripts.TOMBSTONE + attempt),
            (cluster, attempt, ttl, hint, name, info),
        )
    if op == "release":
        name, attempt, high, burial = args
        return (
            (scripts.GATE, scripts.COUNTERS, scripts.LEASE + name, scripts.TOMBSTONE + attempt),
            (cluster, attempt, high, burial, name, scripts.FREED + name),
        )
    if op == "extend":
        name, attempt, number, ttl = args
        return (scripts.GATE, scripts.LEASE + name), (cluster, attempt, number, ttl)
    if op == "promote":
        name, attempt, number = args
        return (scripts.GATE, scripts.COUNTERS, scripts.LEASE + name), (cluster, attempt, number, name)
    if op == "look":
        return (scripts.GATE, scripts.LEASE + args[0], scripts.WAITERS + args[0]), (cluster,)
    if op == "show":
        name, claim, ttl, info = args
        return (scripts.GATE, scripts.WAITERS + name), (cluster, claim, ttl, info)
    if op == "hide":
        return (scripts.WAITERS + args[0],), (cluster, args[1])
    if op == "evict":
        name, attempt, burial = args
        return (
            (scripts.GATE, scripts.LEASE + name, scripts.TOMBSTONE + attempt),
            (cluster, attempt, burial, scripts.FREED + name, scripts.VICTIM + client_of(attempt)),
        )
    if op == "greet":
        return (scripts.GATE, scripts.COUNTERS, scripts.NODE), args
    if op == "install":
        return (scripts.GATE, scripts.COUNTERS, scripts.NODE), (cluster, *args)
    if op == "vouch":
        return (scripts.NODE,), (cluster, *args)
    if op == "open":
        return (scripts.GATE,), (cluster,)
    if op in ("retire", "highest"):
        return (scripts.GATE, scripts.COUNTERS), (cluster,)
    raise AssertionError(op)


def packed(request: NodeRequest, cluster: str, *, whole: bool = False) -> bytes:
    """The command for the wire; `whole` sends the script itself, for a server that has forgotten it."""
    op, args = request
    if op == "raw":
        return pack(args)
    if op == "scan":
        cursor, prefix = args
        pattern = "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in prefix)
        return pack(("SCAN", cursor, "MATCH", f"{scripts.LEASE}{pattern}*", "COUNT", "1000"))
    keys, arguments = keys_and_arguments(request, cluster)
    script = scripts.SCRIPTS[op]
    if whole:
        return script.in_full(keys, arguments)
    return pack_texts(("EVALSHA", script.sha, str(len(keys)), *keys, *map(str, arguments)))
