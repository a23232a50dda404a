"""What is sent: etcd's calls, what lies where in etcd, what a claim's key says, and each transaction with the reason for its steps.

<prefix>/fence                                  put by every acquire, never deleted: its version is the token
<prefix>/claims/<name, quoted>/<claim id>       one claim; its create revision is its place in the line
<prefix>/clients/<client>/session/<lease>       there as long as the lease is; deleted means: all its claims are gone
<prefix>/clients/<client>/evicted/<claim id>    a note to the client whose claim an operator took away
<prefix>/kept/<name, quoted>/<what>             a value that is kept beside a line, on a lease of its own that ends it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from ...core.claim import Claim
from ..keyed.entries import KeyedEntry, read, written
from . import messages as m


class Method(NamedTuple):
    """One of etcd's calls."""

    path: str
    answer: Any
    """The kind of message that comes back."""
    by_quorum: bool = False
    """Whether an answer says that the member is in touch with the others; one that is cut off may give the rest alone."""


def _method(name: str, by_quorum: bool = False) -> Method:
    return Method(f"/etcdserverpb.{name}", getattr(m, f"{name.partition('/')[2]}Response"), by_quorum)


AUTHENTICATE: Final = _method("Auth/Authenticate")
TXN: Final = _method("KV/Txn", by_quorum=True)
RANGE: Final = _method("KV/Range")
WATCH: Final = _method("Watch/Watch")
GRANT: Final = _method("Lease/LeaseGrant", by_quorum=True)
REVOKE: Final = _method("Lease/LeaseRevoke", by_quorum=True)
KEEP_ALIVE: Final = _method("Lease/LeaseKeepAlive")
TIME_TO_LIVE: Final = _method("Lease/LeaseTimeToLive")
STATUS: Final = _method("Maintenance/Status")
ALARM: Final = _method("Maintenance/Alarm")
MEMBERS: Final = _method("Cluster/MemberList")
ENOUGH: Final = 32
"""How many claims ahead are asked for at first; only a semaphore with more permits may need them all."""

# -- keys ----------------------------------------------------------------------------------------------


class Keys:
    """The keys under one prefix, as one client has to do with them."""

    def __init__(self, prefix: str, client: str) -> None:
        self._prefix = prefix.encode()
        self._client = client
        self.fence = self._prefix + b"/fence"
        self.claims = self._prefix + b"/claims/"
        self.home = self._home(client)
        """What this client's own keys begin with."""
        self.nothing = self.home + b"nothing"
        """A key that never is, where this client may write."""

    def line(self, name: str) -> bytes:
        """What the keys of all claims on this name, and of no other, begin with: a quoted name has no slash."""
        return self.claims + quote(name, safe="").encode() + b"/"

    def claim(self, claim: Claim) -> bytes:
        """Where this claim stands."""
        return self.line(claim.name) + claim.id.encode()

    def value_of(self, claim: Claim, token: int = 0, *granted: float) -> bytes:
        """What a claim's key holds."""
        return written(claim, self._client, token, *granted).encode()

    def names(self, beginning: str) -> bytes:
        """What the keys of all names that begin like this begin with."""
        return self.claims + quote(beginning, safe="").encode()

    def name_of(self, key: bytes) -> str:
        """The name in a claim's key."""
        return unquote(key[len(self.claims) :].split(b"/")[0].decode())

    def session(self, lease: int) -> bytes:
        """What dies with this lease, and tells by its revision which requests on it are too old."""
        return self.home + b"session/%x" % lease

    def note(self, claim_id: str, client: str | None = None) -> bytes:
        """Where an operator leaves word of an eviction for the client (this one, unless another is named)."""
        return (self.home if client is None else self._home(client)) + b"evicted/" + claim_id.encode()

    def kept(self, name: str, what: str) -> bytes:
        """Where something is kept beside the line of this name."""
        return b"%s/kept/%s/%s" % (self._prefix, quote(name, safe="").encode(), what.encode())

    def _home(self, client: str) -> bytes:
        return b"%s/clients/%s/" % (self._prefix, client.encode())


def after(prefix: bytes) -> bytes:
    """The end of the range of all keys with this prefix: the first key that comes after them."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


@dataclass(slots=True, kw_only=True)
class SeenClaim(KeyedEntry):
    """A claim as its key tells it."""

    token: int
    """0 where the claim is too young to have it written down; then the fence's version at `create` is it."""
    key: bytes
    create: int
    lease: int


def seen_claim(kv: Any) -> SeenClaim | None:
    """The claim behind this key and value; None for a key that somebody else has put there, which holds nothing."""
    key, told = kv.key, read(kv.value, numbers=1)
    # A claim hangs on a lease: without one it would stand for ever.
    if told is None or not kv.lease:
        return None
    claim_id, (*entry, token) = key.rpartition(b"/")[2].decode(errors="replace"), told
    return SeenClaim(claim_id, *entry, token=token, key=key, create=kv.create_revision, lease=kv.lease)


def seen_claims(kvs: Iterable[Any]) -> list[SeenClaim]:
    """The claims among these keys, in the same order."""
    return [claim for kv in kvs if (claim := seen_claim(kv)) is not None]


# -- steps ---------------------------------------------------------------------------------------------


Part = dict[str, Any]
"""A part of a transaction, by the names of its fields: protobuf fills it in where it belongs. A message would be copied there, and that
takes longer than all the rest of a request."""


