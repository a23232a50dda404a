"""What `lockline doctor` finds out about a cluster's servers."""

from __future__ import annotations

from typing import Any

from ...core.backend import Finding
from ...errors import QuorumNotReached
from .answers import describe, nothing
from .channel import Fanout
from .commands import SETTINGS, NodeFailure, NodeRequest, Reply
from .membership import durable, settings
from .scripts import FREED

OLDEST = (6, 2)
FAR_APART = 1.0
"""Seconds by which servers' clocks may differ before it is worth a word."""
A_SECOND_CHANCE, A_PAUSE = 1.0, 0.05
"""For how long a server that is away is asked again before that is told of it, and how often."""
QUESTIONS = {
    "info": NodeRequest("raw", ("INFO",)),
    "time": NodeRequest("raw", ("TIME",)),
    "policy": NodeRequest("raw", ("CONFIG", "GET", "maxmemory-policy")),
    "disk": SETTINGS,
    "publish": NodeRequest("raw", ("PUBLISH", FREED, "")),
    "save": NodeRequest("raw", ("CONFIG", "GET", "save")),
    "gate": NodeRequest("highest", ()),
}


async def examine(channel: Fanout, until: float) -> list[Finding]:
    """Persistence, eviction, clocks, versions, independence of every node."""
    patience = min(until, channel.now() + A_SECOND_CHANCE)
    while True:
        try:
            replies, clocks = await _ask(channel, until)
        except QuorumNotReached as unreached:
            return [
                Finding("error", f"{label}: {what}", str(unreached).partition(" (")[0])
                for label, what in unreached.nodes.items()
            ]
        away = [reply for reply in replies.values() if isinstance(reply, NodeFailure) and reply.kind == "unreachable"]
        if not away or channel.now() >= patience:
            break
        # A majority is enough to begin with: the connection to another may just not be there yet.
        channel.hurry()
        await channel.sleep(A_PAUSE)
    findings: list[Finding] = []
    for node, label in enumerate(channel.labels):
        about = replies.get((node, "info"))
        if about is None or isinstance(about, NodeFailure):
            problem = "timed out" if about is None else about.text
            findings.append(Finding("error", f"{label}: {problem}", "bring it back, or replace it"))
            continue
        info = _parse(about)
        findings.extend(_one(label, info, replies, node))
        findings.extend(_gate(label, replies.get((node, "gate"))))
    findings.extend(_together(clocks))
    return findings


async def _ask(channel: Fanout, until: float) -> tuple[dict[tuple[int, str], Reply], dict[int, float]]:
    """What each node said to each question, and by how much its clock is ahead."""
    replies: dict[tuple[int, str], Reply] = {}
    clocks: dict[int, float] = {}
    talk = await channel.talk(nothing, until)
    try:
        sent = channel.now()
        for request in QUESTIONS.values():
            talk.send_all(request)
        words = {request: word for word, request in QUESTIONS.items()}
        while (answer := await talk.next(min(until, sent + max(1.0, 4 * channel.patience(60.0))))) is not None:
            node, request, reply = answer
            replies[node, words[request]] = reply
            if words[request] == "time" and not isinstance(reply, NodeFailure):
                # Against the moment half-way between question and answer.
                clocks[node] = int(reply[0]) + int(reply[1]) / 1e6 - (channel.now() + sent) / 2
    finally:
        talk.part()
    return replies, clocks


def _parse(reply: Any) -> dict[str, str]:
    pairs = (line.partition(":") for line in reply.decode(errors="replace").splitlines() if ":" in line)
    return {key: value for key, _, value in pairs}


def _setting(reply: Reply | None) -> str:
    if reply is None or isinstance(reply, NodeFailure) or len(reply) < 2:
        return ""
    return str(reply[1].decode())


def _one(label: str, info: dict[str, str], replies: dict[tuple[int, str], Reply], node: int) -> list[Finding]:
    findings = []
    version = tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2] if part.isdigit())
    if version < OLDEST:
        findings.append(
            Finding("error", f"{label}: Redis {info.get('redis_version')} is too old", "6.2 or later is needed")
        )
    if info.get("role") != "master":
        findings.append(
            Finding("error", f"{label}: a replica, not independent", "a cluster's servers replicate from nobody")
        )
    if info.get("connected_slaves", "0") != "0":
        findings.append(
            Finding("warning", f"{label}: has replicas", "a failover to one would lose leases; do not fail over")
        )
    policy = _setting(replies.get((node, "policy")))
    if policy not in ("noeviction", "") and info.get("maxmemory", "0") != "0":
        findings.append(
            Finding("error", f"{label}: maxmemory-policy {policy} can evict leases", "set it to noeviction")
        )
    publish = replies.get((node, "publish"))
    if isinstance(publish, NodeFailure):
        findings.append(
            Finding(
                "warning",
                f"{label}: this user may not publish ({publish.text}); who waits hears of no release or eviction, and looks now and then",
                "ACL SETUSER NAME &lockline:redlock:*",
            )
        )
    disk = replies.get((node, "disk"))
    said = settings(disk) if disk is not None else {}
    fsync = said.get("appendfsync", "")
    if info.get("aof_enabled") == "1" and fsync == "always" and durable(disk or []) != "1":
        findings.append(
            Finding(
                "warning",
                f"{label}: appendfsync always, but not while the log is rewritten; after a restart it refuses for one longest ttl",
                "no-appendfsync-on-rewrite no",
            )
        )
    elif info.get("aof_enabled") == "1" and fsync == "always":
        findings.append(Finding("ok", f"{label}: appendfsync always; a restart forgets nothing"))
    elif info.get("aof_enabled") == "1":
        findings.append(
            Finding(
                "ok",
                f"{label}: appendfsync {fsync or 'unknown'}; after a restart it refuses for one longest ttl",
                "appendfsync always",
            )
        )
    elif isinstance(save := replies.get((node, "save")), list) and not _setting(save):
        findings.append(
            Finding(
                "warning",
                f"{label}: keeps nothing over a restart; it must be replaced each time it restarts",
                "appendonly yes, and appendfsync always to come back at once",
            )
        )
    else:
        findings.append(
            Finding(
                "warning",
                f"{label}: keeps snapshots at most; after a restart it refuses for one longest ttl, and it must be replaced "
                "if none was made since it was set up",
                "appendonly yes, and appendfsync always to come back at once",
            )
        )
    return findings


def _gate(label: str, reply: Reply | None) -> list[Finding]:
    """What keeps the server from taking part, as it says now."""
    if reply is None or isinstance(reply, NodeFailure) or reply[0] != b"shut":
        return []
    gate = reply[2] if len(reply) > 2 else b""
    if reply[1] == b"refusing":
        return [Finding("warning", f"{label}: {describe(reply)}", "nothing: it opens by itself")]
    if gate.startswith(b"retired "):
        return [Finding("error", f"{label}: retired: the set of servers has been changed", "name the new servers")]
    if gate.startswith(b"preparing "):
        return [
            Finding("error", f"{label}: its setting up was not finished", "repeat lockline redlock init, or resize")
        ]
    return [Finding("error", f"{label}: {describe(reply)}", f"lockline redlock replace {label}")]


def _together(clocks: dict[int, float]) -> list[Finding]:
    if not clocks:
        return []
    apart = max(clocks.values()) - min(clocks.values())
    if apart > FAR_APART:
        return [
            Finding(
                "warning",
                f"the servers' clocks differ by {apart:.1f} s",
                "run NTP; after a restart without appendfsync always the tokens rest on it",
            )
        ]
    return [Finding("ok", f"the servers' clocks differ by {apart * 1000:.0f} ms")]
