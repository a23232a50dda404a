"""How a value of `once` is kept: as bytes or JSON, or by a codec of the caller's own."""

from __future__ import annotations

import json
from typing import Any, Final, Protocol

from ..errors import ConfigError

LARGEST: Final = 1 << 20
"""Bytes of a value: more belongs into a store for large things, and its name into this one."""


class Codec(Protocol):
    """Turns a value into bytes or text and back, as `json` does. `pickle` runs code that it reads from the store."""

    def dumps(self, value: Any, /) -> bytes | str: ...
    def loads(self, data: bytes, /) -> Any: ...


def a_codec(value: object) -> Codec | None:
    """ConfigError for what could not be asked to turn a value into bytes once that has been computed."""
    if value is not None and not all(callable(getattr(value, way, None)) for way in ("dumps", "loads")):
        raise ConfigError(f"codec has dumps and loads, as json has; not {value!r}")
    return value  # type: ignore[return-value]


def encode(key: str, value: Any, codec: Codec | None, largest: int = LARGEST) -> bytes:
    """The value as it is kept: bytes as they are, the rest as JSON, or by the caller's own codec."""
    if codec is not None:
        told = codec.dumps(value)
        data = b"c" + (told.encode() if isinstance(told, str) else told)
    elif isinstance(value, bytes):
        data = b"b" + value
    else:
        try:
            data = b"j" + json.dumps(value).encode()
        except (TypeError, ValueError) as problem:
            raise ConfigError(f"the value of {key!r} is not JSON: {problem}; give bytes, or a codec=") from None
    if len(data) > largest:
        raise ConfigError(
            f"the value of {key!r} has {len(data)} bytes, and at most {largest} are kept; keep it elsewhere, and its name here"
        )
    return data


def decode(data: bytes, codec: Codec | None) -> Any:
    """The value again, a new one for each caller."""
    kind, rest = data[:1], data[1:]
    if (kind == b"c") == (codec is None):
        how = "with a codec: give the same one" if codec is None else "without a codec: give none"
        raise ConfigError(f"this value was written {how}")
    if codec is not None:
        return codec.loads(rest)
    return rest if kind == b"b" else json.loads(rest)
