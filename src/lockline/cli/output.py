"""What a command prints, read while it runs: so much and not more, however much there is."""

from __future__ import annotations

import os
import threading

from ..runtime.polling import readable

CHUNK = 65536


class CommandOutput:
    """A pipe for a command's stdout; what comes out of it is kept, up to `most` bytes.

    Beyond that nobody reads any more: the command hears of it as one whose reader has gone does. A process that left the
    command's group and has the pipe still is not waited for.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pipe, self.theirs = os.pipe()
        """The command's end."""
        os.set_blocking(self._pipe, False)
        self._over, self._end = os.pipe()
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._read_on, name="lockline-output", daemon=True)

    def begin(self) -> None:
        """Read from now on; the command has its end."""
        self._thread.start()

    def whole(self) -> bytes | None:
        """All that it printed, now that it has ended; None if that was more than is kept."""
        os.close(self._end)
        self._thread.join()
        os.close(self._over)
        return None if len(self._kept) > self._most else bytes(self._kept)

    def _read_on(self) -> None:
        try:
            while len(self._kept) <= self._most:
                ready = readable(None, self._pipe, self._over)
                try:
                    came = os.read(self._pipe, CHUNK)
                except BlockingIOError:
                    # It has ended, and this was all.
                    if self._over in ready:
                        return
                    continue
                if not came:
                    return
                self._kept += came
        finally:
            os.close(self._pipe)
