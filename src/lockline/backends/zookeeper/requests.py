"""kazoo's requests where each grant needs one, written and read without what nobody looks at."""

from __future__ import annotations

import struct
from typing import Final

from kazoo.protocol.serialization import Create2, GetChildren, GetData

_NUMBER: Final = struct.Struct("!i")


class ChildNames(GetChildren):  # type: ignore[misc]
    """The names below a node."""

    @classmethod
    def deserialize(cls, data: bytes, at: int) -> list[str]:
        read, names = _NUMBER.unpack_from, []
        (count,) = read(data, at)
        at += 4
        for _ in range(count):
            begin = at + 4
            at = begin + read(data, at)[0]
            names.append(data[begin:at].decode())
        return names


class WatchOnly(GetData):  # type: ignore[misc]
    """A watch on a node that is there; what the node says is not read."""

    @classmethod
    def deserialize(cls, data: bytes, at: int) -> bool:
        return True


class CreateContainer(Create2):  # type: ignore[misc]
    """A node that the server removes when its last child has gone. kazoo has no call for it; only the number differs."""

    type = 19
