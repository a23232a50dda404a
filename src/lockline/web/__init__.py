"""The operator's page: every line of a store as a line, live, in a browser.

`lockline web URL` serves it by itself; `asgi` and `wsgi` are the same page for a program that has a server and a login already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import sync
from ..core.shells import AnyClient
from ..errors import ConfigError
from .access import Access
from .audit import Audit
from .routes import Site, a_title
from .watch import WatchedBoard

if TYPE_CHECKING:
    from .asgi_page import AsgiPage
    from .wsgi_page import WsgiPage

__all__ = ["asgi", "wsgi"]

AClient = AnyClient[Any, Any]


def asgi(
    client: AClient | Mapping[str, AClient],
    *,
    allow_evict: bool = False,
    audit: str | os.PathLike[str] | None = None,
    user: Callable[[Mapping[str, Any]], str] | None = None,
    secret: str | None = None,
) -> AsgiPage:
    """The page as an ASGI app, to be mounted behind your own login; it asks nobody who they are.

    `client` is one of `lockline.connect` or `lockline.aio.connect`, or several by the title of their tab. `user` says from the
    scope who asks, for the audit line of an eviction. Several processes behind one address share a `secret`.
    """
    from .asgi_page import AsgiPage

    return AsgiPage(
        make_site(client, allow_evict, audit, Access(None, None, secret), knows_user=user is not None), user
    )


def wsgi(
    client: sync.Client | Mapping[str, sync.Client],
    *,
    allow_evict: bool = False,
    audit: str | os.PathLike[str] | None = None,
    user: Callable[[Mapping[str, Any]], str] | None = None,
    secret: str | None = None,
) -> WsgiPage:
    """The page as a WSGI app; as `asgi`, with the environ for `user`.

    A browser that watches takes a thread of the server for as long as it does: give it threads (`gunicorn --threads 20`).
    """
    from .wsgi_page import WsgiPage

    site = make_site(client, allow_evict, audit, Access(None, None, secret), knows_user=user is not None)
    for watch in site.watches:
        if not isinstance(watch.client, sync.Client):
            raise ConfigError("a WSGI app blocks: give it a client of lockline.connect, not of lockline.aio")
    return WsgiPage(site, user)


def make_site(
    client: AClient | Mapping[str, AClient],
    allow_evict: bool,
    audit: str | os.PathLike[str] | None,
    access: Access,
    *,
    knows_user: bool,
) -> Site:
    """The page over these clients; ConfigError for what is none."""
    clients: Mapping[Any, AClient] = client if isinstance(client, Mapping) else {getattr(client, "url", "?"): client}
    for one in clients.values():
        if not isinstance(one, AnyClient):
            raise ConfigError(f"the page shows what a client of lockline.connect sees, not {type(one).__name__}")
    if not clients:
        raise ConfigError("the page needs at least one client")
    titles = [a_title(title) for title in clients]
    log = Audit(None if audit is None else os.fspath(audit))
    return Site([WatchedBoard(one) for one in clients.values()], titles, access, allow_evict, log, knows_user)
