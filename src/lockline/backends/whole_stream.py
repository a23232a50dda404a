"""What a loop reads for one connection: every byte of it, or nothing from there on."""

from __future__ import annotations

import asyncio
import os
from typing import Final

AT_ONCE: Final = 65536
"""Bytes that are read at once, at most."""
UNTOUCHED: Final = os.urandom(8)
"""What lies where the next bytes are to come: no answer begins like that."""
BEGINNING: Final = slice(len(UNTOUCHED))


class WholeStream(asyncio.BufferedProtocol):
    """Bytes, each handed to `received` once, in their order.

    Ctrl-C may strike the loop between its own read and us: those bytes are gone, asyncio closes nothing for it, and whoever goes on
    with the same loop would take the next answer for the one that was lost. So the loop reads into a buffer of ours, which shows it.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(AT_ONCE)
        self._view = memoryview(self._buffer)
        self._reading = False
        """Whether the loop has the buffer: what lies there then was told to nobody."""

    def received(self, data: bytearray) -> None:
        """These came."""
        raise NotImplementedError

    def struck(self) -> None:
        """Some came that nobody was told of, or not to the end: nobody knows what the next are."""
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop is to put what it reads next."""
        if self._reading and self._buffer[BEGINNING] != UNTOUCHED:
            self.struck()
        self._buffer[BEGINNING] = UNTOUCHED
        self._reading = True
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """So many lie there."""
        try:
            self.received(self._buffer[:nbytes])
            self._reading = False
        except BaseException:
            self.struck()
            raise
