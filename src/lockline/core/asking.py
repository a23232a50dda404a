"""A call of asyncio whose answer is a condition: an `if` that forgot its `await` is an error, and runs no body."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NoReturn, ParamSpec, TypeVar

from ..errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


class Asking(Coroutine[Any, Any, T]):
    """A call that is to be awaited. Every coroutine is true, and the body of an `if` would run without the lock."""

    __slots__ = ("_call",)

    def __init__(self, call: Coroutine[Any, Any, T]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, Any, T]:
        return self._call.__await__()

    # A task, which takes coroutines alone, takes this too.
    def send(self, value: Any, /) -> Any:
        return self._call.send(value)

    def throw(self, *error: Any) -> Any:
        return self._call.throw(*error)

    def close(self) -> None:
        self._call.close()

    def __bool__(self) -> NoReturn:
        self._call.close()
        *_, of, name = getattr(self._call, "__qualname__", "lock.call").split(".")
        of = of.lower().removeprefix("async")
        raise ConfigError(
            f"nothing was asked yet, and so this is neither true nor false: write `await {of}.{name.lstrip('_')}(...)`"
        )


def asked(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The method as a call that is neither true nor false before it is awaited."""

    @functools.wraps(method)
    def ask(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return Asking(method(*args, **kwargs))

    return ask
