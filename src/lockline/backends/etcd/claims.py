"""What a client knows of its own claims, and the removal of those that nobody renewed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from ...core.claim import Claim
from ...errors import LocklineError
from ...runtime import Runtime, Worker
from ...runtime.section import Inside
from .keys import SeenClaim
from .leases import ServerLease

log = logging.getLogger("lockline")

LINGER = 5.0
"""How long the sweeper stays after the last claim, so that a busy client does not start one per acquire."""


class EtcdClaim:
    """One claim of this client in its line."""

    __slots__ = (
        "ahead",
        "changed",
        "claim",
        "create",
        "entry",
        "expires",
        "gone",
        "key",
        "lease",
        "repeated",
        "revision",
        "token",
        "trusts",
        "written",
    )

    def __init__(self, claim: Claim, key: bytes, create: int, token: int, lease: ServerLease, expires: float) -> None:
        self.claim = claim
        self.key = key
        self.create = create
        self.token = token
        self.lease = lease
        self.entry = lease
        """The lease that it was entered with; an extension may have moved it to another since."""
        self.expires = expires
        """When its ttl is over if it is not renewed. The server's lease may last longer, for others or by its rounding."""
        self.changed = create
        """The revision at which its key was last put, as far as this client knows."""
        self.written = False
        """Whether the token has been written into the key, for others to read."""
        self.gone = False
        self.repeated = False
        """Whether its `enter` went out more than once: the first may still be on its way."""
        self.revision = 0
        self.ahead: list[SeenClaim] | None = None
        """Who kept it from holding at that revision; None when that has to be looked up."""
        self.trusts = 0.0
        """Until when it believes that, if no watch says otherwise."""

    def look(self, ahead: list[SeenClaim], revision: int, trusts: float) -> None:
        """These keep it from holding, by a look at the line."""
        self.ahead, self.revision, self.trusts = ahead, revision, trusts


class EtcdClaims:
    """The claims of one client, and a sweeper that removes those whose ttl is over while the server's lease goes on."""

    def __init__(self, runtime: Runtime, remove: Callable[[EtcdClaim], Awaitable[None]]) -> None:
        self._runtime = runtime
        self._remove = remove
        self.reset()

    def reset(self) -> None:
        """As new."""
        self._places: dict[str, EtcdClaim] = {}
        self._worker: Worker | None = None
        self._alone = self._runtime.section()
        self._signal = self._runtime.signal()
        self._planned = 0.0
        self._closed = False

    def get(self, claim_id: str) -> EtcdClaim | None:
        return self._places.get(claim_id)

    def all(self) -> list[EtcdClaim]:
        return list(self._places.values())

    def add(self, place: EtcdClaim) -> None:
        """Remember this claim, and see to its end."""
        self._places[place.claim.id] = place
        if self._worker is None or place.expires < self._planned:
            self._wake()

    def drop(self, claim_id: str) -> EtcdClaim | None:
        return self._places.pop(claim_id, None)

    def _wake(self) -> None:
        try:
            self._alone(self._wake_sweeper)
        except Inside:
            self._signal.set()

    def _wake_sweeper(self) -> None:
        if self._closed:
            return
        if self._worker is None or not self._worker.alive():
            self._planned = float("inf")
            # One whose start was cut short here is alone with a second one for a while: both only remove what is over.
            self._worker = self._runtime.spawn(self._sweep, "lockline-etcd-sweeper", lasting=True)
        else:
            self._signal.set()

    async def _sweep(self) -> None:
        idle_since: float | None = None
        while not self._closed:
            self._signal.clear()
            self._planned = float("inf")
            now = self._runtime.now()
            late = [place for place in self.all() if place.expires <= now]
            failed = False
            for place in late:
                try:
                    await self._remove(place)
                except LocklineError as problem:
                    # The server's lease is the net below.
                    failed = True
                    log.debug("removing the claim on %r whose ttl is over failed: %s", place.claim.name, problem)
                except Exception:
                    failed = True
                    log.exception("the sweeper met an unexpected error and goes on")
            plan = min((place.expires for place in self.all()), default=now + LINGER)
            if failed:
                plan = now + 0.5
            if self._places:
                idle_since = None
            elif idle_since is None:
                idle_since = now
            elif now >= idle_since + LINGER and self._alone(self._retire):
                return
            self._planned = plan
            await self._signal.wait(plan)

    def _retire(self) -> bool:
        if self._places or self._signal.is_set():
            return False
        self._worker = None
        return True

    async def stop(self, until: float) -> None:
        """End the sweeper."""
        self._closed = True
        worker = self._worker
        self._signal.set()
        if worker is not None:
            await worker.join(until)
