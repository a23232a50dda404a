"""The clients of redis-py, each as one question: send this command, give its answer.

On a blocking client `send` never suspends. A single server is talked to on a connection out of the client's own pool,
which keeps its TLS, password and timeouts, spares the command layer's time, and leaves out its hidden retries: an
increment that is sent twice counts twice.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from ...errors import ConfigError


def as_text(word: Any) -> Any:
    """A number as the text that redis-py would make of it; the rest as it is.

    hiredis crashes when a signal handler raises while it turns a number into text itself.
    """
    return repr(word) if isinstance(word, (int, float)) and not isinstance(word, bool) else word


class Sender(Protocol):
    """One client."""

    awaits: bool
    no_script: type[Exception]
    refused: type[Exception]

    async def send(self, *command: Any) -> Any:
        """The server's answer."""


def sender_for(client: Any) -> Sender:
    """How commands are sent by whatever client this is."""
    command = getattr(client, "execute_command", None)
    if command is None:
        raise ConfigError(f"RedisFence takes a client of redis-py, not {type(client).__name__}")
    awaits = inspect.iscoroutinefunction(command)
    if not hasattr(client, "connection_pool") or getattr(client, "connection", None) is not None:
        # A cluster client, which has to find the server first, or a client that is tied to one connection.
        return AwaitedClientSender(client) if awaits else ClientSender(client)
    return AwaitedPoolSender(client) if awaits else PoolSender(client)


class ClientSender:
    """Through the client's command layer."""

    awaits = False

    def __init__(self, client: Any) -> None:
        from redis.exceptions import NoScriptError, ResponseError

        self.no_script: type[Exception] = NoScriptError
        self.refused: type[Exception] = ResponseError
        self._client = client

    async def send(self, *command: Any) -> Any:
        return self._client.execute_command(*command)


class AwaitedClientSender(ClientSender):
    """Through the command layer of a client of `redis.asyncio`."""

    awaits = True

    async def send(self, *command: Any) -> Any:
        return await self._client.execute_command(*command)


class PoolSender(ClientSender):
    """On a connection out of the client's pool."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._pool = client.connection_pool
        self._named = _wants_a_name(self._pool)

    async def send(self, *command: Any) -> Any:
        pool = self._pool
        connection = pool.get_connection("EVALSHA") if self._named else pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        except self.refused:
            raise
        except BaseException:
            # An answer may still come on it, and would be taken for that of the next command.
            connection.disconnect()
            raise
        finally:
            pool.release(connection)


class AwaitedPoolSender(PoolSender):
    """On a connection out of the pool of a client of `redis.asyncio`."""

    awaits = True

    async def send(self, *command: Any) -> Any:
        pool = self._pool
        connection = await (pool.get_connection("EVALSHA") if self._named else pool.get_connection())
        try:
            await connection.send_command(*command)
            return await connection.read_response()
        except self.refused:
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)


def _wants_a_name(pool: Any) -> bool:
    """redis-py up to 5 asks for the command's name before it gives a connection."""
    parameters = list(inspect.signature(pool.get_connection).parameters.values())
    return bool(parameters) and parameters[0].default is inspect.Parameter.empty and parameters[0].kind in (0, 1)
