"""What `lockline doctor` says about an etcd cluster."""

from __future__ import annotations

from typing import Any

from ...core.backend import Finding
from ..keyed.findings import in_the_clear, took, voters
from ..url import Endpoint
from . import messages as m
from .channel import Way
from .commands import ALARM, GRANT, MEMBERS, RANGE, REVOKE, STATUS, Keys
from .grpc import Broken, GrpcRefused
from .target import EtcdTarget

BIG = 1.5 * (1 << 30)
MENDED = {(3, 4): 31, (3, 5): 13}
"""The first release of each line whose deposed leader no longer revokes leases that live (etcd's issue 15247)."""
READS_MENDED = {(3, 4): 42, (3, 5): 28, (3, 6): 9}
"""The first release of each line in which a paused leader confirms no reads by itself (etcd's issue 20418)."""
ALARMS = {1: "NOSPACE: the database has reached its quota and takes no writes", 2: "CORRUPT: the members' data differ"}


async def findings(channel: Way, target: EtcdTarget, keys: Keys, until: float) -> list[Finding]:
    """The cluster as it is now, worst things included."""
    began = channel.now()
    await channel.ask(RANGE, m.RangeRequest(key=keys.fence), until)
    read = channel.now()
    # A lease of a second, to see what the server makes of it and how long it takes to reach the disks.
    granted = await channel.ask(GRANT, m.LeaseGrantRequest(TTL=1), until)
    written = channel.now()
    await channel.ask(REVOKE, m.LeaseRevokeRequest(ID=granted.ID), until)
    found = [
        took("a read that a quorum confirmed", read - began, "look at disks and network"),
        took("a write", written - read, "give etcd a faster disk of its own"),
        Finding(
            "ok", f"the shortest lease that the server gives is {granted.TTL} s: a killed client's locks stay that long"
        ),
    ]
    found += await _members(channel, target, until)
    found += await _alarms(channel, until)
    if target.tls is None:
        found += in_the_clear(target.endpoints, "passwords", "add ?tls=yes or ?ca=… to the URL")
    return found


async def _members(channel: Way, target: EtcdTarget, until: float) -> list[Finding]:
    members = (await channel.ask(MEMBERS, m.MemberListRequest(), until)).members
    voting = sum(not member.isLearner for member in members)
    found = [voters(voting, "member", "voting members")]
    leaders: set[int] = set()
    up = 0
    for endpoint in target.endpoints:
        deadline = min(until, channel.now() + 1.0)
        try:
            status = await channel.ask_member(endpoint, STATUS, m.StatusRequest(), deadline)
        except (Broken, GrpcRefused) as problem:
            found.append(Finding("error", f"{endpoint} does not answer: {problem}"))
            continue
        up += 1
        leaders.add(status.leader)
        found += _member(endpoint, status)
    if 0 in leaders or not leaders:
        found.append(Finding("error", "a member knows no leader", "look at the network between the members"))
    elif len(leaders) > 1:
        found.append(Finding("warning", "the members do not agree about the leader", "an election may be going on"))
    if voting > up and len(target.endpoints) < voting:
        text = f"the URL names {len(target.endpoints)} of {voting} members"
        found.append(Finding("warning", text, "name them all, to fail over"))
    return found


def _member(endpoint: Endpoint, status: Any) -> list[Finding]:
    leads = " and leads" if status.leader == status.header.member_id else ""
    found = [Finding("ok", f"{endpoint} runs etcd {status.version}{leads}, database {status.dbSize >> 20} MiB")]
    bug = f"etcd {status.version} has a bug: a leader that was paused and deposed may"
    if revokes_living_leases(status.version):
        text = (
            f"{bug}, when it goes on, end leases that are being renewed; then two hold at once until the first is told, "
            "within a second"
        )
        cure = "run 3.4.31, 3.5.13, 3.6 or later; and check tokens at the resource (lockline.fence, lease.guard())"
        found.append(Finding("warning", text, cure))
    if serves_old_reads(status.version):
        text = (
            f"{bug} answer reads from an old state. Locks do not rest on reads (renewals, grants and releases are "
            "written), but inspect() and list() may show what is over"
        )
        found.append(Finding("warning", text, "run 3.4.42, 3.5.28, 3.6.9 or later"))
    if status.dbSize > BIG:
        text = f"the database of {endpoint} nears the default quota of 2 GiB"
        found.append(Finding("warning", text, "compact and defragment"))
    return [*found, *(Finding("error", f"{endpoint}: {text}") for text in status.errors)]


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
        answer = await channel.ask(ALARM, m.AlarmRequest(), until)
    except GrpcRefused as refused:
        cure = "give the user the root role to see them"
        return [Finding("warning", f"the alarms may not be read: {refused.text}", cure)]
    return [
        Finding("error", f"member {alarm.memberID:x}: {ALARMS.get(alarm.alarm, alarm.alarm)}", "see etcdctl alarm list")
        for alarm in answer.alarms
    ] or [Finding("ok", "no alarm is raised")]
