"""A command under a lease: what the commands share that run one."""

from __future__ import annotations

import re
import sys
from contextlib import suppress

import click

from ..backends.default import Store
from ..core.backend import Entrusting, Lasting
from ..core.engine import A_TRY, GRACE
from ..core.shells import backend_of, engine_of
from ..core.terms import terms_for
from ..errors import LeaseLost, LocklineError
from ..kit.once_per import OncePer, slots_of
from ..kit.pool import items_of
from ..kit.sync import Slot
from ..runtime import clock
from ..runtime.blocking import run
from ..sync import Client, Lease
from .signals import ASKING, Signals
from .supervisor import Ending
from .text import printable, say
from .watchdog import Watchdog

SHARE_OF_GRACE = 1 / 4
LONGEST_GRACE = 10.0
"""A command has this share of the ttl between TERM and KILL when the lease cannot be renewed, and not more than this."""
MOST_GRACE = 1 / 2
"""Right before a renewal about two thirds of the ttl are left: with more grace than this, TERM would come for nothing."""

LOOK_EVERY = 1.0
"""A lease may be lost while we stay for it: look at least this often."""


def a_grace(grace: float | None, ttl: float) -> float:
    """How long the command has between TERM and KILL."""
    if grace is None:
        return min(ttl * SHARE_OF_GRACE, LONGEST_GRACE)
    if not 0 <= grace <= ttl * MOST_GRACE:
        raise click.UsageError(f"--grace must be from 0 to half the ttl, which is {ttl * MOST_GRACE:g} s")
    return grace


def refuse_one_process(client: Client) -> None:
    """UsageError for a store that no other process sees."""
    if client.guarantees.exclusion == "process":
        raise click.UsageError(f"{client.url} cannot keep processes apart; use local: or a server")


def tell_the_store(name: str, client: Client, store: Store) -> None:
    """On a terminal, where the lock is: a lock on this machine alone is easily taken for one between all machines."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    where = printable(client.url)
    if store.said_by is None:
        where = "this machine only (no --url, LOCKLINE_URL or lockline.toml)"
    say(f"{printable(name)} on {where}", dim=True)


def entrust(client: Client, watchdog: Watchdog) -> None:
    """Where the store knows at once of a process that died, let it look at the watchdog as well."""
    backend = backend_of(client)
    if isinstance(backend, Entrusting):
        watchdog.hold(backend.entrust(watchdog.pid))


def environment(client: Client, lease: Lease | Slot[str], store: Store, *, cuda: bool = False) -> dict[str, str]:
    """What the command knows of its lease."""
    known = {
        "LOCKLINE_NAME": lease.name,
        "LOCKLINE_TOKEN": str(lease.token),
        "LOCKLINE_OWNER": lease.owner,
        "LOCKLINE_URL": for_the_command(client, store),
    }
    if isinstance(lease, Slot):
        known |= {"LOCKLINE_SLOT": lease.item} | ({"CUDA_VISIBLE_DEVICES": lease.item} if cuda else {})
    return known


def for_the_command(client: Client, store: Store) -> str:
    """The store's URL for a `lockline` inside, with its password and options: only this user can read the environment.

    `client.url` is without them. But of a file on this machine it is the whole truth, wherever the command thinks its home is.
    """
    return client.url if client.guarantees.exclusion == "machine" else store.url


def give_back(lease: Lease | Slot[str], ending: Ending) -> LeaseLost | None:
    """Release the lease of a command that has ended, and say what went wrong; the loss if there was one."""
    if ending.problem:
        with suppress(LocklineError):  # it expires by itself, and the reason to end is another
            lease.release()
        say(ending.problem)
        return None
    lost = ending.lost
    try:
        lease.release()
    except LeaseLost as problem:
        lost = lost or problem
    except LocklineError as problem:
        # The work was done under a valid lease. The lock is free when the ttl is over, if not before.
        say(f"the lock could not be released and will expire by itself: {printable(str(problem))}")
    if lost is not None:
        say(printable(str(lost)))
    return lost


def a_pool(text: str) -> tuple[str, list[str]]:
    """The name and the items of a pool: gpu=0-3, port=8001,8002."""
    name, given, items = text.partition("=")
    found: list[str] = []
    for part in items.split(",") if given else ():
        numbers = re.fullmatch(r"(\d{1,6})-(\d{1,6})", part)
        found += [str(number) for number in range(int(numbers[1]), int(numbers[2]) + 1)] if numbers else [part]
    if not name or not found or not all(found):
        raise click.UsageError(f"--pool {text}: write a name and its items, as in gpu=0-3 or port=8001,8002")
    items_of(name, found)
    return name, found


class Period:
    """The slots of `--once-per`: one run in each, on one machine of all."""

    def __init__(self, client: Client, name: str, period: float) -> None:
        terms = terms_for("lock", 1, name, 10.0, True, None, None)
        self._once = OncePer(engine_of(client), terms, slots_of(period, None))
        self._slot: int | str = 0

    def is_done(self, timeout: float | None) -> bool:
        """Whether the slot of this moment is done; a store that is silent is asked as long as for the lock itself."""
        return run(self._once.look(A_TRY if timeout is None else max(timeout, GRACE))).state == "done"

    def enter(self, lease: Lease | Slot[str]) -> bool:
        """The same under the lock: from here on no one before us can say that it is."""
        entered = run(self._once.enter(lease.token))
        self._slot = entered.slot
        return entered.state == "done"

    def finish(self, lease: Lease | Slot[str]) -> None:
        """It is done; what cannot be said is told, and another one may run it again."""
        try:
            run(self._once.finish(lease, self._slot))
        except LocklineError as problem:
            say(f"it ran, and could not be marked as done: {printable(str(problem))}")


def lasts(client: Client) -> bool:
    """Whether a claim on this store outlives its client."""
    return isinstance(backend_of(client), Lasting)


def stay(signals: Signals, lease: Lease | Slot[str], until: float) -> None:
    """Hold the lease until then, where nobody else would; a signal that asks us to go, or a loss, ends it."""
    while lease.valid and (left := until - clock.now()) > 0:
        if any(number in ASKING for number in signals.wait(min(left, LOOK_EVERY))):
            return
