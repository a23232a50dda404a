"""`lockline web`: every line of a store in the browser."""

from __future__ import annotations

import logging
import secrets
import socket
from contextlib import ExitStack

import click

from ..core.shells import AnyClient
from ..errors import ConfigError
from ..sync import Client
from ..web import make_site
from ..web.access import Access
from ..web.asgi_page import AsgiPage
from ..web.server import is_loopback, listen, serve
from .options import open_client
from .text import printable, say

EPILOG = """\
\b
Examples:
  lockline web
  lockline web redis://localhost:6379 postgresql://db/app
  lockline web --allow-evict --audit evictions.jsonl
  ssh -L 8077:localhost:8077 web-3 lockline web        # from elsewhere, without opening a port
"""


@click.command(epilog=EPILOG)
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option("--config", metavar="FILE", type=click.Path(), help='A file that names the backend: url = "redis://..."')
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; others than this machine's own need the token.",
)
@click.option(
    "--port", default=8077, show_default=True, type=click.IntRange(0, 65535), help="The port; 0 takes any that is free."
)
@click.option(
    "--allow-host",
    "names",
    metavar="NAME",
    multiple=True,
    help="A name by which the page may be opened, besides localhost and addresses.",
)
@click.option("--no-token", is_flag=True, help="Let in everybody on this machine.")
@click.option("--allow-evict", is_flag=True, help="Let whoever sees the page take locks away, with a reason.")
@click.option(
    "--audit",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Where evictions are written down, besides the log.",
)
def command(
    urls: tuple[str, ...],
    config: str | None,
    host: str,
    port: int,
    names: tuple[str, ...],
    no_token: bool,
    allow_evict: bool,
    audit: str | None,
) -> None:
    """Show every line of the stores at URL in the browser, live: who holds it, who waits, for how long.

    The page only shows, unless you say --allow-evict. It is for this machine alone, unless you say --host; and for whoever has the
    address with the token that is printed here, since every user and every program of a machine can reach its ports.
    """
    if no_token and not is_loopback(host):
        raise click.UsageError(
            "--no-token is for this machine alone; for others mount lockline.web.asgi behind a login of your own"
        )
    if audit is not None and not allow_evict:
        raise click.UsageError("--audit writes down evictions; without --allow-evict there are none")
    with ExitStack() as open_stores:
        clients: dict[str, AnyClient] = {}  # type: ignore[type-arg]
        for url in urls or (None,):
            client: Client = open_stores.enter_context(open_client(url, config))
            if client.url in clients:
                raise click.UsageError(f"{printable(client.url)} was named twice")
            clients[client.url] = client
        token = None if no_token else secrets.token_urlsafe(24)
        access = Access(token, ["localhost", *_own_names(host), *names])
        try:
            site = make_site(clients, allow_evict, audit, access, knows_user=False)
        except OSError as problem:
            raise ConfigError(f"--audit {audit}: {problem.strerror}") from None
        listener = listen(host, port)
        if allow_evict:
            # The audit's lines are the only ones that this log has to say.
            logging.basicConfig(format="%(asctime)s %(message)s")
        serve(AsgiPage(site), listener, lambda: _announce(listener, token, host))


def _own_names(host: str) -> list[str]:
    return [] if is_loopback(host) else [host, socket.gethostname()]


def _announce(listener: socket.socket, token: str | None, host: str) -> None:
    """Where it is: on stdout, so that a script can read it, and the only time that the token is said."""
    port = listener.getsockname()[1]
    shown = "localhost" if is_loopback(host) else socket.gethostname() if host in ("0.0.0.0", "::") else host
    where = f"[{shown}]" if ":" in shown else shown
    click.echo(f"http://{where}:{port}/" + (f"?token={token}" if token else ""))
    if not is_loopback(host):
        say(
            "this is plain HTTP, and others can read along: put TLS in front, or listen on this machine alone and use ssh -L"
        )
