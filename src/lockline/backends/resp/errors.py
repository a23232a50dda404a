"""What can go wrong on the way to a server, each as what it is."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Final

import redis

from ...errors import BackendUnavailable
from .. import failures
from ..failures import DiedIdle as DiedIdle
from ..failures import NoAnswer as NoAnswer
from ..failures import Refused as Refused
from .target import Address, spelled

WAIT_AND_REPEAT: Final = frozenset(
    {"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "UNBLOCKED"}
)
"""Answers of a server that will serve later, or of one that another server has replaced."""

_CURES: Final = {
    "OOM": "the server has no memory left for writes; give it more, or let it evict other keys",
    "MISCONF": "the server cannot persist and refuses writes; see its log",
    "NOAUTH": "the server wants a password; put it into the URL",
    "WRONGPASS": "the server does not accept this user or password",
    "NOPERM": "the user lacks a permission; docs/backends/redis.md has the rule that Lockline needs",
    "WRONGTYPE": "another program keeps a value under this key; Lockline never overwrites it",
    "CROSSSLOT": "the server is a cluster; connect with redis+cluster://",
    "MOVED": "the server is a cluster; connect with redis+cluster://",
    "NOPROTO": "the server does not speak this version of the protocol; Redis 6.2 or later is needed",
}


_NO_COMMAND: Final = re.compile("unknown (redis )?command", re.IGNORECASE)
_RENAMED: Final = (
    "the server does not know a command that Lockline needs; its administrator, or a proxy, has renamed or disabled it"
)


def unavailable(problem: NoAnswer, *, unsent: bool = False) -> BackendUnavailable:
    """What the caller is told when there was no answer: whether Redis was out of reach, or silent, or never asked."""
    return failures.unavailable("Redis", problem, unsent=unsent)


_IN_SCRIPT: Final = re.compile(r"ERR Error running script .*?: -?([A-Z]{3,}) ")
"""How Redis before 7.0 tells the error of a command inside a script: with its code in the middle."""


def code_of(answer: object) -> str:
    """The first word of a server's error, or of the error inside it."""
    text = str(answer)
    inner = _IN_SCRIPT.match(text)
    return inner[1] if inner else text.partition(" ")[0].rstrip(":")


def refusal(answer: object, address: Address) -> Refused:
    """The error for an answer that no repetition will change."""
    text, code = str(answer), code_of(answer)
    if code == "ERR" and "user executing the script" in text:
        code = "NOPERM"
    elif code == "ERR" and "unauthenticated" in text:
        code = "NOAUTH"
    cure = _CURES.get(code) or (_RENAMED if _NO_COMMAND.search(text) else None)
    return Refused(f"Redis at {spelled(address)} refused: {text}" + (f"; {cure}" if cure else ""), code)


def said_no(answer: object, address: Address) -> Exception:
    """What to raise for a server's error where it can be no answer: a refusal, unless it passes by itself."""
    if code_of(answer) in WAIT_AND_REPEAT:
        return NoAnswer(address, answer, sent=False, said=True)
    return refusal(answer, address)


NOT_LET_IN: Final = (redis.RedisError, OSError, AttributeError, LookupError, TypeError, ValueError)
"""What comes out of a login that failed; the last four where the library takes for an answer what is none."""


def failed_login(problem: Exception, address: Address) -> Exception:
    """What to raise when a connection could not be made: a refusal, if the server itself said no."""
    error = _failed_login(problem, address)
    if isinstance(error, Refused):
        error.unsent = True
    return error


def _failed_login(problem: Exception, address: Address) -> Exception:
    if isinstance(problem, redis.AuthenticationError):
        code = "WRONGPASS" if "invalid" in str(problem).lower() else "NOAUTH"
        return refusal(f"{code} {problem}", address)
    if isinstance(problem, redis.exceptions.NoPermissionError):
        return refusal(f"NOPERM {problem}", address)
    if isinstance(problem, redis.ResponseError):
        return said_no(problem, address)
    if not isinstance(problem, (redis.RedisError, OSError)):
        # The library reads an answer as if it were one, and stumbles over what is none.
        told = f"what it says is no answer to a login ({type(problem).__name__}); is it a Redis server?"
        return NoAnswer(address, told, sent=False, refused=True)
    silent = isinstance(problem, (redis.TimeoutError, TimeoutError))
    # A server that is loading its data is there, and will answer.
    refused = not silent and not isinstance(problem, redis.BusyLoadingError)
    return NoAnswer(address, _in_short(problem) if refused else problem, sent=False, refused=refused)


def _in_short(problem: BaseException) -> object:
    """What the system said, where it said something: the library repeats the address around it."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, (ssl.SSLError, socket.gaierror)):
            return problem  # their numbers are not the system's
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return problem


OLDEST: Final = (6, 2)


def vet(info: object, address: Address) -> None:
    """Refuse a server that is too old; one that does not tell its version is taken as it is."""
    if not isinstance(info, bytes):
        return
    # Valkey tells the Redis version that it is compatible with.
    found = re.search(rb"redis_version:(\d+)\.(\d+)", info)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        version = f"{int(found[1])}.{int(found[2])}"
        raise Refused(
            f"Redis at {spelled(address)} is {version}; Lockline needs Redis 6.2 or later, or Valkey", "VERSION"
        )
