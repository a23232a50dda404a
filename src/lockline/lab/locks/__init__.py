"""Every lock of the laboratory, in the order of the road."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from .face import PublishedLock

HOMES: Final = (
    ("setnx", ("Setnx", "SetnxExpire", "SetnxExpireMulti")),
    ("set_nx_ex", ("SetNxEx",)),
    ("getset", ("Getset",)),
    ("owner", ("OwnerLookDelete", "OwnerCompareDelete", "OwnerWatchdog")),
    ("set_nx_ex", ("SetNxExWatchdog",)),
    ("reentrant", ("Reentrant", "ReentrantExpiry")),
    ("redlock", ("Redlock",)),
    ("zookeeper", ("ZookeeperBasic", "ZookeeperSequential")),
    ("database", ("Row", "RowExpiry", "Advisory")),
)


def catalogue() -> dict[str, type[PublishedLock]]:
    """Every lock by its id."""
    found = [getattr(import_module(f"{__name__}.{home}"), name) for home, names in HOMES for name in names]
    found += import_module(f"{__name__}.ours").ALL
    return {lock.id: lock for lock in found}
