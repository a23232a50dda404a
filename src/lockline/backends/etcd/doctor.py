"""What `lockline doctor` says about an etcd cluster."""

from __future__ import annotations

from typing import Any

from ...core.backend import Finding
from . import channel as ways
from . import messages as m
from .channel import Way
from .connection import Broken, Refused
from .keys import Keys
from .target import EtcdTarget

SLOW = 0.1
BIG = 1.5 * (1 << 30)
MENDED = {(3, 4): 31, (3, 5): 13}
"""The first release of each line whose deposed leader no longer revokes leases that live (etcd's issue 15247)."""
READS_MENDED = {(3, 4): 42, (3, 5): 28, (3, 6): 9}
"""The first release of each line in which a paused leader confirms no reads by itself (etcd's issue 20418)."""
ALARMS = {1: "NOSPACE: the database has reached its quota and takes no writes", 2: "CORRUPT: the members' data differ"}


async def findings(channel: Way, target: EtcdTarget, keys: Keys, until: float) -> list[Finding]:
    """The cluster as it is now, worst things included."""
    found: list[Finding] = []
    began = channel.now()
    await channel.ask(ways.RANGE, m.RangeRequest(key=keys.fence), "RangeResponse", until)
    took = channel.now() - began
    found.append(
        Finding("ok", f"a read that a quorum confirmed took {took * 1000:.1f} ms")
        if took < SLOW
        else Finding(
            "warning", f"a read that a quorum confirmed took {took * 1000:.0f} ms", "look at disks and network"
        )
    )
    found += await _write(channel, keys, until)
    found += await _members(channel, target, until)
    found += await _alarms(channel, until)
    if target.tls is None and not all(end.host in ("localhost", "127.0.0.1", "::1") for end in target.endpoints):
        found.append(
            Finding("warning", "requests and passwords travel in the clear", "add ?tls=yes or ?ca=… to the URL")
        )
    return found


async def _write(channel: Way, keys: Keys, until: float) -> list[Finding]:
    """A lease of a second, to see what the server makes of it and how long it takes to reach the disks."""
    began = channel.now()
    granted = await channel.ask(ways.GRANT, m.LeaseGrantRequest(TTL=1), "LeaseGrantResponse", until)
    took = channel.now() - began
    await channel.ask(ways.REVOKE, m.LeaseRevokeRequest(ID=granted.ID), "LeaseRevokeResponse", until)
    text = f"a write took {took * 1000:.1f} ms"
    return [
        Finding("ok", text) if took < SLOW else Finding("warning", text, "give etcd a faster disk of its own"),
        Finding(
            "ok", f"the shortest lease that the server gives is {granted.TTL} s: a killed client's locks stay that long"
        ),
    ]


async def _members(channel: Way, target: EtcdTarget, until: float) -> list[Finding]:
    found: list[Finding] = []
    members = (await channel.ask(ways.MEMBERS, m.MemberListRequest(), "MemberListResponse", until)).members
    voters = sum(not member.isLearner for member in members)
    if voters == 1:
        found.append(Finding("warning", "one member: while it is away, nobody gets a lock", "run three or five"))
    elif voters % 2 == 0:
        found.append(
            Finding(
                "warning", f"{voters} voting members tolerate no more losses than {voters - 1}", "run an odd number"
            )
        )
    else:
        found.append(Finding("ok", f"{voters} voting members; {(voters - 1) // 2} may fail"))
    leaders: set[int] = set()
    up = 0
    for endpoint in target.endpoints:
        deadline = min(until, channel.now() + 1.0)
        try:
            status: Any = await channel.ask_member(endpoint, ways.STATUS, m.StatusRequest(), "StatusResponse", deadline)
        except (Broken, Refused) as problem:
            found.append(Finding("error", f"{endpoint} does not answer: {problem}"))
            continue
        up += 1
        leaders.add(status.leader)
        leads = " and leads" if status.leader == status.header.member_id else ""
        found.append(Finding("ok", f"{endpoint} runs etcd {status.version}{leads}, database {status.dbSize >> 20} MiB"))
        if revokes_living_leases(status.version):
            found.append(
                Finding(
                    "warning",
                    f"etcd {status.version} has a bug: a leader that was paused and deposed may, when it goes on, end leases "
                    "that are being renewed; then two hold at once until the first is told, within a second",
                    "run 3.4.31, 3.5.13, 3.6 or later; and check tokens at the resource (lockline.fence, lease.guard())",
                )
            )
        if serves_old_reads(status.version):
            found.append(
                Finding(
                    "warning",
                    f"etcd {status.version} has a bug: a leader that was paused and deposed may answer reads from an old state. "
                    "Locks do not rest on reads (renewals, grants and releases are written), but inspect() and list() may show "
                    "what is over",
                    "run 3.4.42, 3.5.28, 3.6.9 or later",
                )
            )
        if status.dbSize > BIG:
            found.append(
                Finding(
                    "warning", f"the database of {endpoint} nears the default quota of 2 GiB", "compact and defragment"
                )
            )
        found += [Finding("error", f"{endpoint}: {text}") for text in status.errors]
    if 0 in leaders or not leaders:
        found.append(Finding("error", "a member knows no leader", "look at the network between the members"))
    elif len(leaders) > 1:
        found.append(Finding("warning", "the members do not agree about the leader", "an election may be going on"))
    if voters > up and len(target.endpoints) < voters:
        found.append(
            Finding(
                "warning", f"the URL names {len(target.endpoints)} of {voters} members", "name them all, to fail over"
            )
        )
    return found


def revokes_living_leases(version: str) -> bool:
    """Whether this release can end a lease before its time."""
    return _older(version, MENDED)


def serves_old_reads(version: str) -> bool:
    """Whether reads of this release may be old though a quorum was asked for."""
    return _older(version, READS_MENDED)


def _older(version: str, mended: dict[tuple[int, int], int]) -> bool:
    try:
        major, minor, patch = (int(part) for part in version.split("-")[0].split("."))
    except ValueError:
        return False
    return patch < mended.get((major, minor), 0)


async def _alarms(channel: Way, until: float) -> list[Finding]:
    try:
        answer = await channel.ask(ways.ALARM, m.AlarmRequest(), "AlarmResponse", until)
    except Refused as refused:
        return [
            Finding("warning", f"the alarms may not be read: {refused.text}", "give the user the root role to see them")
        ]
    return [
        Finding("error", f"member {alarm.memberID:x}: {ALARMS.get(alarm.alarm, alarm.alarm)}", "see etcdctl alarm list")
        for alarm in answer.alarms
    ] or [Finding("ok", "no alarm is raised")]
