"""From a URL, or a client object of a backend's own library, to a backend."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, Final, Protocol

from ..core.backend import Backend
from ..errors import ConfigError
from ..runtime import Runtime
from . import default, plugins
from .plugins import Connect
from .url import guess, redacted, scheme_of, scrubbed, shortened

# module beside this one, extra that installs what it needs, schemes
ROOMS: Final = (
    ("memory", None, ("memory",)),
    ("local", None, ("local",)),
    ("redis", "redis", ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")),
    ("redlock", "redis", ("redlock",)),
    ("zookeeper", "zookeeper", ("zk",)),
    ("etcd", "etcd", ("etcd",)),
    ("postgresql", "postgresql", ("postgresql", "postgres")),
    ("consul", "consul", ("consul",)),
    ("mysql", "mysql", ("mysql", "mariadb")),
)
SCHEMES: Final = {scheme: (module, extra) for module, extra, schemes in ROOMS for scheme in schemes}
# top-level package of the user's own client object: (module beside this one, extra)
OBJECTS: Final = {
    "redis": ("redis", "redis"),
    "kazoo": ("zookeeper", "zookeeper"),
    "psycopg": ("postgresql", "postgresql"),
    "psycopg_pool": ("postgresql", "postgresql"),
}
# Those that can lead to any database: what kind, they say themselves.
TO_DATABASES: Final[dict[str, Callable[[Any], str]]] = {
    "sqlalchemy": lambda engine: str(engine.url.get_backend_name()),
    "django": lambda connection: str(connection.vendor),
}
# Subclasses of those that talk to no server: connections of our own would find another one, or none.
PRETENDERS: Final = frozenset({"fakeredis"})


def open_backend(target: Any, runtime: Runtime, options: dict[str, Any]) -> Backend:
    """The backend for this target; its module is imported only now, and nothing is sent yet."""
    if target is None:
        target = default.store().url
    if isinstance(target, str):
        name, connect = _by_scheme(target)
    else:
        # A list of clients is as good as the first of them.
        sample = target[0] if isinstance(target, (list, tuple)) and target else target
        name, extra = _by_class(type(sample), target)
        if sample is not target:
            name = "redlock"
        connect = _own(name, extra)
    try:
        return connect(target, runtime, **options)
    except (TypeError, ConfigError) as problem:
        # A library says it with the name of a class of its own, which nobody here has written.
        unknown = re.search(r"unexpected keyword(?: argument)?:? '?(\w+)", str(problem))
        if unknown is not None:
            raise ConfigError(f"{name} has no option {unknown[1]!r}") from None
        if isinstance(problem, ConfigError) and isinstance(target, str):
            told = scrubbed(str(problem), target)
            if told != str(problem):
                raise ConfigError(told) from None
        raise


class Tables(Protocol):
    """What has to be made in a database before it can carry lines."""

    url: str
    statements: str

    def make(self) -> None:
        """Make what is not there yet."""


def tables_of(url: str) -> Tables:
    """What this store needs; ConfigError for one that needs nothing."""
    name, _ = _by_scheme(url)
    module = importlib.import_module(f"{__name__}.{name}") if url.partition(":")[0].lower() in SCHEMES else None
    if not hasattr(module, "tables"):
        raise ConfigError(f"{redacted(url)!r} needs no tables: only databases do")
    return module.tables(url)  # type: ignore[union-attr,no-any-return]


def _by_scheme(url: str) -> tuple[str, Connect]:
    """What makes the backends of this URL's scheme, and what people call them."""
    scheme = scheme_of(url)
    if scheme in SCHEMES:
        return SCHEMES[scheme][0], _own(*SCHEMES[scheme])
    brought = plugins.find(scheme) if scheme else None
    if brought is not None:
        return scheme, brought
    known = ", ".join(f"{name}:" for name in (*SCHEMES, *plugins.schemes()))
    meant = guess(url)
    cure = f"; did you mean {meant!r}?" if meant else f" ({known})"
    raise ConfigError(f"{redacted(url)!r} does not begin with a scheme that Lockline knows{cure}")


def _own(module: str, extra: str | None) -> Connect:
    try:
        return importlib.import_module(f"{__name__}.{module}").connect  # type: ignore[no-any-return]
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.startswith("lockline"):
            raise
        raise ConfigError(
            f"{missing.name!r} is not installed; this backend needs: pip install 'lockline[{extra}]'"
        ) from None


def _by_class(kind: type, target: Any) -> tuple[str, str]:
    # By name, so that nobody's library is imported to look for its classes; a subclass of the user's own counts as well.
    for ancestor in kind.__mro__:
        package = ancestor.__module__.partition(".")[0]
        if package in PRETENDERS:
            raise ConfigError(
                f"{kind.__module__}.{kind.__name__} only looks like a client: no server is behind it; use memory: in tests"
            )
        if package in OBJECTS:
            return OBJECTS[package]
        if package in TO_DATABASES:
            try:
                database = TO_DATABASES[package](target)
            except AttributeError:
                break
            if database in SCHEMES:
                module, extra = SCHEMES[database]
                return module, str(extra)
            raise ConfigError(
                f"this {package} object leads to {database}, which carries no locks; use local: or a server"
            )
    raise ConfigError(
        f"connect() takes a URL or a client object of a backend, not {kind.__module__}.{kind.__name__}: {shortened(target)}"
    )
