"""What happened at each node, in words; and leases as nodes keep them."""

from __future__ import annotations

from ...errors import ConfigError, QuorumNotReached
from .channel import Fanout
from .commands import NodeAnswer, NodeFailure, Reply


def unreached(channel: Fanout, message: str, replies: dict[int, Reply], *, yes: str = "free") -> QuorumNotReached:
    """The error that tells what happened at each node. If they are another cluster's now, the next call finds out which."""
    channel.membership.heard(replies.values())
    error = QuorumNotReached(
        message, nodes={label: describe(replies.get(node), yes) for node, label in enumerate(channel.labels)}
    )
    error.unsent = len(replies) == len(channel.labels) and all(
        isinstance(reply, NodeFailure) and reply.kind == "unreachable" for reply in replies.values()
    )
    return error


def too_long(ttl: float, lasts: float, longest: float) -> ConfigError:
    """The error for a ttl that no server would be back in time for."""
    drift = "" if lasts <= ttl else f", which the drift makes {lasts:g} s at the servers,"
    return ConfigError(
        f"a ttl (or keep_for) of {ttl} s{drift} is longer than the {longest:g} s that this cluster was set up for; "
        "a server that comes back has to wait as long (`lockline redlock init --max-ttl`)"
    )


def nothing(answer: NodeAnswer) -> None:
    """For answers that change nothing when they come late."""


def parse_lease(lease: bytes) -> tuple[str, int, str]:
    """Attempt, number and info of a lease as a node keeps it."""
    attempt, number, info = lease.split(b" ", 2)
    return attempt.decode(), int(number), info.decode()


def describe(reply: Reply | None, yes: str = "free") -> str:
    """What happened at a node, for people."""
    if reply is None:
        return "timed out"
    if isinstance(reply, NodeFailure):
        return reply.text if reply.text.startswith(reply.kind) else f"{reply.kind}: {reply.text}"
    word = reply[0]
    if word == b"yes":
        return yes
    if word == b"no" and len(reply) > 2 and reply[1]:
        attempt, number, info = parse_lease(reply[1])
        owner = info.rpartition("\x1f")[2] or attempt
        return f"held by {owner}, token {number}, for another {max(0, int(reply[2])) / 1000:.1f} s"
    if word == b"no":
        return "not held"
    if word == b"buried":
        return "refused: this attempt was withdrawn"
    why = {
        b"empty": "not ready: empty (never set up, or wiped)",
        b"forgot": "not ready: part of its memory is gone",
        b"full": "not ready: its numbers are used up",
        b"other": "refused: it belongs to another cluster, or was retired",
    }
    if len(reply) > 1 and reply[1] == b"refusing":
        return f"not ready: refuses for another {int(reply[2]) / 1000:.1f} s after its restart"
    return why.get(reply[1] if len(reply) > 1 else b"", "refused")
