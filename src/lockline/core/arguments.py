"""Arguments checked before any I/O, each with an error that names the cure."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from ..errors import ConfigError

LONGEST_NAME = 512
LONGEST_TTL = 10 * 365 * 86400.0
MOST_PERMITS = 1 << 20
LONGEST_META = 4096

UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Seconds = float | timedelta
N = TypeVar("N", int, float)


def a_name(value: object, what: str = "lock") -> str:
    """Any non-empty text up to 512 bytes of UTF-8."""
    if not isinstance(value, str):
        raise ConfigError(f"a {what}'s name is text, not {type(value).__name__}")
    if not value:
        raise ConfigError(f"a {what}'s name must not be empty")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"the name {value!r} is not valid Unicode (a lone surrogate)") from None
    if size > LONGEST_NAME:
        raise ConfigError(f"the {what}'s name has {size} bytes of UTF-8; at most {LONGEST_NAME} are allowed")
    return value


def a_prefix(value: object) -> str:
    """Any text; an empty one stands for every name."""
    return "" if value == "" else a_name(value)


def seconds(value: object, what: str) -> float:
    """A finite number of seconds, from a number or a timedelta."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{what} is a number of seconds or a timedelta, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ConfigError(f"{what} is far too large") from None
    if not math.isfinite(number):
        raise ConfigError(f"{what} must be finite, not {value!r}")
    return number


def a_ttl(value: object, what: str = "ttl") -> float:
    """A time greater than zero."""
    ttl = seconds(value, what)
    if ttl <= 0:
        raise ConfigError(f"{what} must be greater than zero, not {value!r}")
    if ttl > LONGEST_TTL:
        raise ConfigError(f"{what} of {value!r} is longer than ten years; a lock has to expire")
    return ttl


def a_timeout(value: object) -> float | None:
    """Zero or more seconds, or None to wait for ever."""
    if value is None:
        return None
    timeout = seconds(value, "timeout")
    if timeout < 0:
        raise ConfigError(f"timeout must not be negative, not {value!r}; leave it out to wait for ever")
    return timeout


def a_delay(value: object, what: str) -> float:
    """Zero or more seconds."""
    return _not_negative(seconds(value, what), value, what)


def a_limit(value: object) -> int:
    """A semaphore's number of permits."""
    limit = _whole(value, "limit")
    if not 1 <= limit <= MOST_PERMITS:
        raise ConfigError(f"limit must be from 1 to {MOST_PERMITS}, not {limit}")
    return limit


def a_count(value: object, what: str) -> int:
    """A whole number from zero on."""
    return _not_negative(_whole(value, what), value, what)


def _not_negative(number: N, value: object, what: str) -> N:
    if number < 0:
        raise ConfigError(f"{what} must not be negative, not {value!r}")
    return number


def _whole(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{what} is a whole number, not {value!r}")
    return value


def a_callback(value: object, what: str) -> Callable[..., object]:
    """Something to call, and nothing that would have to be awaited."""
    if not callable(value):
        raise ConfigError(f"{what} takes something to call, not {value!r}")
    if inspect.iscoroutinefunction(value):
        raise ConfigError(f"{what} calls, it does not await: give it a plain function, which may start a task")
    return value


def listeners(value: object) -> list[Callable[..., object]]:
    """Those who are to hear of events: none, one or several."""
    if value is None:
        return []
    several = value if isinstance(value, (list, tuple)) else [value]
    return [a_callback(one, "on_event") for one in several]


def a_period(value: object, what: str) -> float:
    """A time greater than zero, also as a text: 10, 1.5, "500ms", "30s", "5m", "1h", "1d"."""
    return a_ttl(a_length(value, what) if isinstance(value, str) else value, what)


def a_length(text: str, what: str) -> float:
    """A length of time from its text."""
    match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*(ms|s|m|h|d|)\s*", text)
    try:
        length = float(match[1]) * UNITS[match[2]] if match else math.nan
    except ValueError:
        length = math.nan
    if not math.isfinite(length):
        raise ConfigError(f"{what}: {text!r} is not a time; write 10, 1.5, 500ms, 30s, 5m, 1h or 1d")
    return length


def a_token(value: object) -> int | None:
    """A fencing token, or None for whichever there is."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(
            f"token is the number of a grant, not {value!r}; lease.token and client.inspect(name) show it"
        )
    return value


def a_flag(value: object, what: str) -> bool:
    """True or False, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise ConfigError(f"{what} is True or False, not {value!r}")
    return value


def a_meta(value: Mapping[str, Any] | None) -> str:
    """What others shall see of a claim, as JSON; empty for nothing."""
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        raise ConfigError(f"meta is a mapping that JSON can hold, not {type(value).__name__}")
    try:
        text = json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise ConfigError(f"meta must be JSON: {problem}") from None
    if len(text) > LONGEST_META:
        raise ConfigError(f"meta has {len(text)} characters of JSON; at most {LONGEST_META} are allowed")
    return text


def an_owner(value: object) -> str:
    """The text others see as the holder."""
    if not isinstance(value, str) or not value or len(value) > 256:
        raise ConfigError(f"owner is a text of 1 to 256 characters, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the owner {value!r} is not valid Unicode") from None
    return value
