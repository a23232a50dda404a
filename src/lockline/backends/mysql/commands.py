"""How a call of a routine is written for MySQL, how its answer is read, and what its errors mean."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from pymysql import err

from ..failures import NoAnswer, Refused
from ..sql.calls import RoutineCall, Rows, Scalar


def _digits(rows: Sequence[Sequence[Any]]) -> Rows:
    """One digit for each claim, in one text."""
    return [(int(digit),) for digit in rows[0][0]]


def _as_they_are(rows: Sequence[Sequence[Any]]) -> Rows:
    return rows


class MysqlRoutine(NamedTuple):
    """Which of what it is given travels, and how its answer is read."""

    takes: tuple[int, ...]
    reads: Callable[[Sequence[Sequence[Any]]], Rows]


# Nobody is pushed anything here, so channels stay behind.
ROUTINES: Final = {
    "enter": MysqlRoutine((0, 1, 2, 3, 4, 5, 6, 8), _as_they_are),
    "place": MysqlRoutine((0, 1, 2), _as_they_are),
    "leave": MysqlRoutine((0, 1, 2, 3), _as_they_are),
    "leave_all": MysqlRoutine((0,), _digits),
    "renew": MysqlRoutine((0,), _digits),
    "line": MysqlRoutine((0,), _as_they_are),
    "look": MysqlRoutine((0,), _as_they_are),
    "names": MysqlRoutine((0, 1), _as_they_are),
    "evict": MysqlRoutine((0, 1, 2), _as_they_are),
    "kept": MysqlRoutine((0, 1, 2, 3), _as_they_are),
    "keep": MysqlRoutine((0, 1, 2, 3, 4), _as_they_are),
    "hand_over": MysqlRoutine((0, 1, 2, 3, 4, 5), _as_they_are),
    "settings": MysqlRoutine((), _as_they_are),
}


def written(call: RoutineCall) -> str:
    """The statement that asks it."""
    values = ",".join([_written(call.args[at]) for at in ROUTINES[call.routine].takes])
    return f"CALL lockline_{call.routine}_v1({values})"


def _written(value: Scalar) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        # As its bytes: no quote, backslash or character set can come between.
        return f"X'{value.encode().hex()}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return repr(+value)


def read(call: RoutineCall, rows: Sequence[Sequence[Any]]) -> Rows:
    """The rows, in values."""
    return ROUTINES[call.routine].reads(rows)


# -- what an error means ---------------------------------------------------------------------------

UNDONE: Final = frozenset({1205, 1213})
"""The step was undone as a whole, and the connection is as good as before: it waited too long for another, or they crossed."""
FULL: Final = frozenset({1040, 1203, 1226, 1129, 1135})
"""No connection is to be had now: too many of them, or no thread for it."""
PASSING: Final = UNDONE | FULL | frozenset({
    3, 1021, 1026, 1030, 1114,  # the disk is full
    1037, 1038, 1041,  # no memory
    1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 3169, 4031,  # being shut down, or the session was ended
    1290, 1792, 1836,  # read-only, which a standby is until it is not
    1028, 1317, 1969, 3024,  # cut short
    1180, 1181,  # the commit or the rollback failed
    1195, 1196, 1412, 1568, 1615,
})  # fmt: skip
"""What passes by itself. Whether the step was done is not known: it may have come in the middle of the commit."""
TOO_LARGE: Final = frozenset({"1153"})
NO_TLS: Final = 2026
UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
"""What Python's ssl says inside of whatever a driver makes of it."""
_READ_ONLY: Final = "it is read-only, as a replica is; name the primary, or all of them: mysql://h1,h2/database"
_NO_RIGHT: Final = "the user lacks a right; docs/backends/mysql.md has those that Lockline needs"
_DISK: Final = "the server's disk is full"
_KEPT: Final = "another step takes long; or a transaction with guard() is still open: commit it before the release"
_SHORT: Final = "the step was cut short by a limit on statements; give this user a longer one"
_CURES: Final = {
    1045: "the server does not accept this user or password",
    1698: "the server does not accept this user or password",
    1130: "the server does not let anybody in from here",
    1044: _NO_RIGHT, 1142: _NO_RIGHT, 1143: _NO_RIGHT, 1227: _NO_RIGHT, 1370: _NO_RIGHT,
    1049: "INIT", 1146: "INIT", 1305: "INIT",
    1205: _KEPT,
    1290: _READ_ONLY, 1792: _READ_ONLY, 1836: _READ_ONLY,
    1040: "the server has no connection left; raise max_connections",
    1203: "this user has no connection left", 1226: "this user has used up what it may use",
    3: _DISK, 1021: _DISK, 1026: _DISK, 1114: _DISK,
    1969: _SHORT, 3024: _SHORT,
    1153: "what the claim says in its name, owner and meta is too long for the server; raise max_allowed_packet",
    1665: "set binlog_format to ROW or MIXED",
}  # fmt: skip


