"""What is good and what is dangerous about a Redis as it is set up."""

from __future__ import annotations

import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from ...core.backend import Finding
from ...core.claim import Claim
from ...errors import LocklineError
from ..resp.errors import OLDEST, NoAnswer, Refused
from ..resp.target import Address, spelled
from .commands import key_of

if TYPE_CHECKING:
    from .backend import RedisBackend

CLOCKS_APART = 1.0
"""Seconds by which the server's clock may differ from ours before it is worth a word."""

RULE = (
    "ACL SETUSER lockline on >password ~{ll:* resetchannels &ll:* +eval +evalsha +hget +hmget +hset +hdel +hgetall +hlen +pexpire "
    "+pexpireat +pttl +time +publish +pubsub|numsub +subscribe +ping +info +scan +wait +hello +client|tracking +auth +select +cluster|slots +asking"
)
"""What a user needs, for the default prefix."""

MORE_REPLICAS = "bring the replicas back, or lower wait_replicas"


async def examine(backend: RedisBackend, until: float) -> list[Finding]:
    """All there is to say, server by server."""
    try:
        addresses = await backend.channel.topology.primaries(until)
    except (LocklineError, NoAnswer) as problem:
        return [Finding("error", f"cannot reach Redis: {problem}", "check the address, the port and the firewall")]
    names = {address: _name_at(backend, address) for address in addresses}
    findings: list[Finding] = []
    for address, name in names.items():
        found = await _server(backend, address, until)
        # What is wrong with the server already would only be told again, as something else.
        if not any(finding.level == "error" for finding in found):
            found += await _permissions(backend, address, name, until)
        findings += found
    return findings


def _name_at(backend: RedisBackend, address: Address) -> str:
    """A name of nobody's whose line is on that server."""
    # Few slots mean many tries; a server that has given away its last one is examined with the others.
    for _ in range(100_000):
        name = f"lockline-doctor/{secrets.token_hex(8)}"
        if backend.channel.topology.known(key_of(name, backend.prefix)) == address:
            break
    return name


async def _server(backend: RedisBackend, address: Address, until: float) -> list[Finding]:
    where = spelled(address)
    try:
        before = time.time()
        info = _fields(await backend.channel.ask(address, ("INFO",), until))
        seconds, micros = await backend.channel.ask(address, ("TIME",), until)
        after = time.time()
    except Refused as problem:
        if problem.code != "NOPERM":
            return [Finding("error", f"{where}: {problem}")]
        return [Finding("warning", f"{where}: this user may not ask INFO, so little can be said", f"allow it: {RULE}")]
    except LocklineError as problem:
        return [Finding("error", f"{where}: {problem}")]
    theirs = int(seconds) + int(micros) / 1e6
    return [
        _version(where, info),
        _clock(where, theirs, before, after),
        _eviction(where, info),
        _persistence(where, info),
        *_replicas(where, info, backend.wait_replicas),
    ]


def _fields(info: Any) -> dict[str, str]:
    text = info.decode() if isinstance(info, bytes) else str(info)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _version(where: str, info: dict[str, str]) -> Finding:
    version = info.get("redis_version", "unknown")
    name = "Valkey" if "valkey_version" in info else "Redis"
    told = info.get("valkey_version", version)
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        return Finding("error", f"{where}: {name} {told} is too old", "Redis 6.2 or later, or Valkey")
    return Finding("ok", f"{where}: {name} {told}")


def _clock(where: str, theirs: float, before: float, after: float) -> Finding:
    apart = theirs - after if theirs > after else min(0.0, theirs - before)
    if abs(apart) < CLOCKS_APART:
        return Finding("ok", f"{where}: its clock agrees with ours")
    return Finding(
        "warning",
        f"{where}: its clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} ours",
        "run NTP on every server: tokens follow the server's clock, and a failover to a slow one can lower them",
    )


def _eviction(where: str, info: dict[str, str]) -> Finding:
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", "0") == "0" or policy == "noeviction":
        return Finding("ok", f"{where}: never evicts keys")
    return Finding(
        "warning",
        f"{where}: maxmemory-policy is {policy}: under memory pressure locks are dropped like any key that has a ttl",
        "maxmemory-policy noeviction, or a Redis of its own for locks",
    )


def _persistence(where: str, info: dict[str, str]) -> Finding:
    if info.get("aof_enabled") == "1":
        return Finding("ok", f"{where}: keeps an append-only file")
    return Finding(
        "warning",
        f"{where}: no append-only file: a restart forgets who held what, and lets in whoever comes first",
        "appendonly yes (and appendfsync always, if a crash of the machine must not forget either)",
    )


def _replicas(where: str, info: dict[str, str], wait_replicas: int) -> list[Finding]:
    replicas = int(info.get("connected_slaves", "0"))
    if info.get("role", "master") != "master":
        return [
            Finding("error", f"{where}: is a replica and takes no writes", "connect to the primary, or by Sentinel")
        ]
    if replicas and not wait_replicas:
        return [
            Finding(
                "warning",
                f"{where}: has {replicas} replica{'s' if replicas > 1 else ''}, and grants do not wait for them: "
                "a failover may forget a holder",
                "connect(..., wait_replicas=1), and a fence at the resource",
            )
        ]
    if replicas < wait_replicas:
        return [
            Finding(
                "error",
                f"{where}: has {replicas} of the {wait_replicas} replicas that each grant waits for: no lock can be taken",
                MORE_REPLICAS,
            )
        ]
    return [Finding("ok", f"{where}: {replicas} replicas, each grant waits for {wait_replicas}")] if replicas else []


async def _permissions(backend: RedisBackend, address: Address, name: str, until: float) -> list[Finding]:
    """Do once, on a line of our own, all that a client ever does."""
    where = spelled(address)
    claim = Claim(name, secrets.token_hex(8), "lockline doctor", "lock", 1, 1, 5.0, time.time(), "")
    rival = claim._replace(id=secrets.token_hex(8))
    steps: list[tuple[str, Any]] = [
        ("take a lock", lambda: backend.enter(claim, wait=False, until=until)),
        ("wait for a lock", lambda: backend.enter(rival, wait=True, until=until)),
        ("listen for its turn", lambda: backend.place(rival, until)),
        ("renew it", lambda: backend.renew([claim, rival], until)),
        ("look at the line", lambda: backend.look(name, until)),
        (
            "tell whoever waits",
            lambda: backend.channel.ask(address, ("PUBLISH", f"{backend.prefix}:doctor", ""), until),
        ),
        ("keep a value", lambda: backend.keep(name, "doctor", b"", 1, 1.0, until)),
        ("evict the holder", lambda: backend.evict(name, until)),
        ("release it", lambda: backend.leave(rival, until)),
        ("list locks", lambda: backend.channel.ask(address, ("SCAN", 0), until)),
    ]
    failed: list[Finding] = []
    for what, step in steps:
        try:
            await step()
        except LocklineError as problem:
            failed.append(Finding("error", f"{where}: cannot {what}: {problem}", _cure(problem)))
            break
    for each in (claim, rival):
        try:
            await backend.leave(each, until)
        except LocklineError:
            pass  # gone with its ttl; the finding above says why
    return failed or [Finding("ok", f"{where}: may do everything that a lock needs")]


def _cure(problem: LocklineError) -> str:
    if getattr(problem, "code", "") == "NOPERM" or "NOPERM" in str(problem):
        return f"allow it: {RULE}"
    return MORE_REPLICAS if "replicas" in str(problem) else ""
