"""`lockline exporter`: the state of a store for Prometheus."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import click

from ..core.arguments import a_prefix
from ..observe.exporter import serve
from .options import open_client
from .text import printable

EPILOG = """\
\b
Examples:
  lockline exporter
  lockline exporter redis://localhost:6379 --port 8078
"""


@click.command(epilog=EPILOG)
@click.argument("url", required=False)
@click.option("--config", metavar="FILE", type=click.Path(), help='A file that names the backend: url = "redis://..."')
@click.option("--prefix", default="", help="Count only names that begin like this.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=8078, show_default=True, type=click.IntRange(0, 65535), help="The port; 0 takes any that is free."
)
def command(url: str | None, config: str | None, prefix: str, host: str, port: int) -> None:
    """Answer scrapes of Prometheus with the state of the store at URL: lines, holders, waiters, longest wait, oldest hold.

    No lock's name is in the answer. The store is asked once a second at most, however many scrape.
    """
    with open_client(url, config) as client:
        server, thread = serve([client], host, port, a_prefix(prefix))
        # By hand: for the first process of a container the kernel's own answer to a signal is to ignore it.
        signal.signal(signal.SIGTERM, _end)
        where = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
        click.echo(f"{where} shows {printable(client.url)}; Ctrl-C ends it")
        try:
            thread.join()
        finally:
            server.shutdown()
            server.server_close()


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)
