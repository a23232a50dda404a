"""One who leads in a process of its own, with the arguments FLAVOUR, URL, TTL and perhaps FILE.

Prints the token of each term when it begins. Into the file it writes, all the time, between which two moments it found
its term valid: what a test compares with the others.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, TextIO

import lockline
import lockline.backends.local
import lockline.backends.redis
from lockline import aio
from lockline.runtime.clock import now

LOOK_EVERY = 0.01


def note(term: Any, file: TextIO | None) -> None:
    before = now()
    if term.valid and file is not None:
        file.write(f"{term.token} {before!r} {now()!r}\n")
        file.flush()


def begin(term: Any) -> None:
    print(term.token, flush=True)


def main() -> None:
    flavour, url, ttl, *path = sys.argv[1:]
    file = open(path[0], "a") if path else None  # noqa: SIM115 - for as long as the process lives

    def lead(term: lockline.Lease) -> None:
        begin(term)
        while not term.lost.is_set():
            note(term, file)
            time.sleep(LOOK_EVERY)

    async def lead_looped(term: aio.Lease) -> None:
        begin(term)
        while True:
            note(term, file)
            await asyncio.sleep(LOOK_EVERY)

    async def looped() -> None:
        async with aio.connect(url) as client:
            await client.lead("boss", lead_looped, ttl=float(ttl))

    if flavour == "asyncio":
        asyncio.run(looped())
    with lockline.connect(url) as client:
        client.lead("boss", lead, ttl=float(ttl))


if __name__ == "__main__":
    main()
