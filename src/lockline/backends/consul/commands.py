"""What is sent: what lies where in Consul, what a claim's key says, and the steps of each transaction with their reasons.

<prefix>/claims/<name, quoted>/<claim id>.        one claim, locked by its client's session; its CreateIndex is place and token
<prefix>/clients/<client>/session/<session>       there as long as the session is
<prefix>/clients/<client>/session/<session>/<nn>  a fence: its ModifyIndex tells which requests of some claims are too old
<prefix>/clients/<client>/<claim id>/bell         whoever made room for this claim leaves word of it here
<prefix>/clients/<client>/<claim id>/evicted      an operator has taken this claim away
<prefix>/kept/<name, quoted>/<what>.              a value that is kept beside a line, on no session

All others hang on a session that deletes what it has locked. The token is the index of the write in the log that the servers agree on.
It cannot fall while the cluster lives, also not when a snapshot is restored into it: that is written to the log as well.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote
from zlib import crc32

from ...core.claim import Claim
from ..keyed.entries import KeyedEntry, Told, read, written

Step = dict[str, Any]
"""One step of a transaction, as Consul's API has it."""
MOST_STEPS: Final = 64
"""Consul takes no more in one transaction; later releases take twice as many."""
FENCES: Final = 64
"""So many share the claims on one session."""
MOST_BYTES: Final = 384 << 10
"""Half a megabyte is the most that it reads; names and what is said of claims may be long."""
A_STEP: Final = 200
"""What a step takes beside its key and its value, at the most."""


class ConsulKeys:
    """The keys under one prefix, as one client has to do with them."""

    def __init__(self, prefix: str, client: str) -> None:
        self._prefix = prefix
        self.client = client
        self.claims = f"{prefix}/claims/"
        self.home = f"{prefix}/clients/{client}/"
        """What this client's own keys begin with."""

    def line(self, name: str) -> str:
        """What the keys of all claims on this name, and of no other, begin with: a quoted name has no slash."""
        return f"{self.claims}{quote(name, safe='')}/"

    def claim(self, claim: Claim) -> str:
        """Where this claim stands; with an end of its own, so that no key begins with another."""
        return f"{self.line(claim.name)}{claim.id}."

    def value_of(self, claim: Claim, *granted: float) -> str:
        """What a claim's key holds."""
        return base64.b64encode(written(claim, self.client, *granted).encode()).decode()

    def names(self, beginning: str) -> str:
        """What the keys of all names that begin like this begin with."""
        return self.claims + quote(beginning, safe="")

    def name_of(self, key: str) -> str:
        """The name in a claim's key."""
        return unquote(key[len(self.claims) :].partition("/")[0])

    def session(self, session: str) -> str:
        """What dies with this session; its fences begin like this."""
        return f"{self.home}session/{session}"

    def fence(self, session: str, claim_id: str) -> str:
        """What tells by its index which requests for this claim are too old.

        One of many: were it the only one, each claim that is withdrawn would refuse the requests of all others that are on their way.
        """
        return f"{self.session(session)}/{crc32(claim_id.encode()) % FENCES:02x}"

    @property
    def all_kept(self) -> str:
        """What begins all that is kept beside lines."""
        return f"{self._prefix}/kept/"

    def kept(self, name: str, what: str = "") -> str:
        """Where something is kept beside the line of this name; what begins all of it, if nothing is named."""
        return f"{self.all_kept}{quote(name, safe='')}/{what and f'{what}.'}"

    def notes_to(self, claim_id: str, client: str | None = None) -> str:
        """What begins all that is said about a claim to its client (this one, unless another is named)."""
        home = self.home if client is None else f"{self._prefix}/clients/{client}/"
        return f"{home}{claim_id}/"


@dataclass(slots=True, kw_only=True)
class ToldClaim(KeyedEntry):
    """A claim as its key tells it."""

    key: str
    create: int
    """Its place in the line, and its token."""
    modified: int
    """Moves with every renewal: one whose number stands still for a ttl is dead."""
    session: str


@lru_cache(maxsize=8192)
def _told(value: str) -> Told | None:
    # The same text is read again with every look at a line, and renewals do not change it.
    return read(base64.b64decode(value))


def told_claim(entry: dict[str, Any]) -> ToldClaim | None:
    """The claim behind this entry; None for a key that somebody else has put there, which holds nothing."""
    key, session = entry["Key"], entry.get("Session")
    told = _told(entry.get("Value") or "")
    # A claim hangs on a session: without one it would stand for ever.
    if told is None or not session:
        return None
    claim_id = key.rpartition("/")[2][:-1]
    return ToldClaim(
        claim_id, *told, key=key, create=entry["CreateIndex"], modified=entry["ModifyIndex"], session=session
    )


