"""What several commands take: a URL, a name, seconds, `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..backends import SCHEMES, default
from ..backends.url import redacted
from ..core.arguments import a_length, a_name
from ..core.claim import Line, Standing
from ..core.shells import engine_of
from ..errors import ConfigError, LocklineError
from ..runtime.blocking import run
from ..sync import Client, connect
from .text import printable

F = TypeVar("F", bound=Callable[..., Any])

ANSWER_TIMEOUT_S = 5.0
"""A person waits for the answer: a store that is silent for so long is unreachable."""
PROBE = "lockline/doctor"
"""A name whose queue is looked at to find out whether the store answers."""


class WithCommand(click.Command):
    """NAME before the `--`, and a command behind it.

    Without the name the command's first word would be one, and its second be run; of a command that stands on both sides, as
    `git checkout -- file` may, its own `--` would be taken.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args and not ctx.resilient_parsing:
            self._check_before(ctx, args[: args.index("--")], args[args.index("--") + 1 :])
        return super().parse_args(ctx, args)

    def _check_before(self, ctx: click.Context, before: list[str], behind: list[str]) -> None:
        if any(name in before for name in ctx.help_option_names):
            return
        try:
            said, _, _ = self.make_parser(ctx).parse_args(list(before))
        except click.UsageError:
            return  # which the whole says as well
        name, command = (
            said.get(argument.name or "") for argument in self.params if isinstance(argument, click.Argument)
        )
        words = [*([name] if isinstance(name, str) else []), *(command if isinstance(command, tuple) else [])]
        if isinstance(said.get("pool"), str):
            if words:
                raise click.UsageError(f"--pool names the lock, and the command stands behind the --, not {words[0]!r}")
        elif len(words) > 1:
            raise click.UsageError(f"the whole command stands behind the --, not {words[1]!r} before it")
        # A name that begins with a dash can only stand behind it.
        elif not words and behind and not behind[0].startswith("-"):
            raise click.UsageError(
                f"the name of the lock stands before the --, as in: {ctx.command_path} NAME -- {behind[0]}"
            )


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
            return [CompletionItem(name) for name in names(client, incomplete)]
    except LocklineError:
        return []


def no_url(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """The name, which is no URL."""
    refuse_url(value, (param.name or "name").upper())
    return value


def refuse_url(value: str, what: str) -> None:
    """UsageError for a URL in the place of a name, about which another store would be asked."""
    scheme, given, _ = value.partition("://")
    if given and scheme.lower() in SCHEMES:
        raise click.UsageError(
            f"{printable(redacted(value))} is a URL, and {what} is the name of a lock: say --url before it"
        )


def name_argument(function: F) -> F:
    """NAME, with completion from the backend."""
    return click.argument("name", shell_complete=complete_name, callback=no_url)(function)


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
        help="Refuse any other backend than this kind: server (whichever), redis, redlock, zk, etcd, consul, "
        "postgresql, mysql or local. "
        "Without it: $LOCKLINE_REQUIRE.",
    )(function)  # fmt: skip


def json_option(function: F) -> F:
    """`--json`, for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def open_client(url: str | None, config: str | None) -> Client:
    """A client for what the user named."""
    return connect(default.store(url, config=config).url)


def look(client: Client, name: str) -> Line:
    """The queue of the name; BackendUnavailable soon where the store is silent."""
    name, backend = a_name(name), engine_of(client).backend
    return run(engine_of(client).ask(lambda until: backend.look(name, until), ANSWER_TIMEOUT_S))


def names(client: Client, prefix: str) -> list[str]:
    """The names in use that begin like this; BackendUnavailable soon where the store is silent."""
    # A long list may take longer than a first answer.
    look(client, PROBE)
    return client.list(prefix)


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
        "enqueued_at": claim.enqueued_at,
        "granted_at": claim.granted_at,
        "meta": None if claim.meta is None else dict(claim.meta),
    }
