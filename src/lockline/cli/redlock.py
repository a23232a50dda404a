"""`lockline redlock`: set a redlock cluster up, look at it, let a server back in, move to other servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from ..backends import default
from ..backends.redlock import cluster
from ..backends.redlock.target import Node, understand
from ..errors import ConfigError
from . import codes
from .options import json_option, print_json, seconds
from .terminal import asks
from .text import print_table, printable, say

EPILOG = """\
\b
Examples:
  lockline redlock init redlock://a,b,c,d,e
  lockline redlock status redlock://a,b,c,d,e
  lockline redlock replace c:6379 redlock://a,b,c,d,e
  lockline redlock resize redlock://a,b,c,d,f redlock://a,b,c,d,e

\b
Each command says what it will do before it does it, and can be repeated.
The URL may also come from $LOCKLINE_URL.
"""


@click.group(epilog=EPILOG)
def command() -> None:
    """Set up and look after the servers behind redlock://."""


def _nodes(url: str | None) -> Sequence[Node]:
    url = default.store(url).url
    if not url.startswith("redlock://"):
        raise ConfigError("a redlock:// URL is needed, as an argument, in LOCKLINE_URL or in lockline.toml")
    return understand(url, "blocking").nodes


def _act(plan: cluster.Plan, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    if not as_json:
        for sentence in plan.sentences:
            click.echo(printable(sentence))
    if dry_run:
        if as_json:
            print_json({"plan": plan.sentences, "done": False, **plan.result})
        return
    if not yes and asks() and not plan.sentences[0].startswith("nothing to do"):
        click.confirm("Do this?", abort=True, err=True)
    try:
        plan.act()
    except KeyboardInterrupt:
        say("interrupted, some of it may be done; the same command again goes on")
        raise
    if as_json:
        print_json({"plan": plan.sentences, "done": True, **plan.result})
    elif not plan.sentences[0].startswith("nothing to do"):
        click.echo("done")


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--dry-run", is_flag=True, help="Only say what would be done.")(function)
    function = click.option("--yes", "-y", is_flag=True, help="Do not ask.")(function)
    return json_option(function)


@command.command()
@click.argument("url", required=False)
@click.option("--max-ttl", show_default="60", help="The longest ttl; a server that comes back waits as long.")
@click.option("--floor", type=int, help="Count from here: for a cluster whose majority lost its memory.")
@_common
def init(url: str | None, max_ttl: str | None, floor: int | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Make these servers a cluster. Needed once; servers that belong to it already are left alone.

    If a majority of the servers lost their memory at once, nobody knows which tokens were used: give a --floor above all of
    them. Tokens are microseconds since 1970, two weeks more after restarts, so the clock of today plus a month is a good one.
    It then waits for one longest ttl first (give --max-ttl if all of them lost it), because leases from before are still trusted.
    """
    longest = None if max_ttl is None else seconds(max_ttl)
    _act(cluster.init(_nodes(url), longest=longest, floor=floor), dry_run=dry_run, yes=yes, as_json=as_json)


@command.command()
@click.argument("url", required=False)
@json_option
def status(url: str | None, as_json: bool) -> int:
    """Show how each server answers. Exit code 1 if no majority serves, 0 otherwise."""
    found = cluster.status(_nodes(url))
    serving = [one for one in found if one.state == "serving" and one.said and one.said.size == len(found)]
    clusters = {one.said.cluster for one in serving if one.said}
    good = len(clusters) == 1 and len(serving) > len(found) // 2
    if as_json:
        print_json(
            {
                "serving": good,
                "cluster": next(iter(clusters)) if good else None,
                "nodes": [one.as_json() for one in found],
            }
        )
        return codes.FINE if good else codes.DANGEROUS
    rows = [
        (
            one.label,
            one.state,
            one.said.cluster if one.said and one.said.cluster else "-",
            str(one.said.incarnation) if one.said and one.said.cluster else "-",
            str(one.said.highest) if one.said and one.said.highest else "-",
            "always" if one.durable else "not always",
            one.problem or "-",
        )
        for one in found
    ]
    print_table(("SERVER", "STATE", "CLUSTER", "INCARNATION", "HIGHEST", "ON DISK", "PROBLEM"), rows)
    if not good:
        click.echo("no majority serves one cluster of this size: locks cannot be taken", err=True)
    return codes.FINE if good else codes.DANGEROUS


@command.command()
@click.argument("node")
@click.argument("url", required=False)
@_common
def replace(node: str, url: str | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Let NODE (host:port, as in the URL) back in after it lost its memory, or a new machine at its address.

    It waits for one longest ttl first, then asks a majority of the others how far the numbers have come.
    """
    if ":" not in node.rpartition("]")[2]:
        node = f"{node}:6379"
    _act(cluster.replace(_nodes(url), node), dry_run=dry_run, yes=yes, as_json=as_json)


@command.command()
@click.argument("new")
@click.argument("url", required=False)
@_common
def resize(new: str, url: str | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Move the cluster at URL to the servers of the redlock:// URL NEW: more of them, fewer, or others.

    No lock can be taken while it lasts (a little more than one longest ttl), and leases that are held now end.
    """
    _act(cluster.resize(_nodes(url), _nodes(new)), dry_run=dry_run, yes=yes, as_json=as_json)
