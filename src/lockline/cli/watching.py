"""`lockline ls --watch`: the lines of a store as they move, on a terminal in place, elsewhere one line per change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Mapping
from operator import attrgetter
from types import FrameType, TracebackType
from typing import Any, Final

import click

from ..core.claim import Line
from ..core.shells import engine_of
from ..errors import LocklineError
from ..runtime.blocking import run
from ..runtime.polling import readable
from ..sync import Client
from ..web.board import Board, BoardNews
from ..web.survey import Seen, Survey, rest_after
from .text import age, count, cut, duration, everybody, printable, say, table

ENTER: Final = "\x1b[?1049h\x1b[?25l"
"""The other screen, as editors have it, and no cursor: what stood here before comes back."""
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
END_OF_LINE: Final = "\x1b[K"
BELOW: Final = "\x1b[J"
FLASHES: Final = 5.0
"""Seconds for which a loss is shown."""


def watch(client: Client, prefix: str, *, as_json: bool) -> None:
    """Show the lines until somebody ends it."""
    if as_json or not (sys.stdout.isatty() and os.environ.get("TERM") != "dumb"):
        _tell(client, prefix, as_json)
        return
    with Screen() as screen:
        _draw(client, prefix, screen)


# -- one line per change ---------------------------------------------------------------------------


def _tell(client: Client, prefix: str, as_json: bool) -> None:
    survey, board = Survey(engine_of(client), prefix), Board()
    first = True
    while True:
        began = time.monotonic()
        try:
            seen = run(survey.look())
        except LocklineError as problem:
            if board.fail(str(problem), time.time()):
                say(printable(str(problem)))
        else:
            news = board.take(seen, time.time())
            for one in _standing(seen) if first else news:
                _print(one, as_json)
            first = False
        time.sleep(rest_after(time.monotonic() - began))


def _standing(seen: Seen) -> list[BoardNews]:
    """What was there before the first look, told as if it happened when it did."""
    there = [
        BoardNews(claim.began, line.name, "took" if claim.holds else "waits", claim.owner, claim.token)
        for line in seen.lines.values()
        for claim in line.claims
    ]
    return sorted(there, key=attrgetter("at"))


def _print(news: BoardNews, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(news.as_json()))
    else:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(news.at))
        token = f"token {news.token}" if news.what not in ("waits", "gave up") else ""
        after = f"after {duration(news.held)}" if news.held else ""
        words = (when, f"{news.what:<7}", printable(news.name), printable(news.who), token, after, printable(news.why))
        click.echo("  ".join(word for word in words if word))
    sys.stdout.flush()


# -- in place --------------------------------------------------------------------------------------


class Screen:
    """The terminal while it is ours: given back as it was, however this ends."""

    def __init__(self) -> None:
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[Any] | None = None

    def __enter__(self) -> Screen:
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGHUP, _end)
        signal.signal(signal.SIGTSTP, self._stop)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _take(self) -> None:
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self.write(ENTER)

    def _give_back(self) -> None:
        try:
            self.write(LEAVE)
        except OSError:  # the terminal is gone
            pass
        if self._keys is not None and self._before is not None:
            try:
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)
            except (OSError, termios.error):
                pass

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its screen back, and we get ours when it lets us go on."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)
        self._take()

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def show(self, lines: list[str]) -> None:
        """These lines and nothing else, written over what was there: nothing flickers."""
        width, height = shutil.get_terminal_size()
        shown = [cut(line, width) + END_OF_LINE for line in lines[:height]]
        self.write(HOME + "\n".join(shown) + BELOW)

    def pressed(self, seconds: float) -> str:
        """The key that was pressed by then; empty if none was."""
        if self._keys is None:
            time.sleep(seconds)
            return ""
        if not readable(seconds, self._keys):
            return ""
        return os.read(self._keys, 64).decode(errors="replace") or "q"


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _draw(client: Client, prefix: str, screen: Screen) -> None:
    survey, board = Survey(engine_of(client), prefix), Board()
    seen: Mapping[str, Line] = {}
    lost: dict[str, tuple[float, BoardNews]] = {}
    while True:
        began = time.monotonic()
        trouble = ""
        try:
            look = run(survey.look())
        except LocklineError as problem:
            trouble = printable(str(problem))
        else:
            there = {**seen, **look.lines}
            seen = {name: line for name, line in there.items() if name in look.names and line.claims}
            for one in board.take(look, time.time()):
                if one.what == "lost":
                    lost[one.name] = began + FLASHES, one
        lost = {name: entry for name, entry in lost.items() if entry[0] > began}
        screen.show(_page(client.url, list(seen.values()), [one for _, one in lost.values()], trouble))
        if screen.pressed(rest_after(time.monotonic() - began)) in ("q", "Q", "\x1b", "\x04"):
            return


def _page(url: str, lines: list[Line], lost: list[BoardNews], trouble: str) -> list[str]:
    held, waiting = sum(len(line.holders) for line in lines), sum(len(line.waiters) for line in lines)
    clock = time.strftime("%H:%M:%S")
    page = [f"{clock}  {held} held, {waiting} waiting in {count(len(lines), 'line')}  (q ends)  {printable(url)}"]
    if trouble:
        page.append(f"no answer: {trouble}")
    page += [f"lost: {printable(one.name)} by {printable(one.who)} after {duration(one.held)}" for one in lost]
    rows = [row(line) for line in sorted(lines, key=_urgency)]
    return [*page, "", *(table(HEAD, rows) if rows else ["nothing is held"])]


HEAD: Final = ("NAME", "KIND", "TOKEN", "FOR", "LEFT", "WAITING", "HELD BY")


def row(line: Line) -> tuple[str, ...]:
    """One line in the table."""
    waiting = str(len(line.waiters))
    if not line.holders:
        return (line.name, "-", "-", "-", "-", waiting, "-")
    first = line.holders[0]
    left = f"{duration(first.remaining)} of {first.ttl:g}s"
    return (line.name, first.kind, str(first.token), age(first.began), left, waiting, everybody(line.holders))


def _urgency(line: Line) -> tuple[int, float]:
    """Long lines first, then whoever has held for the longest time."""
    return -len(line.waiters), line.claims[0].began
