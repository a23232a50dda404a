"""The two shells are mirror images: the same names, parameters, defaults and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Coroutine
from types import FunctionType, ModuleType
from typing import Any

import pytest

from lockline import aio, sync
from lockline.core import shells
from lockline.core.asking import Asking
from lockline.kit import aio as kit_aio
from lockline.kit import locks as kit_locks
from lockline.kit import pool as kit_pool
from lockline.kit import sync as kit_sync
from lockline.runtime.block import Exit

CLASSES = ("Client", "Lease", "Lock", "Lost", "RWLock")
KIT = ("Kit", "Leases", "Locks", "LostTogether", "Pool", "Slot")
SHARED = {shells.__name__, kit_locks.__name__, kit_pool.__name__, kit_sync.__name__, kit_aio.__name__}
"""Where the shells have in common what needs no I/O."""
AWAITED = {
    "Client": {
        "attach",
        "lead",
        "leader",
        "once",
        "inspect",
        "list",
        "evict",
        "examine",
        "close",
        "__exit__",
        "__enter__",
    },
    "Lease": {"detach", "extend", "validate", "downgrade", "release", "__enter__", "__exit__"},
    "Lock": {"acquire", "try_acquire", "locked", "__enter__", "__exit__"},
    "Lost": {"wait"},
    "RWLock": set(),
    "Kit": {"attach", "lead", "leader", "once"},
    "Leases": {"release", "__enter__", "__exit__"},
    "Locks": {"acquire", "__enter__", "__exit__"},
    "LostTogether": {"wait"},
    "Pool": {"acquire", "__enter__", "__exit__"},
    "Slot": {"release", "__enter__", "__exit__"},
}
"""What does I/O, and is therefore a coroutine in asyncio; everything else is plain in both."""
COROUTINE = re.compile(r"Coroutine\[Any, Any, (.*)\]")


def mirror(name: str) -> str:
    """The name of the same thing on the other side."""
    return {"__aenter__": "__enter__", "__aexit__": "__exit__"}.get(name, name)


def members(cls: type) -> dict[str, Any]:
    """Everything the class defines for its user, itself or by what both shells share."""
    found: dict[str, Any] = {}
    for part in cls.__mro__:
        if part is not cls and part.__module__ not in SHARED:
            continue
        for name, value in vars(part).items():
            value = value.method if isinstance(value, Exit) else value
            if isinstance(value, (FunctionType, property)) and (not name.startswith("_") or name.startswith("__")):
                found.setdefault(mirror(name), value)
    return found


def function_of(member: Any) -> FunctionType:
    found = member.fget if isinstance(member, property) else member
    assert isinstance(found, FunctionType)
    return found


def public(module: ModuleType) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, (type, FunctionType)) and value.__module__ == module.__name__
    }


def test_both_offer_the_same_names() -> None:
    assert public(sync) == public(aio) == {*CLASSES, "connect"}
    assert public(kit_sync) == public(kit_aio) == {*KIT}


def both(name: str) -> tuple[type, type]:
    """The class of this name, of each shell."""
    if name in KIT:
        return getattr(kit_sync, name), getattr(kit_aio, name)
    return getattr(sync, name), getattr(aio, name)


@pytest.mark.parametrize("name", [*CLASSES, *KIT])
def test_a_class_has_the_same_members_on_both_sides(name: str) -> None:
    ours, theirs = both(name)
    assert ours.__doc__ == theirs.__doc__
    assert [base.__name__ for base in ours.__mro__] == [base.__name__ for base in theirs.__mro__]
    assert set(members(ours)) - {"__slots__"} == set(members(theirs)) - {"__slots__"}
    assert list(members(ours)) == list(members(theirs)), "in the same order, so that the files read alike"


@pytest.mark.parametrize("name", [*CLASSES, *KIT])
def test_each_member_has_the_same_parameters_defaults_types_and_docstring(name: str) -> None:
    ours, theirs = map(members, both(name))
    for member in ours:
        mine, other = function_of(ours[member]), function_of(theirs[member])
        assert type(ours[member]) is type(theirs[member]), member
        assert mine.__doc__ == other.__doc__, member
        ours_takes, theirs_takes = inspect.signature(mine), inspect.signature(other)
        acquires = (name, member) == ("Lock", "acquire")
        if acquires:
            # More than a coroutine, which gives the same: it may be entered with `async with` as it is.
            assert issubclass(aio._Acquiring, Asking)
            assert issubclass(Asking, Coroutine)
            theirs_takes = theirs_takes.replace(return_annotation=ours_takes.return_annotation)
        # A plain function that gives a coroutine is awaited as one that is a coroutine.
        gives = COROUTINE.fullmatch(str(theirs_takes.return_annotation))
        if gives:
            theirs_takes = theirs_takes.replace(return_annotation=gives[1])
        # What the user gives, or is given, to go through is awaited there too.
        assert str(ours_takes) == re.sub(
            r"Awaitable\[((?:\w|\[\w+\])+)\]|Async(?=Iterator)", r"\1", str(theirs_takes)
        ), member
        assert not inspect.iscoroutinefunction(mine), member
        awaited = inspect.iscoroutinefunction(inspect.unwrap(other)) or bool(gives) or acquires
        assert awaited == (member in AWAITED[name]), member


def test_connect_is_the_same_on_both_sides() -> None:
    looping = inspect.signature(aio.connect)
    # The blocking keeper is a thread anyway.
    assert looping.parameters["keeper"].default == "loop"
    both_take = [taken for name, taken in looping.parameters.items() if name != "keeper"]
    assert str(inspect.signature(sync.connect)) == str(looping.replace(parameters=both_take))
    assert sync.connect.__doc__ == aio.connect.__doc__


@pytest.mark.parametrize("module", [sync, aio], ids=["sync", "aio"])
def test_everything_public_says_what_it_promises(module: ModuleType) -> None:
    for name in [*CLASSES, *KIT]:
        cls = both(name)[module is aio]
        assert cls.__doc__
        for member, value in members(cls).items():
            if not member.startswith("_"):
                assert function_of(value).__doc__, f"{name}.{member}"
