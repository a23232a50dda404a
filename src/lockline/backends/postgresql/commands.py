"""How a call of a routine is written for PostgreSQL, how its answer is read, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from psycopg.pq import DiagnosticField, Escaping
from psycopg.pq.abc import PGconn, PGresult

from ..failures import NoAnswer, Refused
from ..sql.calls import RoutineCall, Rows, Scalar
from .functions import FOREIGN, NO_SLOTS, WRONG_LEVEL

Decode = Callable[[bytes], Any]


def _bytes(text: bytes) -> bytes:
    # By libpq: a role may have another bytea_output than the usual one.
    return bytes(Escaping().unescape_bytea(text))


class PostgresqlRoutine(NamedTuple):
    """How one is called, and how the columns of its answer are read."""

    types: str
    readers: tuple[Decode, ...]


_STANDS: Final = (int, int, float, int, bytes.decode)
ROUTINES: Final = {
    "enter": PostgresqlRoutine("bigint bytea text float8 int4 int4 text text bool", _STANDS),
    "place": PostgresqlRoutine("bigint bytea text text", _STANDS),
    "leave": PostgresqlRoutine("bigint bytea text bool text", (int,)),
    "leave_all": PostgresqlRoutine("text", (int,)),
    "renew": PostgresqlRoutine("text text", (int,)),
    "line": PostgresqlRoutine("bytea", (bytes.decode, int, int, int, float, float, bytes.decode, float, float)),
    "look": PostgresqlRoutine("bytea", (bytes.decode, int, int, int, float, float, bytes.decode)),
    "names": PostgresqlRoutine("bytea bytea", (_bytes,)),
    "settings": PostgresqlRoutine("", (bytes.decode, bytes.decode)),
    "evict": PostgresqlRoutine("bigint bytea bigint", (int,)),
    "kept": PostgresqlRoutine("bytea text bigint float8", (float, _bytes, int, float, float)),
    "keep": PostgresqlRoutine("bytea text bytea bigint float8", (int,)),
    "hand_over": PostgresqlRoutine("bigint bytea text text float8 text text", (int,)),
    "watch": PostgresqlRoutine("bigint bytea text text float8", (int,)),
}

ALONE: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; %b; COMMIT"
"""In one trip, with a level of its own; for where a session begins its transactions otherwise."""
UNDO: Final = b"ROLLBACK"


def statements(schema: str) -> dict[str, bytes]:
    """The statement that calls each routine."""
    return {
        name: (
            f'SELECT * FROM "{schema}".{name}_v1('
            + ", ".join(f"${at}::{kind}" for at, kind in enumerate(routine.types.split(), 1))
            + ")"
        ).encode()
        for name, routine in ROUTINES.items()
    }


def written(value: Scalar) -> bytes | None:
    """The value as text of PostgreSQL."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return repr(value).encode()


def in_full(connection: PGconn, statement: bytes, values: list[bytes | None]) -> bytes:
    """The same as one text, for the protocol that takes several statements at once."""
    escape = Escaping(connection).escape_literal
    literals = [b"NULL" if value is None else bytes(escape(value)) for value in values]
    return ALONE % re.sub(rb"\$(\d+)", lambda found: literals[int(found[1]) - 1], statement)


def read(call: RoutineCall, result: PGresult) -> Rows:
    """The rows, in values."""
    readers = ROUTINES[call.routine].readers
    rows = []
    for at in range(result.ntuples):
        row = []
        for column, reader in enumerate(readers):
            text = result.get_value(at, column)
            row.append(None if text is None else reader(text))
        rows.append(row)
    return rows


# -- what an error means ---------------------------------------------------------------------------

