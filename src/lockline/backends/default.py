"""Which store is meant where the caller names none, and what may refuse the one that was found.

A program that was meant for a server and is started without `LOCKLINE_URL` (cron, systemd) would lock on this machine alone,
and so on every machine. A file can name the store for all of them, and a requirement turns the silent fallback into an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import ConfigError
from . import plugins
from .url import scheme_of, shortened

FALLBACK: Final = "local:"
OF_THE_MACHINE = Path("/etc/lockline.toml")
OF_THE_USER: Final = "lockline.toml"
"""In `XDG_CONFIG_HOME`, or else in ~/.config."""

KEPT_HERE: Final = frozenset({"memory", "local"})
"""The stores that reach no further than this machine. All others are servers."""
FAMILIES: Final = {
    "local": {"local"},
    "redis": {"redis", "rediss", "unix", "redis+sentinel", "redis+cluster"},
    "redlock": {"redlock"},
    "zk": {"zk"},
    "etcd": {"etcd"},
    "consul": {"consul"},
    "postgresql": {"postgresql", "postgres"},
    "mysql": {"mysql", "mariadb"},
}
"""What can be required besides any server at all, and the schemes that fulfil it."""


class Store(NamedTuple):
    """A store, and who named it. The URL may hold a password: it is not for printing."""

    url: str
    said_by: str | None
    """None when nobody did: the fallback to this machine."""


class Saying(NamedTuple):
    """What one place says about the store."""

    place: str
    url: str | None = None
    require: str | None = None


def store(url: str | None = None, *, config: str | None = None, require: str | None = None) -> Store:
    """The store that was named outright, or by the file, the environment or the files of user and machine, in this order.

    The nearest requirement counts as well: the one given here, `LOCKLINE_REQUIRE`, or one in a file that was read. A URL that
    was named outright is only refused by a requirement that was given with it.
    """
    if url is not None:
        return _checked(Store(url, "--url"), require, "--require")
    by = "--require"
    for saying in _sayings(config):
        if require is None and saying.require is not None:
            require, by = saying.require, saying.place
        if saying.url is not None:
            return _checked(Store(saying.url, saying.place), require, by)
    return _checked(Store(FALLBACK, None), require, by)


def _sayings(config: str | None) -> Iterator[Saying]:
    """What each place says, the nearest first; a file is read only when nobody before it has named the store."""
    required = os.environ.get("LOCKLINE_REQUIRE") or None
    yield Saying(f"LOCKLINE_REQUIRE={required}", require=required)
    if config is not None:
        said = read(Path(config))
        if said is None:
            raise ConfigError(f"{config} is not there")
        if said.url is None:
            raise ConfigError(f'{config} names no store; write a line like: url = "redis://localhost:6379"')
        yield said
    yield Saying("LOCKLINE_URL", os.environ.get("LOCKLINE_URL") or None)
    for file in files():
        yield read(file) or Saying(str(file))


def files() -> list[Path]:
    """The files of the user and of the machine, the nearer first."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    # Without a home there is no file of the user; nothing is looked for in whatever folder this runs in.
    return [*([Path(folder) / OF_THE_USER] if os.path.isabs(folder) else []), OF_THE_MACHINE]


def read(file: Path) -> Saying | None:
    """What the file says; None if there is none. A file that cannot be read or understood is an error, never skipped."""
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise ConfigError(
            f"{file} cannot be read, and might name the store: {problem.strerror}; make it readable, or set LOCKLINE_URL"
        ) from None
    import tomllib  # only who has such a file pays for it

    try:
        found = tomllib.loads(text.decode())
    except ValueError as problem:  # says where, and never what stands there
        where = problem if isinstance(problem, tomllib.TOMLDecodeError) else "not UTF-8"
        raise ConfigError(f'{file} is not TOML: {where}; write lines like: url = "redis://localhost:6379"') from None
    for key, value in found.items():
        # Never the value: it may be a password in the wrong place. The key can be a URL in the wrong place.
        if key not in ("url", "require"):
            raise ConfigError(f"{file}: {shortened(key)} is not known; it may say url and require")
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{file}: {key} must be a text in quotes")
    return Saying(str(file), found.get("url"), found.get("require"))


def _checked(found: Store, require: str | None, by: str) -> Store:
    if require is None:
        return found
    scheme = scheme_of(found.url)
    families = FAMILIES if require == "server" or require in FAMILIES else {**FAMILIES, **_brought()}
    if require != "server" and require not in families:
        raise ConfigError(f"{by} asks for {require!r}; it can ask for server, {', '.join(families)}")
    if scheme not in KEPT_HERE if require == "server" else scheme in families[require]:
        return found
    asks = by if by.endswith(f"={require}") else f"{by} asks for {require}"
    wanted = "a server" if require == "server" else f"a {require} store"
    if found.said_by is None:
        raise ConfigError(
            f"{asks}, but nothing names {wanted}, and locks on this machine alone would not do; "
            f"name it with LOCKLINE_URL or in {' or '.join(map(str, files()))}"
        )
    raise ConfigError(f"{asks}, but {found.said_by} names a {scheme}: store, which is not {wanted}")


def _brought() -> dict[str, set[str]]:
    return {scheme: {scheme} for scheme in plugins.schemes()}
