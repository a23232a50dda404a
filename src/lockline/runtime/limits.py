"""A limit that the caller set itself: a signal handler that raises, mostly TimeoutError, which is what sockets raise, too.

It strikes wherever the caller waits, also in the middle of a read. Taken for the silence of a server it would be lost: the request
would be asked again, and whoever waits without a timeout would wait for ever.
"""

from __future__ import annotations

import functools
import signal
from typing import Final

OF_SOCKETS: Final = frozenset(
    {
        "timed out", "The read operation timed out", "The write operation timed out", "no answer in time",
        "the server takes nothing any more",
    }
)  # fmt: skip
"""What Python says when the time of a socket is over, and what we say. What the system says has a number."""


def is_callers(problem: BaseException | None) -> bool:
    """Whether this is a limit of the caller's own, and none of a socket."""
    if problem is None:
        return False
    if _is_of_a_handler(problem):
        return True
    # Also a thread may strike another, with an error that no code of Python's raised: then only its words tell.
    if not isinstance(problem, TimeoutError) or problem.errno is not None:
        return False
    text = str(problem)
    return text not in OF_SOCKETS and not text.endswith("The handshake operation timed out")


def _is_of_a_handler(problem: BaseException) -> bool:
    """Whether it went through a signal handler on its way up: whatever its kind and its words are."""
    trace = problem.__traceback__
    if trace is None or trace.tb_next is None:
        return False  # raised where it was caught, by the system: as each read that finds nothing is
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: object) -> object:
    if isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - an object that is called
    return getattr(handler, "__code__", getattr(call, "__code__", None))


def let_through(problem: BaseException) -> None:
    """Raise it again if it is a limit of the caller's own."""
    if is_callers(problem):
        raise problem


def let_out(problem: BaseException, before: BaseException | None) -> None:
    """Raise the limit of the caller's own that a library took for a socket's, and told as an error of its own.

    `before` is what was being handled when the library was called: that, and what lies behind it, is not of this call.
    """
    inner: BaseException | None = problem
    while inner is not None and inner is not before:
        let_through(inner)
        inner = inner.__cause__ or inner.__context__
