"""`lease.guard(connection)`: the lease and the data in one transaction of the caller's own; what both databases have in common."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from ...core.claim import Claim
from ...errors import ConfigError
from ...fence.rule import Offer
from ...fence.sql.connections import connection_for
from ...fence.sql.visit import Visit, holds_savepoint
from ...runtime.blocking import run


class Guard(NamedTuple):
    """How one database looks at a claim in somebody's transaction."""

    dialect: str
    system: str
    look: Callable[[Visit], Coroutine[Any, Any, None]]
    means_no_tables: Callable[[Exception], bool]
    """Whether a driver's error says that Lockline's tables are not there."""

    def __call__(self, claim: Claim, token: int, table: str, connection: Any) -> Any:
        """Let the transaction of this connection end in vain once the claim is gone; to be awaited where the connection is."""
        taken = connection_for(connection, None)
        visit = Visit(taken, table, claim.name, Offer(claim.name, token, claim.id), False, True, set())
        return self._guard(visit) if taken.awaits else run(self._guard(visit))

    async def _guard(self, visit: Visit) -> None:
        await visit.connection.prepare()
        if visit.connection.dialect != self.dialect:
            raise ConfigError(f"guard() takes a connection to {self.system}, not to {visit.connection.dialect}")
        await visit.demand_transaction(holds_savepoint)
        try:
            await self.look(visit)
        except Exception as problem:
            if self.means_no_tables(problem):
                raise ConfigError(
                    "guard() takes a connection to the database that has the lock; this one has no tables of Lockline"
                ) from problem
            raise
