"""Locks that are known to be broken, each by one mistake that somebody has made before; the judge has to find every one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import broken_clients as clients
from . import broken_stores as stores
from .toy import Store, ToyBackend


@dataclass(frozen=True)
class Mutation:
    """One mistake: in the store, in the client of the store, or in the core."""

    mistake: str
    store: type[Store] = Store
    backend: type[ToyBackend] = ToyBackend
    patch: Callable[[], Any] | None = None
    seconds: float = 500.0
    """So long it is looked for at most; what shows at the end of a run, if not before, has a short one."""


BROKEN: dict[str, Mutation] = {
    # tokens
    "token-by-process-counter": Mutation("each process counts its own grants", backend=clients.ProcessCounter),
    "token-from-the-clients-clock": Mutation("the client's wall clock is the token", backend=clients.ClientClock),
    "token-of-seconds": Mutation("the server's clock in seconds is the token", store=stores.TokenOfSeconds),
    "token-at-random": Mutation("a random number is the token", store=stores.RandomToken),
    "token-restarts": Mutation("the counter is gone with the last claim of a name", store=stores.RestartingToken),
    "token-of-the-line": Mutation("the place in the line is the token", store=stores.PlaceAsToken),
    "token-rounded": Mutation("the token went through a float", backend=clients.RoundedToken),
    "token-of-the-dead": Mutation("after an expiry the same number is given again", store=stores.TokenOfTheDead),
    "token-wraps": Mutation("the token has eight bits", store=stores.WrappingToken),
    # expiry
    "never-expires": Mutation("a claim stays until it is released", store=stores.NeverExpires),
    "waiters-never-expire": Mutation("only holders expire", store=stores.WaitersNeverExpire, seconds=25.0),
    "expires-early": Mutation("the server's ttl is a fifth shorter than the client thinks", store=stores.ExpiresEarly),
    "ttl-cut-to-whole-seconds": Mutation("0.6 s is 0 s", store=stores.WholeSeconds),
    "expiry-by-the-clients-clock": Mutation("the client writes when its claim ends", store=stores.ClientsExpiry),
    "renewal-shortens": Mutation("a renewal counts a third of the ttl", store=stores.RenewalShortens),
    "stolen-from-the-slow": Mutation("who has waited for a while takes the holder for dead", store=stores.Impatient),
    # validity
    "validity-from-the-reply": Mutation("the lease counts from the answer", patch=clients.count_from_the_reply),
    "validity-without-end": Mutation("a lease is valid until somebody says no", patch=clients.trust_for_ever),
    "validity-twice-the-ttl": Mutation("the client rounds the ttl up", patch=clients.trust_twice_as_long),
    "valid-again-after-a-pause": Mutation("a late renewal makes it again", stores.RenewalCreates, patch=clients.revive),
    "renewal-by-hope": Mutation("a renewal without an answer counts as renewed", backend=clients.HopefulRenewal),
    "acquire-by-hope": Mutation("an acquire without an answer counts as granted", backend=clients.HopefulAcquire),
    # who is in
    "release-without-compare": Mutation("a release frees whoever holds", store=stores.ReleaseWithoutCompare),
    "check-then-act": Mutation("looks whether it is free, and then takes it", store=stores.CheckThenAct),
    "one-id-per-client": Mutation("a claim's id is the client's", backend=clients.OneId),
    "held-by-the-process": Mutation("what one thread holds, the others hold", backend=clients.HeldByProcess),
    "one-permit-too-many": Mutation("the semaphore counts from zero", store=stores.OneTooMany),
    "readers-beside-a-writer": Mutation("a reader looks at readers only", store=stores.ReadersBesideWriters),
    "writer-beside-readers": Mutation("a writer looks at writers only", store=stores.WriterBesideReaders),
    # memory
    "forgets": Mutation("the store is wiped now and then", store=stores.Forgets),
    "fails-over-without-replication": Mutation("another server takes over that has not heard", store=stores.StaleReplica),
    "majority-of-one": Mutation("one of three is enough", store=stores.MajorityOfOne),
    "no-promote": Mutation("a majority, each with its own number", store=stores.NoPromote),
    "rejoins-empty": Mutation("one of three comes back without its memory", store=stores.RejoinsEmpty),
    # turns
    "wake-up-lost": Mutation("now and then nobody is told of its turn", store=stores.LosesWakeUps),
    "nobody-is-told": Mutation("waiters find out when the ttl is over", store=stores.TellsNobody),
    "release-lost": Mutation("now and then a release does nothing and says yes", store=stores.LosesReleases),
    "last-come-first-served": Mutation("the newest is the next", store=stores.LastComeFirstServed),
    "waiter-skipped": Mutation("one waiter is passed over", store=stores.SkipsWaiters),
    "order-by-the-clients-clock": Mutation("the line is sorted by when the clients say they came", store=stores.SortedByClients),
    "readers-overtake": Mutation("readers join readers, whoever waits", store=stores.ReadersOvertake),
    # the end
    "leaves-debris": Mutation("what is released is marked, and stays", store=stores.LeavesDebris, seconds=5.0),
}  # fmt: skip
"""Forty and some, by name."""

QUICK = ("token-by-process-counter", "waiter-skipped", "validity-twice-the-ttl")
"""Those that `make test` tries: a mistake of the client, one of the store and one of the core, each found out in a second or two. How the
judge finds each kind in a history is in test_judge.py."""