def cure_of(code: int, url: str) -> str:
    """What helps, after a semicolon, or nothing."""
    cure = _CURES.get(code, "")
    if cure == "INIT":
        cure = f"the tables of Lockline are not there, or not whole; run: lockline init {url}"
    return f"; {cure}" if cure else ""


NO_ANSWER_AT_ALL: Final = frozenset({
    AssertionError, AttributeError, IndexError, KeyError, LookupError, TypeError, ValueError, UnicodeDecodeError, struct.error
})  # fmt: skip
"""The libraries read an answer as if it were one, and stumble over what is none: an index, a length, a letter."""


def is_of_the_library(error: BaseException) -> bool:
    """Whether it is one that the libraries raise when a request fails.

    One of the caller's own, such as a soft time limit, is none of the server's, also where its class is derived from one of these.
    """
    kind = type(error)
    return isinstance(error, err.MySQLError | OSError) or kind is RuntimeError or kind in NO_ANSWER_AT_ALL


def _told(error: BaseException, url: str) -> tuple[int, str]:
    """Its number, 0 if it is none of the server's, and what to tell people."""
    if type(error) in NO_ANSWER_AT_ALL:
        return 0, f"what it says is not MySQL's protocol ({type(error).__name__}); is it a MySQL server?"
    code = error.args[0] if isinstance(error, err.MySQLError) and len(error.args) > 1 else 0
    if not isinstance(code, int) or 2000 <= code < 3000:
        return 0, str(error.args[1]) if len(error.args) > 1 else str(error) or type(error).__name__
    if not code:
        return 0, str(error) or type(error).__name__
    return code, f"{error.args[1]} (error {code}){cure_of(code, url)}"


def problem_of(error: BaseException, where: str, url: str) -> Exception:
    """What to raise for a step that went wrong: a refusal, unless it passes by itself."""
    code, told = _told(error, url)
    if not code:
        return NoAnswer(where, told, sent=True)
    if code in PASSING:
        return NoAnswer(where, told, sent=code not in UNDONE and code not in (1290, 1792, 1836), said=True)
    return Refused(f"MySQL at {where} refused: {told}", str(code))


def failed_login(error: BaseException, where: str, url: str) -> Exception:
    """What to raise when a connection could not be made: a refusal, if the server itself said no for good."""
    code, told = _told(error, url)
    if UNTRUSTED in f"{told} {error.__cause__} {error.__context__}":
        code, told = NO_TLS, f"{told}; nobody vouches for its certificate; name its authority with ca="
    elif error.args[:1] == (NO_TLS,):
        code, told = NO_TLS, "it does not speak TLS; leave tls= out, or turn it on there"
    if not code or code in PASSING:
        return NoAnswer(where, told, sent=False, refused=True)
    refusal = Refused(f"MySQL at {where} refused: {told}", str(code))
    refusal.unsent = True
    return refusal
