"""PostgreSQL under the SQL core."""

from __future__ import annotations

from typing import Final

from ...core.backend import Findings
from ...core.claim import Claim
from ...core.waiting import begun
from ...runtime import Reader, Runtime
from ..sql.backend import SqlBackend
from ..sql.calls import RoutineCall
from ..sql.channel import SqlLink
from ..sql.connection_asyncio import LoopLink
from ..sql.connection_blocking import ThreadLink
from ..sql.database import GUARANTEES, Database, Pushes
from . import connection_asyncio, connection_blocking, doctor
from .changes import WATCHED
from .connection import Manner
from .given_up import GivenUp
from .subscription import LoopPushes, ThreadPushes
from .target import PostgresqlTarget

GOODBYE_S: Final = 0.5
"""How long a client that is closed may take to send the cancel requests for what it has given up."""


class Postgresql(Database):
    """A PostgreSQL: it notifies."""

    system = "PostgreSQL"
    claims_per_call = 500

    def __init__(self, target: PostgresqlTarget) -> None:
        super().__init__(target)
        self.target = target
        self.manner = Manner(target.schema, target.url)
        self._given_up: list[GivenUp] = []

    def link(self, runtime: Runtime, most: int, login: float = 0.0) -> SqlLink:
        servers, where, given_up = self.target.servers, self.target.servers[0].where, GivenUp(most)
        self._given_up.append(given_up)
        if runtime.flavour == "asyncio":
            return LoopLink(where, most, connection_asyncio.maker(servers, self.manner, login, given_up), login)
        return ThreadLink(where, most, connection_blocking.maker(servers, self.manner, login, given_up), login)

    async def say_goodbye(self, runtime: Runtime) -> None:
        until = runtime.now() + GOODBYE_S
        while any(each.are_being_cancelled for each in self._given_up) and runtime.now() < until:
            await runtime.sleep(0.01)

    def pushes(self, backend: SqlBackend, runtime: Runtime) -> tuple[Pushes | None, Reader | None]:
        if runtime.flavour == "asyncio":
            return LoopPushes(self.target, self.manner, backend.take_note, runtime), None
        pushes = ThreadPushes(self.target, self.manner, backend.take_note)
        return pushes, pushes

    def guard(self, claim: Claim, token: int, connection: object) -> object:
        """Let the commit of the caller's own transaction fail once the claim is gone."""
        # What knows the connections of people is imported for those who have one.
        from .guard import guard

        return guard(claim, token, f'"{self.schema}".guard', connection)

    async def examine(self, backend: SqlBackend, until: float) -> Findings:
        return await doctor.examine(self, backend, until)


class PostgresqlBackend(SqlBackend):
    """One client of a PostgreSQL: it tells also those who stand in no line."""

    async def watch(self, name: str, watcher: str, until: float) -> bool:
        """Tell a hint for `begun(watcher)` as soon as the next change of the line will be told, one for the watcher when it comes; whether it can."""
        channel = await self._listen(until)
        if channel is None:
            return False
        await self.channel.run(
            RoutineCall("watch", (*self._places(name), watcher, channel, WATCHED)), until, insists=False
        )
        self._hints.heard(begun(watcher))
        return True

    async def unwatch(self, watcher: str) -> None:
        """Nobody is there to be told any more; the database is not asked, and forgets it with the next change or in a while."""


__all__ = ["GUARANTEES", "Postgresql", "PostgresqlBackend"]
