"""MySQL and MariaDB under the SQL core."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...core.backend import Findings
from ...core.claim import Claim
from ...runtime import Runtime
from ..sql import database
from ..sql.backend import SqlBackend
from ..sql.channel import SqlLink
from ..sql.connection_asyncio import LoopLink
from ..sql.connection_blocking import ThreadLink
from . import doctor
from .commands import TOO_LARGE
from .target import MysqlTarget

GUARANTEES: Final = replace(database.GUARANTEES, push=False)


class Mysql(database.Database):
    """A MySQL or MariaDB: it has no way to say something unasked."""

    system = "MySQL"
    guarantees = GUARANTEES
    claims_per_call = 100
    too_large = TOO_LARGE

    def __init__(self, target: MysqlTarget) -> None:
        super().__init__(target)
        self.target = target

    def link(self, runtime: Runtime, most: int, login: float = 0.0) -> SqlLink:
        where = self.target.servers[0].where
        # Each driver is imported by those who use it.
        if runtime.flavour == "asyncio":
            from . import connection_asyncio

            return LoopLink(where, most, connection_asyncio.maker(self.target, login), login)
        from . import connection_blocking

        return ThreadLink(where, most, connection_blocking.maker(self.target, login), login)

    def guard(self, claim: Claim, token: int, connection: object) -> object:
        """Let nobody hold after the claim before the caller's own transaction has ended; LeaseLost if it is gone."""
        # What knows the connections of people is imported for those who have one.
        from .guard import guard

        return guard(claim, token, f"`{self.schema}`.lockline_claim", connection)

    async def examine(self, backend: SqlBackend, until: float) -> Findings:
        return await doctor.examine(backend, until)
