"""The two shells are mirror images: the same names, parameters, defaults and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from types import FunctionType, ModuleType
from typing import Any

import pytest

from lockline import aio, sync
from lockline.core import shells
from lockline.runtime.block import Exit

CLASSES = ("Client", "Lease", "Lock", "Lost", "RWLock")
AWAITED = {
    "Client": {"inspect", "list", "evict", "examine", "close", "__exit__", "__enter__"},
    "Lease": {"extend", "validate", "downgrade", "release", "__enter__", "__exit__"},
    "Lock": {"acquire", "try_acquire", "__enter__", "__exit__"},
    "Lost": {"wait"},
    "RWLock": set(),
}
"""What does I/O, and is therefore a coroutine in asyncio; everything else is plain in both."""


def mirror(name: str) -> str:
    """The name of the same thing on the other side."""
    return {"__aenter__": "__enter__", "__aexit__": "__exit__"}.get(name, name)


def members(cls: type) -> dict[str, Any]:
    """Everything the class defines for its user, itself or by what both shells share."""
    found: dict[str, Any] = {}
    for part in cls.__mro__:
        if part is not cls and part.__module__ != shells.__name__:
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


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_same_members_on_both_sides(name: str) -> None:
    ours, theirs = getattr(sync, name), getattr(aio, name)
    assert ours.__doc__ == theirs.__doc__
    assert [base.__name__ for base in ours.__mro__] == [base.__name__ for base in theirs.__mro__]
    assert set(members(ours)) - {"__slots__"} == set(members(theirs)) - {"__slots__"}
    assert list(members(ours)) == list(members(theirs)), "in the same order, so that the files read alike"


@pytest.mark.parametrize("name", CLASSES)
def test_each_member_has_the_same_parameters_defaults_types_and_docstring(name: str) -> None:
    ours, theirs = members(getattr(sync, name)), members(getattr(aio, name))
    for member in ours:
        mine, other = function_of(ours[member]), function_of(theirs[member])
        assert type(ours[member]) is type(theirs[member]), member
        assert mine.__doc__ == other.__doc__, member
        ours_takes, theirs_takes = inspect.signature(mine), inspect.signature(other)
        if member == "acquire":
            # To be awaited, or entered with `async with` as it is: more than a coroutine, which gives the same lease.
            assert issubclass(aio._Acquiring, Coroutine)
            theirs_takes = theirs_takes.replace(return_annotation=ours_takes.return_annotation)
        assert ours_takes == theirs_takes, member
        assert not inspect.iscoroutinefunction(mine), member
        awaited = inspect.iscoroutinefunction(other) or theirs_takes != inspect.signature(other)
        assert awaited == (member in AWAITED[name]), member


def test_connect_is_the_same_on_both_sides() -> None:
    assert inspect.signature(sync.connect) == inspect.signature(aio.connect)
    assert sync.connect.__doc__ == aio.connect.__doc__


@pytest.mark.parametrize("module", [sync, aio], ids=["sync", "aio"])
def test_everything_public_says_what_it_promises(module: ModuleType) -> None:
    for name in CLASSES:
        cls = getattr(module, name)
        assert cls.__doc__
        for member, value in members(cls).items():
            if not member.startswith("_"):
                assert function_of(value).__doc__, f"{name}.{member}"
