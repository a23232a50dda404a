"""What `lockline doctor` says about a Consul cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...core.backend import Finding
from ..keyed.findings import in_the_clear, took, voters
from . import commands
from .channel import ConsulChannel, ConsulRefused
from .commands import ConsulKeys
from .connection import ConsulRequest
from .sessions import NODE, Sessions

T = TypeVar("T")


async def findings(channel: ConsulChannel, keys: ConsulKeys, sessions: Sessions, until: float) -> list[Finding]:
    """The cluster as it is now, worst things included."""
    began = channel.now()
    await channel.transact([commands.look(keys.home)], until, insist=False, consistent=True)
    read = channel.now()
    session = await sessions.ready(0.001, read, until, insist=False)
    sent = channel.now()
    # What a claim needs: a key that is locked, and removed again.
    probe = f"{keys.home}doctor"
    tried = await channel.transact([commands.put(probe, session.id), commands.remove(probe)], until, insist=False)
    written = channel.now()
    found = [
        took("a read that a quorum confirmed", read - began, "look at disks and network"),
        took("a write", written - sent, "give Consul's servers a faster disk of their own"),
        Finding("ok", f"claims of a client that is no more are removed with its session, in {session.seconds:g} to {2 * session.seconds:g} s; whoever waits for them sees sooner that they stand still"),
    ]  # fmt: skip
    if tried.failed:
        found.append(Finding("error", f"a key cannot be locked: {tried.why}", "look at the servers' log"))
    found += await _node(channel, until)
    found += await _servers(channel, until)
    found += await _agent(channel, until)
    if channel.target.tls is None:
        cure = "add ?tls=yes or ?ca=… to the URL, or ask an agent of this machine"
        found += in_the_clear(channel.target.endpoints, "tokens", cure)
    return found


async def _ask(channel: ConsulChannel, path: str, meaning: Callable[[Any], T], until: float) -> T:
    reply, _ = await channel.ask(ConsulRequest("GET", channel.path(path)), until, insist=False)
    return channel.understand(reply, meaning)


async def _servers(channel: ConsulChannel, until: float) -> list[Finding]:
    return [voters(len(await _ask(channel, "status/peers", list, until)), "server", "servers")]


async def _node(channel: ConsulChannel, until: float) -> list[Finding]:
    checks = await _ask(channel, f"health/node/{NODE}", _checks, until)
    if "serfHealth" in checks:
        text = f"an agent is called {NODE}: the claims of every client end when it fails or leaves"
        return [Finding("error", text, "give that agent another node_name")]
    return [Finding("ok", f"the sessions are made on the node {NODE}, which no agent takes with it when it goes")]


def _checks(told: Any) -> set[str]:
    return {check["CheckID"] for check in told}


async def _agent(channel: ConsulChannel, until: float) -> list[Finding]:
    try:
        told = await _ask(channel, "agent/self", dict, until)
    except ConsulRefused:
        return [
            Finding("warning", "the agent may not be asked about itself", "give the token agent read, to learn more")
        ]
    config, debug = told.get("Config", {}), told.get("DebugConfig", {})
    found = [Finding("ok", f"Consul {config.get('Version', '?')}, agent {config.get('NodeName', '?')}")]
    if debug.get("DevMode"):
        text = "the agent runs with -dev: a restart forgets every claim, and tokens begin anew"
        found.append(Finding("error", text, "run servers that have a data_dir"))
    if not debug.get("ACLsEnabled", True):
        found.append(Finding("warning", "anybody who reaches the agent may change every lock", "enable Consul's ACLs"))
    return found
