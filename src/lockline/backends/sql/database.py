"""One database system as the SQL core sees it: how it is reached, what it promises, and what it says unasked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from ...core.backend import Findings
from ...core.claim import Claim
from ...core.waiting import Hints
from ...guarantees import Guarantees
from ...runtime import Reader, Runtime
from .channel import SqlLink
from .target import SqlTarget

if TYPE_CHECKING:
    from .backend import SqlBackend

GUARANTEES: Final = Guarantees(
    exclusion="server",
    fifo=True,
    push=True,
    token_survives=frozenset({"release", "expiry", "restart", "failover"}),
    tolerates=(
        "Clients may crash, pause and lose their network, and the server may crash and recover. A failover to a replica that "
        "had not seen a grant, or a server clock that is set forward by more than a lease has left, may let a second holder in: only "
        "a fence covers that. Tokens go on rising whatever the clock does as long as the tables are there; after a failover that lost "
        "the last grants, as long as the new server's clock is not behind the old one's by more than the outage took."
    ),
)
"""Of a server that says unasked what has changed."""


class Pushes(Protocol):
    """What the database says unasked, on a channel of this client's own."""

    hints: Hints

    @property
    def channel(self) -> str | None:
        """Where we listen now, if we do."""

    @property
    def possible(self) -> bool:
        """False once it was found out that nothing can be pushed to us."""

    async def listen(self, until: float) -> str | None:
        """The channel, once the database has confirmed it; None where nothing can be pushed."""

    def drain(self) -> None:
        """Hear what has arrived, if nobody else is listening; never waits."""

    def forked(self) -> None: ...
    async def close(self) -> None: ...


class Database(ABC):
    """One database system, at the end of one client's URL."""

    system: str
    """What people call it."""
    guarantees = GUARANTEES
    claims_per_call: int
    """How many are renewed at once: so many that it takes a small part of the time after which a try is given up."""
    too_large: frozenset[str] = frozenset()
    """The codes by which the database refuses a statement for its length."""

    def __init__(self, target: SqlTarget) -> None:
        self.url = target.url
        self.schema = target.schema
        self.prefix = target.prefix
        self.max_connections = target.max_connections

    @abstractmethod
    def link(self, runtime: Runtime, most: int, login: float = 0.0) -> SqlLink:
        """At most so many connections; a login, and the wait for one that is under way, may take so many seconds although its caller has less."""

    async def say_goodbye(self, runtime: Runtime) -> None:  # noqa: B027 - most have nothing to say
        """Tell the server, in a moment at most, what it need not go on with: the process may end now."""

    def pushes(self, backend: SqlBackend, runtime: Runtime) -> tuple[Pushes | None, Reader | None]:
        """What listens, and how a waiting thread reads that itself; nothing where the database has no way to say something unasked."""
        return None, None

    @abstractmethod
    def guard(self, claim: Claim, token: int, connection: object) -> object:
        """Let the caller's own transaction, on his own connection, come to nothing once the claim is gone."""

    @abstractmethod
    async def examine(self, backend: SqlBackend, until: float) -> Findings: ...
