"""The end of a block that had a lease: its own error comes out, and ours is where a reader finds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..errors import LocklineError

if TYPE_CHECKING:
    from ..runtime.scope import Scope


async def leave_block(scope: Scope | None, error: BaseException | None, release: Callable[[], Awaitable[None]]) -> None:
    """Give back what the block had, so that its own error comes out, or LeaseLost where it was cancelled for that."""
    try:
        cancelled_here = scope is not None and await scope.leave(error)
    except BaseException:
        # A cancel by others, taken on the way out: the lock is given back first.
        try:
            await release()
        except LocklineError:
            pass
        raise
    try:
        await release()
    except LocklineError as problem:
        if error is None:
            raise
        if cancelled_here:
            raise problem from error
        attach(error, problem)
    finally:
        if scope is not None:
            scope.left()


def attach(error: BaseException, problem: LocklineError) -> None:
    """Let the body's own exception go on, with ours where a reader of the traceback finds it."""
    error.add_note(f"and while leaving the lock: {problem}")
    chain = _contexts(error, until=problem)
    if chain[-1] is problem:
        return
    # The interpreter has made the body's error the context of ours, which was raised while that one went through: with
    # ours behind it in turn, whoever follows the contexts would go round for ever.
    own = _contexts(problem, until=error)
    if own[-1] is error:
        own[-2].__context__ = None
    chain[-1].__context__ = problem


def _contexts(error: BaseException, until: BaseException) -> list[BaseException]:
    """The error and the contexts behind it, each once, up to that one."""
    chain = [error]
    while chain[-1] is not until and (behind := chain[-1].__context__) is not None:
        if any(behind is one for one in chain):
            chain[-1].__context__ = None
            break
        chain.append(behind)
    return chain