def put(key: bytes, value: bytes, lease: int = 0) -> Part:
    return {"request_put": {"key": key, "value": value, "lease": lease}}


def delete(key: bytes) -> Part:
    return {"request_delete_range": {"key": key}}


def get(key: bytes, **more: Any) -> Part:
    return {"request_range": {"key": key, **more}}


def created(key: bytes, revision: int) -> Part:
    """Holds while this very claim stands: a key that was deleted and made again has another create revision."""
    return {"result": m.EQUAL, "target": m.CREATE, "key": key, "create_revision": revision}


def changed(key: bytes, revision: int) -> Part:
    return {"result": m.EQUAL, "target": m.MOD, "key": key, "mod_revision": revision}


def nobody_since(line: bytes, revision: int) -> Part:
    """Holds if no claim of the line is younger than this revision; with 0, if there is none at all."""
    younger = {"target": m.CREATE, "key": line, "range_end": after(line)}
    if not revision:
        return {"result": m.EQUAL, "create_revision": 0, **younger}
    return {"result": m.LESS, "create_revision": revision + 1, **younger}


def line_back_from(line: bytes, create: int, limit: int, serializable: bool = False) -> Any:
    """The line from this claim (0: from its end) towards its head."""
    return m.RangeRequest(
        key=line, range_end=after(line), max_create_revision=create, limit=limit,
        sort_order=m.DESCEND, sort_target=m.BY_CREATE, serializable=serializable,
    )  # fmt: skip


def whole_line(line: bytes) -> Any:
    return m.RangeRequest(key=line, range_end=after(line), sort_order=m.ASCEND, sort_target=m.BY_CREATE)


def enter(
    key: bytes, value: bytes, lease: int, line: bytes, fence: bytes, session: bytes, generation: int,
    capacity: int, room_at: int | None,
) -> bytes:  # fmt: skip
    """Stand at the end of the line, take a token, and see who is ahead: all in one step.

    Not if the claim stands already (a repeat), and not if the session has moved on since: then the claim was withdrawn
    while this request was on its way. With `room_at` only if nobody has come since the line was seen to have room.
    """
    compare = [created(key, 0)]
    if room_at is not None:
        compare.append(nobody_since(line, room_at))
    own = m.TxnRequest(compare=compare, success=[put(key, value, lease)], failure=[get(key)])
    # Two messages one after the other are one with the lists of both.
    return bytes(own.SerializeToString()) + _around(line, fence, session, generation, capacity)


@lru_cache(maxsize=1024)
def _around(line: bytes, fence: bytes, session: bytes, generation: int, capacity: int) -> bytes:
    """What is the same in every `enter` of a client to this line."""
    look = m.RequestOp(request_range=line_back_from(line, 0, min(capacity, ENOUGH) + 2))
    raised = m.RequestOp(request_put=m.PutRequest(key=fence, prev_kv=True))
    around = m.TxnRequest(compare=[changed(session, generation)], success=[raised, look], failure=[get(session), look])
    return bytes(around.SerializeToString())


def leave(key: bytes, create: int, note: bytes) -> Any:
    """Remove this very claim; if an operator has done so before, remove the note about it."""
    if not create:
        return m.TxnRequest(success=[delete(key), delete(note)])
    return m.TxnRequest(compare=[created(key, create)], success=[delete(key)], failure=[delete(note)])


def withdraw(claims: Iterable[tuple[bytes, bytes]], session: bytes, lease: int) -> Any:
    """Remove claims (key and note) whose `enter` has not been answered, and make sure that none is applied after this."""
    ends = [delete(key) for claim in claims for key in claim]
    return m.TxnRequest(success=[put(session, b"", lease), *ends])


def seen_by_a_quorum(steps: list[Part], nothing: bytes) -> Any:
    """These steps, as something to be written down, though they may only look: the last step removes a key that never is.

    etcd takes it through its log, as every write, so that only a leader that a quorum follows can answer. It changes nothing,
    makes no revision, and nobody hears of it.
    """
    return m.TxnRequest(success=[*steps, delete(nothing)])


def evict(key: bytes, create: int, note: bytes, lease: int) -> Any:
    """Remove this very claim, and leave a note that its client hears and that goes with the client's lease."""
    return m.TxnRequest(compare=[created(key, create)], success=[delete(key), put(note, b"", lease)])


def keep(claim: bytes, create: int, key: bytes, value: bytes, lease: int) -> Any:
    """Put this value, and see on which lease the one before hung; only while that very claim stands in its line.

    Whoever comes after it holds only when it is gone: so what a newer one has written, or has begun to compute, is never overwritten.
    """
    return m.TxnRequest(
        compare=[created(claim, create)],
        success=[get(key, keys_only=True), put(key, value, lease)],
        failure=[get(key)],
    )


def still_there(key: bytes) -> Part:
    return get(key, keys_only=True)


def rewritten(key: bytes, since: int, value: bytes, lease: int) -> Part:
    """A claim told anew in its place, if it still stands as it was told at that revision.

    A request that was long under way would take back what was said after it: the longer lease, the lighter weight.
    """
    return {
        "request_txn": {
            "compare": [changed(key, since)],
            "success": [put(key, value, lease), still_there(key)],
            "failure": [still_there(key)],
        }
    }
