"""Lockline: the distributed lock that tells the truth about what it holds."""

from . import aio
from .core.claim import Line, Standing
from .errors import (
    AcquireTimeout,
    BackendUnavailable,
    ClientClosed,
    ConfigError,
    LeaseLost,
    LocklineError,
    NotHeld,
    QuorumNotReached,
    StaleToken,
    WouldDeadlock,
)
from .guarantees import Guarantees
from .sync import Client, Lease, Lock, RWLock, connect

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "BackendUnavailable",
    "Client",
    "ClientClosed",
    "ConfigError",
    "Guarantees",
    "Lease",
    "LeaseLost",
    "Line",
    "Lock",
    "LocklineError",
    "NotHeld",
    "QuorumNotReached",
    "RWLock",
    "StaleToken",
    "Standing",
    "WouldDeadlock",
    "aio",
    "connect",
]
