"""`lease.guard(connection)` on MySQL: from the look to the end of the transaction nobody can remove the claim.

The database has nothing that looks at the commit itself, so the look is where it is called: it takes a share of the claim's entry in the
index `by_id`, to the end of the transaction. Every removal of a claim needs that entry whole: whoever comes next waits. A renewal goes by
the claim's place and does not touch it. Best called last, right before the commit: then it keeps nobody waiting for longer than that takes.
"""

from __future__ import annotations

from typing import Final

from ...errors import LeaseLost
from ...fence.sql.errors import driver_error
from ...fence.sql.visit import Visit
from ..sql.guard import Guard

# All that is read stands in the index itself, so that its entry is all that is locked, and not the row, which renewals change.
LOOK: Final = (
    "SELECT ticket FROM {table} FORCE INDEX (by_id) WHERE id = {grant} AND ticket = {token} LOCK IN SHARE MODE"
)
MISSING: Final = frozenset({1049, 1146})


async def _look_now(visit: Visit) -> None:
    if (await visit.run(LOOK, rows=True)).row is not None:
        return
    # What was not found is locked too, where the level is above READ COMMITTED: nobody could come in there. And nothing of it may last.
    await visit.run("ROLLBACK")
    raise LeaseLost(
        visit.offer.lock, token=visit.offer.token, reason="evicted", cause="gone",
        detail="the database has no such claim any more; the transaction was rolled back",
    )  # fmt: skip


def _means_no_tables(problem: Exception) -> bool:
    found = driver_error(problem)
    return not MISSING.isdisjoint((getattr(found, "errno", None), *found.args[:1]))


guard: Final = Guard("mysql", "MySQL", _look_now, _means_no_tables)
