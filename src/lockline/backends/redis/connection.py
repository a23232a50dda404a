"""The connections of a client to its servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...errors import ClientClosed
from ..resp.connection_blocking import BlockingLink
from ..resp.errors import NoAnswer
from ..resp.joining import Request
from ..resp.target import Address, Server
from .target import Target


class Link(Protocol):
    """The way to one server. Raises NoAnswer and nothing else, where that does not answer."""

    kept_after_fork: bool
    """Whether its sockets are a loop's, which a child shares with its parent: then they are no child's to close."""

    @property
    def ready(self) -> bool:
        """Whether a connection is open."""

    async def ask(self, request: bytes, until: float) -> Any:
        """The server's answer to one command."""

    async def ask_in_order(self, request: Request, until: float) -> Any:
        """The same on a way on which none of these overtakes another, where there is one; it is in no hurry."""

    async def ask_along(self, request: Request, until: float) -> Any:
        """The same for one that somebody waits for."""

    async def ask_all(self, requests: Sequence[bytes], until: float) -> list[Any]:
        """The answers to several commands that were sent together, on one connection."""

    def forget(self) -> None:
        """Close what is open and idle; the next request connects anew."""

    def close(self) -> None:
        """For good."""


class Connections:
    """A link to each server that was ever asked; `make` gives one to a server, which it vets or not."""

    def __init__(self, target: Target, make: Callable[[Server, bool], Link]) -> None:
        self._target = target
        self._make = make
        self._links: dict[Address, Link] = {}
        self._inherited: list[Link] = []
        self._closed = False

    def forked(self) -> None:
        """In a child: drop every socket without a word; redis-py knows its process."""
        self._inherited += [link for link in self._links.values() if link.kept_after_fork]
        self._links = {}
        self._closed = False

    def to(self, address: Address, *, sentinel: bool = False) -> Link:
        """The link to this server."""
        link = self._links.get(address)
        if link is None:
            server = self._target.server(address, sentinel=sentinel)
            link = self._links.setdefault(address, self._make(server, not sentinel))
        # After the look, so that nobody is left with a link that `close` did not see.
        if self._closed:
            raise ClientClosed()
        return link

    async def ask(self, address: Address, request: bytes, until: float) -> Any:
        return await self.to(address).ask(request, until)

    async def ask_all(
        self, address: Address, requests: Sequence[bytes], until: float, *, sentinel: bool = False
    ) -> list[Any]:
        return await self.to(address, sentinel=sentinel).ask_all(requests, until)

    @property
    def ready(self) -> bool:
        """Whether a connection to some server is open."""
        return any(link.ready for link in list(self._links.values()))

    def forget(self, address: Address) -> None:
        """Close what is open to this server and idle."""
        link = self._links.get(address)
        if link is not None:
            link.forget()

    def close(self) -> None:
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            link.close()


class KeepersLink(BlockingLink):
    """The way for renewals, for threads: connections of their own, and the callers' where the server gives no more of them.

    One that is full (`maxclients`) refuses new ones, and serves those that are open: no lease is to be lost on it for that.
    """

    def __init__(self, server: Server, vets: bool, most: int, beside: Connections) -> None:
        super().__init__(server, vets, most)
        self._beside = beside

    async def ask(self, request: bytes, until: float, several: Sequence[bytes] = ()) -> Any:
        try:
            return await super().ask(request, until, several)
        except NoAnswer as problem:
            if not problem.refused:
                raise
        callers = self._beside.to(self._address)
        return await (callers.ask_all(several, until) if several else callers.ask(request, until))
