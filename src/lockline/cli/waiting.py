"""What a person sees while `lockline run` waits: the place in the line, who holds it, for how long."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from types import TracebackType

from ..core.claim import Line
from ..errors import LocklineError
from ..sync import Client
from .text import age, cut, everybody, ordinal, printable

FIRST_LOOK = 0.2
LOOK_EVERY = 1.0
ERASE = "\r\x1b[K"


class WaitingLine:
    """One line on the terminal, kept up to date by a thread of its own and erased at the end."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._shown = False
        self._thread = threading.Thread(target=self._work, name="lockline-waiting", daemon=True)

    def __enter__(self) -> WaitingLine:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not joined: it may sit in a question to a backend that does not answer. After this it writes nothing.
        with self._writing:
            self._over.set()
            if self._shown:
                with contextlib.suppress(OSError):
                    sys.stderr.write(ERASE)
                    sys.stderr.flush()

    def _work(self) -> None:
        if self._over.wait(FIRST_LOOK):
            return
        # What comes next is a question to the store, and a store that is down or frozen answers late or never.
        whom = "the file" if self._client.guarantees.exclusion == "machine" else "the server"
        self._show(f"waiting for {whom}: {printable(self._client.url)}")
        while True:
            try:
                text = describe(self._client.inspect(self._name), self._client.owner)
            except LocklineError as problem:
                text = f"waiting for {whom}: {printable(str(problem))}"
            self._show(text)
            if self._over.wait(LOOK_EVERY):
                return

    def _show(self, text: str) -> None:
        with self._writing:
            if not self._over.is_set():
                width = shutil.get_terminal_size().columns
                try:
                    sys.stderr.write(ERASE + cut(text, width - 1))
                    sys.stderr.flush()
                except OSError:  # the terminal is gone; the wait is not
                    return
                self._shown = True


def describe(line: Line, owner: str) -> str:
    """The wait in one sentence, as the one who waits sees it."""
    text = f"waiting for {printable(line.name)}"
    place = next((at for at, claim in enumerate(line.waiters, 1) if claim.owner == owner), None)
    if place is not None:
        text += f": {'next' if place == 1 else ordinal(place)} in line"
    if line.holders:
        text += f", held by {everybody(line.holders, most=1)} for {age(line.holders[0].began)}"
    return text


def on_terminal() -> bool:
    """Whether there is anybody to show it to."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
