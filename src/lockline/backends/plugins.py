"""Schemes that other packages bring, through the entry point group `lockline.backends`.

    [project.entry-points."lockline.backends"]
    bakery = "lockline_bakery:connect"

The name is the scheme, the object what makes the backend: `connect(target, runtime, **options)`. Nothing of a package is imported
before a URL names its scheme, and a scheme of Lockline's own is never asked for here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ..core.backend import Backend
from ..errors import ConfigError
from ..runtime import Runtime

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "lockline.backends"
Connect = Callable[..., Backend]
_PARTS: Final = sorted({name for name in (*vars(Backend), *Backend.__annotations__) if not name.startswith("_")})


def schemes() -> list[str]:
    """The schemes that installed packages bring."""
    return sorted({entry.name for entry in _entries()})


def find(scheme: str) -> Connect | None:
    """What makes the backends of this scheme, or None if no package brings it; ConfigError if it cannot be used."""
    # A package that is found twice on the path is still one.
    offers = list({(_package(entry), entry.value): entry for entry in _entries() if entry.name == scheme}.values())
    if not offers:
        return None
    if len(offers) > 1:
        named = " and ".join(sorted(f"{_package(entry)} ({entry.value})" for entry in offers))
        raise ConfigError(f"{scheme}: is brought by more than one package: {named}; uninstall all but one")
    (entry,) = offers
    try:
        made = entry.load()
    except Exception as problem:  # whatever the import of a stranger's module may raise
        raise _broken(entry, f"cannot be loaded: {type(problem).__name__}: {problem}") from problem
    if not callable(made):
        raise _broken(entry, "is nothing that can be called; name a function: package.module:connect")

    def connect(target: str, runtime: Runtime, **options: Any) -> Backend:
        backend: Backend = made(target, runtime, **options)
        lacks = [part for part in _PARTS if not hasattr(backend, part)]
        if lacks:
            raise _broken(entry, f"is no backend of this version of Lockline: it lacks {', '.join(lacks)}")
        return backend

    return connect


def _entries() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # whoever names a scheme of Lockline's own does without

    return entry_points(group=GROUP)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "a package without a name"


def _broken(entry: EntryPoint, what: str) -> ConfigError:
    return ConfigError(f"{entry.name}: comes from {_package(entry)}, and its {entry.value} {what}")
