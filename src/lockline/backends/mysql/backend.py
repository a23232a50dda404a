"""MySQL and MariaDB as a dialect of the SQL core."""

from __future__ import annotations

from typing import Final

from ...core.backend import Findings
from ...core.claim import Claim
from ...core.waiting import Reader
from ...guarantees import Guarantees
from ...runtime import Runtime
from ..sql.backend import Pushes, SqlBackend
from ..sql.channel import Link
from ..sql.connection_asyncio import LoopLink
from ..sql.connection_blocking import ThreadLink
from . import doctor
from .target import Target

GUARANTEES: Final = Guarantees(
    exclusion="server",
    fifo=True,
    push=False,
    token_survives=frozenset({"release", "expiry", "restart", "failover"}),
    tolerates=(
        "Clients may crash, pause and lose their network, and the server may crash and recover. A failover to a replica that "
        "had not seen a grant, or a server clock that is set forward by more than a lease has left, may let a second holder in: only "
        "a fence covers that. Tokens go on rising whatever the clock does as long as the tables are there; after a failover that lost "
        "the last grants, as long as the new server's clock is not behind the old one's by more than the outage took."
    ),
)


class MysqlBackend(SqlBackend):
    """One client of a MySQL."""

    def guard_commit(self, claim: Claim, token: int, connection: object) -> object:
        """Let nobody hold after the claim before the caller's own transaction has ended; LeaseLost if it is gone."""
        # What knows the connections of people is imported for those who have one.
        from .guard import guard

        return guard(claim, token, f"`{self.dialect.schema}`.lockline_claim", connection)


class Mysql:
    """Where it is, and how it is reached."""

    system = "MySQL"
    claims_per_call = 100
    guarantees = GUARANTEES

    def __init__(self, target: Target) -> None:
        self.target = target
        self.url = target.url
        self.schema = target.database
        self.prefix = target.prefix
        self.max_connections = target.max_connections

    def link(self, runtime: Runtime, most: int, login: float = 0.0) -> Link:
        where = self.target.servers[0].where
        # Each driver is imported by those who use it.
        if runtime.flavour == "asyncio":
            from . import connection_asyncio

            return LoopLink(where, most, connection_asyncio.maker(self.target, login))
        from . import connection_blocking

        return ThreadLink(where, most, connection_blocking.maker(self.target, login))

    def pushes(self, backend: SqlBackend, runtime: Runtime) -> tuple[Pushes | None, Reader | None]:
        """Nothing: the database has no way to say something unasked."""
        return None, None

    async def examine(self, backend: SqlBackend, until: float) -> Findings:
        return await doctor.examine(backend, until)
