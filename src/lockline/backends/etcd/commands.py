"""The transactions, each with the reason for its steps."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from . import messages as m
from .keys import after

ENOUGH = 32
"""How many claims ahead are asked for at first; only a semaphore with more permits may need them all."""


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    return m.RequestOp(request_put=m.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes) -> Any:
    return m.RequestOp(request_delete_range=m.DeleteRangeRequest(key=key))


def get(key: bytes, **more: Any) -> Any:
    return m.RequestOp(request_range=m.RangeRequest(key=key, **more))


def created(key: bytes, revision: int) -> Any:
    """Holds while this very claim stands: a key that was deleted and made again has another create revision."""
    return m.Compare(result=m.EQUAL, target=m.CREATE, key=key, create_revision=revision)


def changed(key: bytes, revision: int) -> Any:
    return m.Compare(result=m.EQUAL, target=m.MOD, key=key, mod_revision=revision)


def nobody_since(line: bytes, revision: int) -> Any:
    """Holds if no claim of the line is younger than this revision; with 0, if there is none at all."""
    if not revision:
        return m.Compare(result=m.EQUAL, target=m.CREATE, key=line, range_end=after(line), create_revision=0)
    return m.Compare(result=m.LESS, target=m.CREATE, key=line, range_end=after(line), create_revision=revision + 1)


def line_back_from(line: bytes, create: int, limit: int, serializable: bool = False) -> Any:
    """The line from this claim (0: from its end) towards its head."""
    return m.RangeRequest(
        key=line, range_end=after(line), max_create_revision=create, limit=limit,
        sort_order=m.DESCEND, sort_target=m.BY_CREATE, serializable=serializable,
    )  # fmt: skip


def whole_line(line: bytes, limit: int = 0) -> Any:
    return m.RangeRequest(key=line, range_end=after(line), sort_order=m.ASCEND, sort_target=m.BY_CREATE, limit=limit)


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


def seen_by_a_quorum(steps: list[Any], nothing: bytes) -> Any:
    """These steps, as something to be written down, though they may only look: the last step removes a key that never is.

    etcd takes it through its log, as every write, so that only a leader that a quorum follows can answer. It changes nothing,
    makes no revision, and nobody hears of it.
    """
    return m.TxnRequest(success=[*steps, delete(nothing)])


def evict(key: bytes, create: int, note: bytes, lease: int) -> Any:
    """Remove this very claim, and leave a note that its client hears and that goes with the client's lease."""
    return m.TxnRequest(compare=[created(key, create)], success=[delete(key), put(note, b"", lease)])


def still_there(key: bytes) -> Any:
    return get(key, keys_only=True)


def rewritten(key: bytes, since: int, value: bytes, lease: int) -> Any:
    """A claim told anew in its place, if it still stands as it was told at that revision.

    A request that was long under way would take back what was said after it: the longer lease, the lighter weight.
    """
    return m.RequestOp(
        request_txn=m.TxnRequest(
            compare=[changed(key, since)],
            success=[put(key, value, lease), still_there(key)],
            failure=[still_there(key)],
        )
    )
