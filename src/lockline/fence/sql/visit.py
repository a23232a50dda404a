"""One offer at one resource over one connection, and the SQL that more than one dialect says."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

from ...errors import ConfigError
from ..rule import Mark, Offer
from .connections import Done, SqlConnection
from .errors import means_no_transaction

LOOK: Final = "SELECT token, grant_id FROM {table} WHERE resource = {resource} AND lock_name = {lock}"

# The exact rule: whoever enters is the mark.
TAKE: Final = """\
INSERT INTO {table} (resource, lock_name, token, grant_id)
VALUES ({resource}, {lock}, {token}, {grant})
ON CONFLICT (resource, lock_name) DO UPDATE
    SET token = excluded.token, grant_id = excluded.grant_id"""

# Whether the mark is this offer's already, the count of rows tells: an update that changes nothing, for the sake of the lock.
CONFIRM: Final = """\
UPDATE {table} SET token = token
WHERE resource = {resource} AND lock_name = {lock} AND token = {token} AND grant_id = {grant}"""

BEGIN_WRITING: Final = "UPDATE {table} SET token = token WHERE 1 = 0"

# Outside a transaction PostgreSQL refuses the first, and MySQL forgets it at once and refuses the second. Nothing changes.
SAVEPOINT: Final = ("SAVEPOINT lockline_fence_asks", "RELEASE SAVEPOINT lockline_fence_asks")


@dataclass(slots=True)
class Visit:
    """One offer at one resource, over one connection: what the steps of a dialect work with."""

    connection: SqlConnection
    table: str
    resource: str
    offer: Offer
    exact: bool
    writes: bool
    trusted: set[str]
    """What was found good about the table, by this fence: it is not asked again."""

    def run(self, text: str, rows: bool = False) -> Coroutine[Any, Any, Done]:
        """Run one statement, and fetch its first row if it has any."""
        resource, offer = self.resource, self.offer
        decode = FROM_HEX.get(self.connection.dialect)
        if decode is not None:
            text, resource = _in_hex(text, decode), _hex(resource)
            offer = Offer(_hex(offer.lock), offer.token, _hex(offer.grant))
        return self.connection.execute(text, self.table, resource, offer, rows)

    async def mark(self, text: str = LOOK) -> Mark | None:
        """The mark that is in the table; ConfigError if the columns are not what they should be."""
        row = (await self.run(text, rows=True)).row
        if row is None:
            return None
        token, grant = row[0], row[1]
        if isinstance(grant, (bytes, bytearray, memoryview)):
            grant = bytes(grant).decode()
        if type(token) is not int or not isinstance(grant, str):
            raise ConfigError(
                f"the table {self.table!r} is of another shape: its token is no whole number, or its grant no text"
            )
        return Mark(token, grant)

    async def demand_transaction(self, ask: Callable[[Visit], Awaitable[bool | None]] | None = None) -> None:
        """ConfigError unless it is certain that what follows lasts to a commit; nothing is changed to find out."""
        known = self.connection.in_transaction()
        if known is None and ask is not None:
            known = await ask(self)
        if known:
            return
        why = "it cannot be seen that" if known is None else "it is not so that"
        raise ConfigError(
            f"on this connection {why} a statement waits for a commit; if each is committed by itself, the check and "
            "the write are two acts, and an old holder writes between them: begin a transaction, enter, read, write, commit"
        )


# The columns of MySQL, and all texts of a PostgreSQL database in SQL_ASCII, are bytes. The connection's character set would decide which
# bytes a text is: two marks for one name.
FROM_HEX: Final = {"mysql": r"UNHEX(\g<0>)", "postgresql": r"convert_from(decode(\g<0>, 'hex'), 'UTF8')"}


@lru_cache(maxsize=64)
def _in_hex(text: str, decode: str) -> str:
    return re.sub(r"\{(?:resource|lock|grant)\}", decode, text)


def _hex(text: str) -> str:
    return text.encode().hex()


class Dialect(Protocol):
    """What one kind of database needs: the module of that name."""

    DDL: str

    async def enter(self, visit: Visit) -> Offer | Mark | None:
        """Raise the mark if the offer may pass, and lock its row to the end of the transaction.

        The offer itself where it was let in, else the mark that stands.
        """

    async def create(self, visit: Visit) -> None:
        """Make the table if it is not there; ConfigError if what is there cannot be trusted."""

    def is_wrong_table(self, problem: Any) -> bool:
        """Whether the driver's error says that the table is missing or of another shape."""


async def holds_savepoint(visit: Visit) -> bool:
    """Whether a transaction is open, by the word of the database itself."""
    try:
        for text in SAVEPOINT:
            await visit.run(text)
    except Exception as problem:
        if means_no_transaction(problem):
            return False
        raise
    return True