UNTRUSTED: Final = "untrusted"
NO_TLS: Final = "no TLS"
STANDBY: Final = frozenset({"25006", "0A000"})
PASSING: Final = (
    "08", "40", "53", "57", "58", "55P03", "55006", "25006", "0A000", "XX000",
)  # fmt: skip
"""SQLSTATEs, or how they begin, of what passes by itself: no resources, being shut down or started, cancelled, in each other's way."""
_CURES: Final = {
    "28P01": "the server does not accept this user or password",
    "28000": "the server does not let this user in from here; see its pg_hba.conf",
    "3D000": "name a database that exists: postgresql://host/database",
    "3F000": "INIT",
    "42883": "INIT",
    "42P01": "INIT",
    NO_SLOTS: "INIT",
    FOREIGN: "let that role run lockline init (SET ROLE), or drop the schema if it is not yours",
    "42501": "the role lacks a right; docs/backends/postgresql.md has those that Lockline needs",
    "25006": "it is a read-only standby; name the primary, or all of them: postgresql://h1,h2/database",
    "0A000": "it is a read-only standby; name the primary, or all of them: postgresql://h1,h2/database",
    "57014": "the step was cut short by statement_timeout; give this role a longer one",
    "55P03": "another session keeps locked what the step needs: VACUUM FULL, or a transaction with guard() that is prepared; see pg_locks",
    "53300": "the server has no connection left; raise max_connections, or go through a pooler",
    "53100": "the server's disk is full",
    UNTRUSTED: "nobody vouches for its certificate; name its authority with ca=",
    NO_TLS: "it does not speak TLS; leave tls= out, or turn it on there",
}


def cure_of(code: str, url: str) -> str:
    """What helps, after a semicolon, or nothing."""
    cure = _CURES.get(code, "")
    if cure == "INIT":
        cure = f"the tables of Lockline are not there, or not whole; run: lockline init {url}"
    return f"; {cure}" if cure else ""


def code_of(result: PGresult) -> str:
    """The SQLSTATE of an error."""
    return (result.error_field(DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")


def problem_of(result: PGresult, where: str, url: str) -> Exception:
    """What to raise for a server's error: a refusal, unless it passes by itself."""
    code = code_of(result)
    text = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf8", "replace")
    severity = result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) or b""
    told = f"{text} (SQLSTATE {code}){cure_of(code, url)}"
    if code.startswith(PASSING) or code == WRONG_LEVEL:
        # An ERROR has undone the step. After a FATAL nobody knows: it may have come in the middle of the commit.
        fatal = severity != b"ERROR"
        return NoAnswer(where, told, sent=fatal, said=not fatal)
    return Refused(f"PostgreSQL at {where} refused: {told}", code)


_LOGIN_CODES: Final = (
    (r"certificate verify failed|server certificate .* does not match|root certificate file", UNTRUSTED),
    (r"server does not support SSL", NO_TLS),
    (r"password authentication failed|no password supplied|authentication failed", "28P01"),
    (r"no pg_hba.conf entry|role .* does not exist|is not permitted to log in", "28000"),
    (r"database .* does not exist|no such database", "3D000"),
    (r"permission denied for database", "42501"),
    (r"the database system is (starting up|shutting down|in recovery mode|not (yet )?accepting connections)", "57P03"),
    (r"too many (clients|connections)|remaining connection slots|no more connections", "53300"),
)
"""libpq tells of a failed login by text alone, without the SQLSTATE, and the server may speak another language."""


def failed_login(message: str, where: str, url: str) -> Exception:
    """What to raise when a connection could not be made: a refusal, if the server itself said no for good."""
    text = " ".join(message.split())
    for pattern, code in _LOGIN_CODES:
        if re.search(pattern, text):
            told = " ".join(message.rpartition(":  ")[2].split()) + cure_of(code, url)
            if code in ("53300", "57P03"):
                return NoAnswer(where, told, sent=False, refused=True)
            error = Refused(f"PostgreSQL at {where} refused: {told}", code)
            error.unsent = True
            return error
    # libpq translates nothing of this: the server's word for the severity, a colon and two spaces, and then what it says.
    return NoAnswer(where, text, sent=False, refused=True, said=bool(re.search(r"\S:  \S", message)))
