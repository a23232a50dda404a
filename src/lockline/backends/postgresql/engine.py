"""What an engine of SQLAlchemy gives its driver, `connect_args` included, in the words of libpq."""

from __future__ import annotations

from typing import Any, Final

from ...errors import ConfigError

OTHER_WORDS: Final = {"database": "dbname"}
"""What asyncpg and pg8000 call otherwise."""
OF_A_DRIVER: Final = ("ssl", "ssl_context", "direct_tls", "unix_sock")
"""What only asyncpg or pg8000 understands, and decides how the server is reached or trusted."""


class _Seen(Exception):
    """The engine would connect now."""


def settings_of(engine: Any, *, trusted: bool) -> dict[str, Any]:
    """Its settings; nothing is sent. ConfigError for those that libpq cannot be given.

    `trusted` says that the caller has said by himself how the server is to be trusted.
    """
    said = {OTHER_WORDS.get(name, name): value for name, value in _passed_on(engine).items()}
    for name in ("host", "port"):
        if isinstance(said.get(name), list | tuple):
            said[name] = ",".join(map(str, said[name]))
    for name in OF_A_DRIVER:
        value = said.pop(name, None)
        if value is None or trusted:
            continue
        if name == "ssl" and isinstance(value, str | bool) and value is not True:
            # asyncpg has libpq's words for it.
            said["sslmode"] = value or "disable"
            continue
        raise ConfigError(
            f"the engine's {name}= is its driver's own and cannot be carried over; "
            "say it beside the engine (tls=, ca=, cert=, key=, sslmode=), or connect by URL"
        )
    return said


def _passed_on(engine: Any) -> dict[str, Any]:
    """What the driver's `connect` would be given: the engine itself says it, as it is about to call that."""
    from sqlalchemy import event

    sync = getattr(engine, "sync_engine", engine)
    seen: dict[str, Any] = {}

    def look(dialect: object, record: object, args: object, params: dict[str, Any]) -> None:
        seen.update(params)
        raise _Seen

    # A pool of its own, so that no other thread meets this.
    pool = sync.pool.recreate()
    event.listen(sync, "do_connect", look)
    try:
        pool.connect().close()
    except _Seen:
        return seen
    except Exception as problem:
        raise _own_way() from problem
    finally:
        event.remove(sync, "do_connect", look)
        pool.dispose()
    raise _own_way()


def _own_way() -> ConfigError:
    return ConfigError("this engine makes its connections in a way of its own (creator=); connect by URL")
