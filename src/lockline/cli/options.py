"""What several commands take: a URL, a name, seconds, `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..backends import default
from ..core.arguments import a_length
from ..core.claim import Standing
from ..errors import ConfigError, LocklineError
from ..sync import Client, connect

F = TypeVar("F", bound=Callable[..., Any])


def seconds(value: object) -> float:
    """A length of time: 10, 1.5, 500ms, 30s, 5m, 1h, 1d."""
    try:
        return a_length(str(value), "a time")
    except ConfigError:
        raise click.BadParameter(f"{value!r} is not a time; write 10, 1.5, 500ms, 30s, 5m, 1h or 1d") from None


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names in use that begin like this; silence when the backend does not answer."""
    try:
        with open_client(ctx.params.get("url"), ctx.params.get("config")) as client:
            return [CompletionItem(name) for name in client.list(incomplete)]
    except LocklineError:
        return []


def name_argument(function: F) -> F:
    """NAME, with completion from the backend."""
    return click.argument("name", shell_complete=complete_name)(function)


def url_option(function: F) -> F:
    """`--url` and `--config`; without both LOCKLINE_URL, the files of user and machine, this machine."""
    function = click.option(
        "--config", metavar="FILE", type=click.Path(), help='A file that names the backend: url = "redis://..."'
    )(function)
    return click.option(
        "--url", metavar="URL",
        help="The backend. Without it: --config, $LOCKLINE_URL, ~/.config/lockline.toml, /etc/lockline.toml, this machine.",
    )(function)  # fmt: skip


def grace_option(function: F) -> F:
    """`--grace`: how a command ends whose lease cannot be renewed."""
    return click.option(
        "--grace", type=seconds, metavar="S",
        help="Seconds between TERM and KILL when the lease cannot be renewed; both come before it ends. "
        "At most half the ttl.  [default: a quarter of the ttl, at most 10]",
    )(function)  # fmt: skip


def require_option(function: F) -> F:
    """`--require`: which kind of backend it has to be."""
    return click.option(
        "--require", metavar="KIND",
        help="Refuse any other backend than this kind: server (whichever), redis, redlock, zk, etcd, consul or local. "
        "Without it: $LOCKLINE_REQUIRE.",
    )(function)  # fmt: skip


def json_option(function: F) -> F:
    """`--json`, for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def open_client(url: str | None, config: str | None) -> Client:
    """A client for what the user named."""
    return connect(default.store(url, config=config).url)


def print_json(value: object) -> None:
    """One document, readable and stable."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=True))


def claim_as_json(claim: Standing) -> dict[str, Any]:
    """One claim as programs see it."""
    return {
        "id": claim.id,
        "owner": claim.owner,
        "kind": claim.kind,
        "token": claim.token,
        "holds": claim.holds,
        "detached": claim.detached,
        "weight": claim.weight,
        "capacity": claim.capacity,
        "ttl": claim.ttl,
        "remaining": round(claim.remaining, 3),
        "since": claim.since,
        "meta": None if claim.meta is None else dict(claim.meta),
    }
