"""What lies where in etcd, and what a claim's key says.

<prefix>/fence                                  put by every acquire, never deleted: its version is the token
<prefix>/claims/<name, quoted>/<claim id>       one claim; its create revision is its place in the line
<prefix>/clients/<client>/session/<lease>       there as long as the lease is; deleted means: all its claims are gone
<prefix>/clients/<client>/evicted/<claim id>    a note to the client whose claim an operator took away
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ...core.claim import Claim


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self.fence = self._prefix + b"/fence"
        self.claims = self._prefix + b"/claims/"

    def line(self, name: str) -> bytes:
        """What the keys of all claims on this name, and of no other, begin with: a quoted name has no slash."""
        return self.claims + quote(name, safe="").encode() + b"/"

    def claim(self, claim: Claim) -> bytes:
        return self.line(claim.name) + claim.id.encode()

    def names(self, beginning: str) -> bytes:
        """What the keys of all names that begin like this begin with."""
        return self.claims + quote(beginning, safe="").encode()

    def name_of(self, key: bytes) -> str:
        """The name in a claim's key."""
        return unquote(key[len(self.claims) :].split(b"/")[0].decode())

    def client(self, client: str) -> bytes:
        return b"%s/clients/%s/" % (self._prefix, client.encode())

    def session(self, client: str, lease: int) -> bytes:
        return self.client(client) + b"session/%x" % lease

    def nothing(self, client: str) -> bytes:
        """A key that never is, where this client may write."""
        return self.client(client) + b"nothing"

    def evicted(self, client: str, claim_id: str) -> bytes:
        return self.client(client) + b"evicted/" + claim_id.encode()


def after(prefix: bytes) -> bytes:
    """The end of the range of all keys with this prefix: the first key that comes after them."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


class SeenClaim(NamedTuple):
    """A claim as its key tells it."""

    key: bytes
    id: str
    create: int
    lease: int
    owner: str
    kind: str
    weight: int
    capacity: int
    ttl: float
    since: float
    meta: str
    client: str
    token: int
    """0 where the claim is too young to have it written down; then the fence's version at `create` is it."""


def value_of(claim: Claim, client: str, token: int = 0) -> bytes:
    """What a claim's key holds."""
    fields = [claim.owner, claim.kind, claim.weight, claim.capacity, claim.ttl, claim.since, claim.meta, client, token]
    return json.dumps(fields, separators=(",", ":")).encode()


FIELDS: tuple[type | tuple[type, ...], ...] = (str, str, int, int, (int, float), (int, float), str, str, int)
"""What `value_of` writes, in its order; more may follow one day."""


def stood(kv: Any) -> SeenClaim | None:
    """The claim behind this key and value; None for a key that somebody else has put there, which holds nothing."""
    key = kv.key
    try:
        claim_id, told = key.rpartition(b"/")[2].decode(), json.loads(kv.value)
    except (ValueError, RecursionError):
        return None
    # A claim hangs on a lease: without one it would stand for ever.
    if not kv.lease or type(told) is not list or len(told) < len(FIELDS) or not all(map(isinstance, told, FIELDS)):
        return None
    return SeenClaim(key, claim_id, kv.create_revision, kv.lease, *told[: len(FIELDS)])


def claims(kvs: Iterable[Any]) -> list[SeenClaim]:
    """The claims among these keys, in the same order."""
    return [claim for kv in kvs if (claim := stood(kv)) is not None]
