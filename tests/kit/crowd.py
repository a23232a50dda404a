"""One process of a crowd, with the arguments JOB, URL and FILE, until it is killed. What it sees it writes into the file, line by line."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

import lockline
import lockline.backends.local
import lockline.backends.redis
from lockline.fence import FileFence
from lockline.runtime.clock import now

CALLERS = 25
"""Threads of one process that ask for one value."""
FRESH = 0.5
PERIOD = 0.25
SHORT = 0.5
"""The ttl of those who may lose what they hold: a lost lease is no failure there, and a killed one is soon out of the way."""
COMPUTES_FOR = 6.0
"""The ttl of a computation: losing it is a failure, so a busy machine has time to renew it."""


def short_ttl(client: lockline.Client) -> float:
    """Where a server ends claims by a wall clock that may be stepped, so long that no step ends one that lives."""
    return SHORT if client.url.startswith("local") else 10 * SHORT


def write(file: TextIO, *words: object) -> None:
    file.write(" ".join(map(str, words)) + "\n")
    file.flush()


def once(client: lockline.Client, file: TextIO) -> None:
    """Ask for one value, with many threads; write which was given, and between which moments."""
    numbers = iter(range(10**9))

    def make() -> str:
        time.sleep(random.uniform(0, 0.05))
        return f"{os.getpid()}/{next(numbers)}"

    def ask() -> None:
        while True:
            before = now()
            try:
                value = client.once("value", make, FRESH, ttl=COMPUTES_FOR)
            except Exception as problem:
                value = f"failed:{type(problem).__name__}"
            write(file, value, repr(before), repr(now()))
            time.sleep(random.uniform(0, 0.05))

    threads = [threading.Thread(target=ask) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def once_per(client: lockline.Client, file: TextIO) -> None:
    """Try to run the job of each slot; write which were done here."""

    @client.once_per(PERIOD, name="job", ttl=short_ttl(client))
    def job() -> None:
        time.sleep(random.uniform(0, 0.03))

    while True:
        try:
            run = job()
            if run:
                write(file, run.slot)
        except lockline.LeaseLost:
            pass
        time.sleep(random.uniform(0, 0.05))


def pool(client: lockline.Client, file: TextIO) -> None:
    """Have one of three things, now and then; write when it was found valid."""
    while True:
        try:
            with client.pool("gpu", ["a", "b", "c"], ttl=short_ttl(client)) as slot:
                until = now() + random.uniform(0, 0.1)
                while (before := now()) < until:
                    if slot.valid:
                        write(file, slot.item, slot.token, repr(before), repr(now()))
                    time.sleep(0.005)
        except lockline.LeaseLost:
            pass


def relay(client: lockline.Client, file: TextIO) -> None:
    """Hand one lease round by its ticket, which lies in a file; write when it was found valid, and to what a fence protects, also late."""
    folder, fence = Path(file.name).parent, FileFence()
    mailbox, mine, protected = folder / "mailbox", folder / f"mine-{os.getpid()}", folder / "protected"
    while True:
        try:
            os.rename(mailbox, mine)
            lease = client.attach(mine.read_text())
        except FileNotFoundError:
            # Nobody has posted a ticket; whose was lost with its process frees the lock when its time is over.
            found = client.lock("baton", ttl=short_ttl(client)).try_acquire()
            if found is None:
                time.sleep(0.005)
                continue
            lease = found
        except lockline.NotHeld:
            continue
        try:
            fence.append(protected, lease, f"{lease.token}\n")
            before = now()
            if lease.valid:
                write(file, lease.token, repr(before), repr(now()))
            ticket = lease.detach(short_ttl(client))
            mine.write_text(ticket)
            os.rename(mine, mailbox)
            time.sleep(random.uniform(0, 0.01))
            # Too late, as soon as the next one was there; before that it is still the newest, and in order.
            fence.append(protected, lease.token, f"{lease.token}\n", lock="baton")
            write(file, "late")
        except (lockline.LeaseLost, lockline.StaleToken) as problem:
            write(file, type(problem).__name__)


JOBS = {"once": once, "once_per": once_per, "pool": pool, "relay": relay}


def main() -> None:
    job, url, path = sys.argv[1:]
    print("begins", flush=True)
    with open(path, "a") as file, lockline.connect(url) as client:
        JOBS[job](client, file)


if __name__ == "__main__":
    main()
