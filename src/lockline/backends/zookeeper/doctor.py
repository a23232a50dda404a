"""What is good and what is dangerous about an ensemble, from what its servers tell."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

from ...core.backend import Finding, Findings
from ...runtime import Runtime
from .channel import KazooChannel
from .session import MOST_PATHS, Session

Member = tuple[str, int]
Said = dict[Member, dict[str, str]]
"""What each server says of itself; of one that does not answer, its problem."""

SLOW_FSYNC: Final = 100.0
SLOW_ANSWER: Final = 50.0
BOUND: Final = Finding(
    "ok",
    f"a client of Lockline holds at most {MOST_PATHS} bytes of paths in its session, and refuses more locks: at the end of a session above "
    "jute.maxbuffer (1048575 bytes unless set) all servers stop and do not start again; never set that lower",
)


async def findings(channel: KazooChannel, session: Session, config: Any, runtime: Runtime, until: float) -> Findings:
    """Ask each server in a thread of its own, so that neither a loop nor a dead server holds up the rest."""
    told: Said = {}
    done = runtime.signal()
    hosts = list(channel.client.hosts)
    seconds = max(0.2, min(5.0, until - runtime.now() - 0.5))

    def ask(host: str, port: int) -> None:
        try:
            told[host, port] = _facts(channel, host, port, seconds)
        except OSError as problem:
            told[host, port] = {"problem": str(problem)}
        if len(told) == len(hosts):
            done.set()

    for host, port in hosts:
        threading.Thread(target=ask, args=(host, port), daemon=True).start()
    await done.wait(min(until, runtime.now() + seconds + 1.0))
    # Who answers too late goes on in its own thread.
    told = dict(told)
    return [*_members(told, hosts, config), *_timeouts(session, told), BOUND, *_latency(told)]


def _facts(channel: KazooChannel, host: str, port: int, seconds: float) -> dict[str, str]:
    """`srvr`, and `mntr` and `conf` where they are allowed, as one table."""
    facts: dict[str, str] = {}
    for word in (b"srvr", b"mntr", b"conf"):
        text = _ask(channel, host, port, word, seconds)
        if "not in the whitelist" in text:
            facts[f"no {word.decode()}"] = text
            continue
        for line in text.splitlines():
            for mark in ("\t", "=", ": "):
                key, found, value = line.partition(mark)
                if found:
                    facts[key.strip()] = value.strip()
                    break
    return facts


def _ask(channel: KazooChannel, host: str, port: int, word: bytes, seconds: float) -> str:
    client = channel.client
    connection = client.handler.create_connection(
        address=(host, port), hostname=host, timeout=seconds, use_ssl=client.use_ssl, keyfile=client.keyfile,
        certfile=client.certfile, ca=client.ca, keyfile_password=client.keyfile_password,
        verify_certs=client.verify_certs, check_hostname=client.check_hostname,
    )  # fmt: skip
    with connection:
        connection.settimeout(seconds)
        connection.sendall(word)
        parts = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except TimeoutError:
            pass
        return b"".join(parts).decode("utf-8", "replace")


def _members(told: Said, hosts: list[Member], config: Any) -> Iterator[Finding]:
    voters = 0
    if isinstance(config, tuple):
        lines = config[0].decode("utf-8", "replace").splitlines()
        voters = sum(line.startswith("server.") and ":observer" not in line for line in lines)
    modes = {server: facts.get("Mode", "") for server, facts in told.items()}
    standalone = "standalone" in modes.values()
    if standalone:
        yield Finding("warning", "one server and no ensemble: it is down when that server is", "run three or five")
    elif voters:
        majority = voters // 2 + 1
        yield Finding("ok", f"an ensemble of {voters}; {majority} make a majority, {voters - majority} may fail")
        if voters % 2 == 0:
            yield Finding("warning", f"{voters} voters bear no more failures than {voters - 1}", "use an odd number")
        if len(hosts) < voters:
            few = f"the URL names {len(hosts)} of {voters} servers"
            yield Finding("warning", few, "name all of them, so that any may fail")
    leaders = [f"{host}:{port}" for (host, port), mode in modes.items() if mode == "leader"]
    if leaders:
        yield Finding("ok", f"the leader is {', '.join(leaders)}")
    elif not standalone and len(hosts) >= voters:
        yield Finding("warning", "no server of the URL says that it leads", "is `srvr` in 4lw.commands.whitelist?")
    for host, port in hosts:
        facts = told.get((host, port), {"problem": "no answer"})
        if "problem" in facts:
            yield Finding("error", f"{host}:{port} does not answer: {facts['problem']}", "start it, or take it out")
        elif "no srvr" in facts:
            yield Finding("warning", f"{host}:{port} does not tell about itself", "allow srvr and mntr (4lw)")


def _timeouts(session: Session, told: Said) -> Iterator[Finding]:
    asked = session.asked / 1000
    text = f"a session timeout of {asked:g} s was asked for and {session.timeout:g} s granted"
    if session.timeout > asked * 1.01:
        text += f": a dead holder keeps its lock for {session.timeout:g} s"
        yield Finding("warning", text, "lower minSessionTimeout")
    elif session.timeout < asked * 0.99:
        yield Finding("warning", f"{text}: longer pauses end every lease", "raise maxSessionTimeout")
    else:
        yield Finding("ok", text)
    limits = {
        (facts["minSessionTimeout"], facts["maxSessionTimeout"])
        for facts in told.values()
        if "minSessionTimeout" in facts and "maxSessionTimeout" in facts
    }
    if len(limits) > 1:
        yield Finding(
            "warning",
            "the servers give sessions of different lengths: which one a client has depends on where it connects",
            "set the same minSessionTimeout and maxSessionTimeout on all",
        )
    for (host, port), facts in told.items():
        low, high, tick = (facts.get(key) for key in ("minSessionTimeout", "maxSessionTimeout", "tickTime"))
        if not (low and high and tick):
            continue
        yield Finding("ok", f"{host}:{port} gives sessions of {int(low) / 1000:g} to {int(high) / 1000:g} s")
        if int(low) < 2 * int(tick):
            text = f"{host}:{port} allows sessions shorter than two ticks: a cut may be noticed too late"
            yield Finding("warning", text, "keep minSessionTimeout at two ticks or more")


def _latency(told: Said) -> Iterator[Finding]:
    for (host, port), facts in told.items():
        average = _number(facts.get("zk_avg_latency"))
        if average is None:
            average = _number(facts.get("Latency min/avg/max", "").split("/")[1:2])
        if average is not None and average > SLOW_ANSWER:
            yield Finding("warning", f"{host}:{port} takes {average:g} ms to answer on average", "look at its load")
        elif average is not None:
            yield Finding("ok", f"{host}:{port} answers in {average:g} ms on average")
        disk = _number(facts.get("zk_p99_fsynctime")) or _number(facts.get("zk_avg_fsynctime"))
        if disk is None:
            continue
        text = f"{host}:{port} needs {disk:g} ms to write to disk (99 of 100)"
        if disk > SLOW_FSYNC:
            yield Finding("warning", text, "give its transaction log a disk of its own")
        else:
            yield Finding("ok", text)


def _number(text: Any) -> float | None:
    try:
        return float(text[0] if isinstance(text, list) else text)
    except (TypeError, ValueError, IndexError):
        return None
