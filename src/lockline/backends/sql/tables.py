"""`lockline init`: what has to be in a database before the first claim, made where it is not there yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from ...errors import BackendUnavailable
from ..failures import NoAnswer, Refused, unavailable

S = TypeVar("S")


class SqlTables(ABC, Generic[S]):
    """The tables and routines, at the first server that lets us in."""

    system: str

    def __init__(self, url: str, servers: Sequence[S], statements: str) -> None:
        self.url = url
        self.statements = statements
        """All of them as text, for a migration."""
        self._servers = servers

    def make(self) -> None:
        """Make what is not there yet."""
        problem: BackendUnavailable | None = None
        for server in self._servers:
            try:
                connection = self._connect(server)
            except NoAnswer as silence:
                problem = unavailable(self.system, silence, unsent=True)
            except Refused as refusal:
                problem = refusal
            else:
                with connection:
                    self._fill(connection, server)
                return
        assert problem is not None
        raise problem

    @abstractmethod
    def _connect(self, server: S) -> AbstractContextManager[Any]:
        """A connection that ends with its block; NoAnswer or Refused if there is none to be had."""

    @abstractmethod
    def _fill(self, connection: Any, server: S) -> None:
        """Make what is not there yet; Refused, with the cure, if we may not."""