def each_told(entries: Iterable[dict[str, Any]]) -> Iterator[ToldClaim]:
    """The claims among these entries, in their order, each read when it is asked for."""
    return filter(None, map(told_claim, entries))


def told_claims(entries: Iterable[dict[str, Any]]) -> list[ToldClaim]:
    """The claims among these entries, in order of arrival."""
    return sorted(each_told(entries), key=lambda claim: claim.create)


# -- steps ---------------------------------------------------------------------------------------------


def look(beginning: str) -> Step:
    """Everything under this beginning, which may be nothing; after the steps before it."""
    return {"Verb": "get-tree", "Key": beginning}


def may_read(beginning: str) -> Step:
    """Refused where the token may not read what begins like this: a look alone would find nothing there, and not say why."""
    return {"Verb": "check-not-exists", "Key": f"{beginning}{secrets.token_hex(8)}"}


def remove(key: str) -> Step:
    return {"Verb": "delete", "Key": key}


def remove_all(beginning: str) -> Step:
    return {"Verb": "delete-tree", "Key": beginning}


def put(key: str, session: str, value: str = "", flags: int = 0) -> Step:
    """Put this key under a session that lives, so that it goes with it."""
    return {"Verb": "lock", "Key": key, "Session": session, "Value": value, "Flags": flags}


def unmoved(key: str, index: int) -> Step:
    """Holds while this key was last put at that index; with 0, while there is none."""
    if not index:
        return {"Verb": "check-not-exists", "Key": key}
    return {"Verb": "check-index", "Key": key, "Index": index}


def stands(claim: ToldClaim) -> Step:
    """Holds while this claim is there, on its session."""
    return {"Verb": "check-session", "Key": claim.key, "Session": claim.session}


def enter(key: str, value: str, session: str, fence: str, put_at: int) -> list[Step]:
    """Stand at the end of the line.

    Not if the fence was put since: then the claim, or another with the same fence, was withdrawn while this request was on its way. And not if the
    claim stands already: a repeat.
    """
    return [unmoved(fence, put_at), unmoved(key, 0), put(key, session, value)]


def renew(key: str, index: int, value: str, beat: int) -> Step:
    """Put a claim anew in its place, if it still stands as it was put at that index: never creates.

    The beat makes it another text: Consul does not count a put that changes nothing.
    """
    return {"Verb": "cas", "Key": key, "Index": index, "Value": value, "Flags": beat}


def move(key: str, old: str, new: str, value: str, beat: int) -> list[Step]:
    """Hang a claim on another session, in its place; fails if it does not stand on the old one."""
    return [{"Verb": "unlock", "Key": key, "Session": old, "Value": value, "Flags": beat}, put(key, new, value, beat)]


def leave(key: str, notes: str) -> list[Step]:
    """See whether the claim is there, and remove it with what was said about it."""
    return [look(key), remove(key), remove_all(notes)]


def remove_as_seen(key: str, index: int) -> Step:
    """Remove a key, if it was last put at that index."""
    return {"Verb": "delete-cas", "Key": key, "Index": index}


def bury(claim: ToldClaim, notes: str) -> list[Step]:
    """Remove a claim that nobody has renewed since it was seen, and what was said about it."""
    return [remove_as_seen(claim.key, claim.modified), remove_all(notes)]


def keep(claim: ToldClaim, key: str, value: str) -> list[Step]:
    """Set this value, only while that very claim stands in its line.

    Whoever comes after it holds only when it is gone: so what a newer one has written, or has begun to compute, is never overwritten.
    """
    return [stands(claim), {"Verb": "set", "Key": key, "Value": value}]


def evict(claim: ToldClaim, notes: str) -> list[Step]:
    """Remove this very claim, if it is there, and leave word for its client."""
    return [{"Verb": "get", "Key": claim.key}, remove(claim.key), put(f"{notes}evicted", claim.session)]


def batches(steps_of: Sequence[list[Step]]) -> Iterable[list[list[Step]]]:
    """These bundles of steps, in groups that fit into one transaction each."""
    batch: list[list[Step]] = []
    count = size = 0
    for steps in steps_of:
        more = sum(len(step["Key"]) + len(step.get("Value", "")) + A_STEP for step in steps)
        if batch and (count + len(steps) > MOST_STEPS or size + more > MOST_BYTES):
            yield batch
            batch, count, size = [], 0, 0
        batch.append(steps)
        count, size = count + len(steps), size + more
    if batch:
        yield batch
