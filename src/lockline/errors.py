"""Every error Lockline raises, under one root, each naming the lock and the cure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal


def printable(text: str) -> str:
    """The text of a stranger as it may stand in a message: on one line, and without a word to the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class LocklineError(Exception):
    """The root: `except LocklineError` catches all of Lockline and nothing else."""

    def __reduce__(self) -> tuple[object, ...]:
        # Its text and attributes travel between processes; a pool that could not read an error would break.
        return _made_again, (type(self), self.args, dict(vars(self)))


def _made_again(kind: type[LocklineError], args: tuple[object, ...], attributes: dict[str, object]) -> LocklineError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error


class ConfigError(LocklineError, ValueError):
    """Wrong use, found before any I/O."""


class AcquireTimeout(LocklineError, TimeoutError):
    """The lock stayed taken for the whole wait, or this client's own crowd was not asked through; nothing of the attempt is left in the line."""

    def __init__(
        self, name: str, *, waited: float, holders: tuple[str, ...] = (), ahead: int | None = None, crowd: int = 0
    ) -> None:
        self.name = name
        self.waited = waited
        self.holders = holders
        self.ahead = ahead
        self.crowd = crowd
        """How many calls of the same client had to ask the store first, where it was not even asked for this one."""
        text = f"{name!r} stayed taken for {waited:.1f} s"
        if crowd:
            text = f"{name!r} was not asked for in {waited:.1f} s: {crowd} calls of this client came first; give it longer, or use more clients"
        if holders:
            text += f": held by {', '.join(holders)}"
        if ahead:
            text += f"; {ahead} ahead of you"
        super().__init__(text)


class LineFull(LocklineError):
    """More waited already than the caller wants to stand behind; nothing of the attempt is left in the line."""

    def __init__(self, name: str, *, waiting: int, most: int) -> None:
        self.name = name
        self.waiting = waiting
        self.most = most
        super().__init__(f"{waiting} wait for {name!r} already, and max_waiting is {most}; try again later")


class OnceFailed(LocklineError):
    """The computation that a caller of `once` waited for has failed in another process: `kind` is its error's type, `text` its text."""

    def __init__(self, name: str, *, owner: str, kind: str, text: str) -> None:
        self.name = name
        self.owner = owner
        self.kind = kind
        self.text = text
        what = printable(f"{kind}: {text}" if text else kind)
        super().__init__(f"the value of {name!r} could not be computed by {printable(owner)}: {what}")


Reason = Literal["expired", "evicted", "taken", "closed"]
Cause = Literal["silent", "session", "paused", "ended", "dropped", "unrenewed", "max_hold", "gone", "closed"]


class LeaseLost(LocklineError):
    """The lease ended before its holder let go.

    `reason` says what happened to it: expired, evicted, taken or closed. `cause` says why, as far as this client can know:
    the store was "silent", the "session" with it ended, this process was "paused" (or its event loop blocked), the thread
    or task that took the lease has "ended", the lease was "dropped", or was to be "unrenewed", "max_hold" was over, it is
    "gone" from the store, or the client was "closed".
    """

    def __init__(
        self,
        name: str,
        *,
        token: int | None,
        reason: Reason,
        when: float | None = None,
        cause: Cause | None = None,
        detail: str = "",
    ) -> None:
        self.name = name
        self.token = token
        self.reason: Reason = reason
        self.cause: Cause | None = cause
        self.detail = detail
        self.when = time.time() if when is None else when
        clock = time.strftime("%H:%M:%S", time.localtime(self.when))
        why = f", because {detail}" if detail else ""
        super().__init__(
            f"the lease on {name!r} (token {token}) was lost: {reason} at {clock}{why}; "
            "stop the work, its writes may no longer be the only ones"
        )


class LeaseDropped(RuntimeWarning):
    """A lease that nobody can reach any more was neither released nor lost: the habit of dropping what acquire() returns."""


class NotHeld(LocklineError, RuntimeError):
    """A release of something that this lease no longer holds."""


class WouldDeadlock(LocklineError, RuntimeError):
    """The same thread or task asks for what it holds itself, and would wait for ever."""


class BackendUnavailable(LocklineError, ConnectionError):
    """The store gave no answer, or one that says it cannot serve now."""

    permanent = False
    """Whether asking again is of no use: the store answered, and the answer is no."""
    unsent = False
    """Whether nothing of the request can have reached the store: then there is nothing to undo."""


class ClientClosed(BackendUnavailable):
    """The client was closed, before the call or while it waited."""

    def __init__(self, message: str = "this client is closed; connect a new one") -> None:
        super().__init__(message)


class QuorumNotReached(BackendUnavailable):
    """Too few of the servers agreed; `nodes` says what happened at each."""

    def __init__(self, message: str, *, nodes: Mapping[str, str]) -> None:
        self.nodes = dict(nodes)
        detail = "; ".join(f"{node}: {what}" for node, what in self.nodes.items())
        super().__init__(f"{message} ({detail})" if detail else message)


class StaleToken(LocklineError):
    """A fence said no: a newer holder has been at the resource, or the token is another grant's."""

    def __init__(self, resource: str, offered: int | str, highest: int | str) -> None:
        self.resource = resource
        self.offered = offered
        self.highest = highest
        if offered == highest:
            seen = "another grant came with the same one"
        elif highest == 0:
            seen = "it has not entered"
        else:
            seen = f"{highest} has been seen"
        super().__init__(
            f"token {offered} is stale at {resource!r}: {seen}; the lease behind it has ended, do not retry the write"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.resource, self.offered, self.highest)
