"""Every public name of observe, web and testing with its exact type, as `mypy --strict` and pyright see it. Nothing here runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any, Literal, assert_type

import lockline
from lockline import aio, observe, testing, web
from lockline.errors import Cause, Reason
from lockline.web.asgi_page import AsgiPage
from lockline.web.wsgi_page import WsgiPage


def listeners(heard: list[observe.Event], one: Callable[[observe.Event], object]) -> None:
    told: observe.Listener = one
    assert_type(lockline.connect("memory:", on_event=told), lockline.Client)
    assert_type(lockline.connect("memory:", on_event=heard.append), lockline.Client)
    assert_type(lockline.connect("memory:", on_event=[told, print]), lockline.Client)
    assert_type(lockline.connect("memory:", on_event=None), lockline.Client)
    assert_type(aio.connect("memory:", on_event=told), aio.Client)
    assert_type(aio.connect("memory:", on_event=(told, print), keeper="thread"), aio.Client)
    assert_type(observe.on_refusal(told), Callable[[], None])


def events(event: observe.Event, at_store: observe.StoreEvent, of_claim: observe.ClaimEvent) -> None:
    kinds: tuple[type[observe.Event], ...] = (observe.StoreEvent, observe.FenceRefused)
    stores: tuple[type[observe.StoreEvent], ...] = (
        observe.ClaimEvent, observe.Evicted, observe.StoreBack, observe.StoreSilent,
    )  # fmt: skip
    claims: tuple[type[observe.ClaimEvent], ...] = (
        observe.Asked, observe.Waiting, observe.Granted, observe.Renewed, observe.RenewalLate, observe.Lost, observe.Released,
        observe.Withdrawn,
    )  # fmt: skip
    assert_type(event.what, str)
    assert_type(event.at, float)
    assert_type(at_store.store, str)
    assert_type((of_claim.name, of_claim.claim, of_claim.kind, of_claim.owner), tuple[str, str, str, str])
    assert_type(of_claim.ttl, float)
    print(kinds, stores, claims)


def what_each_says(event: observe.Event) -> None:
    match event:
        case observe.Waiting():
            assert_type(event.ahead, int)
            assert_type(event.context, Context | None)
        case observe.Granted():
            assert_type((event.token, event.took, event.waited, event.behind), tuple[int, float, bool, str])
        case observe.Renewed():
            assert_type((event.token, event.took, event.margin), tuple[int, float, float])
        case observe.RenewalLate():
            assert_type((event.token, event.took, event.margin, event.usual), tuple[int, float, float, float])
        case observe.Lost():
            assert_type((event.token, event.held, event.detail), tuple[int, float | None, str])
            assert_type(event.reason, Reason)
            assert_type(event.cause, Cause | None)
        case observe.Released():
            assert_type((event.token, event.held), tuple[int, float])
            assert_type(event.end, Literal["released", "handed over", "unconfirmed", "cut short", "forked"])
        case observe.Withdrawn():
            assert_type((event.took, event.waited, event.behind), tuple[float, bool, str])
            assert_type(
                event.why,
                Literal[
                    "timeout", "busy", "cancelled", "line full", "place lost", "unavailable", "closed", "forked", "refused"
                ],
            )  # fmt: skip
        case observe.Evicted():
            assert_type((event.name, event.owner, event.holders, event.token), tuple[str, str, int, int | None])
        case observe.StoreSilent():
            assert_type(event.problem, str)
        case observe.StoreBack():
            assert_type(event.silent, float)
        case observe.FenceRefused():
            assert_type((event.resource, event.lock), tuple[str, str])
            assert_type((event.offered, event.highest), tuple[int | str, int | str])
        case _:
            pass


def pages(client: lockline.Client, looped: aio.Client, user: Callable[[Mapping[str, Any]], str]) -> None:
    assert_type(web.asgi(client), AsgiPage)
    assert_type(web.asgi(looped, allow_evict=True, audit="audit.log", user=user, secret="x"), AsgiPage)
    assert_type(web.asgi({"orders": client, "jobs": looped}), AsgiPage)
    assert_type(web.wsgi(client), WsgiPage)
    assert_type(web.wsgi({"orders": client}, allow_evict=True, audit=None, user=user, secret=None), WsgiPage)


def tests_of_programs(
    lose: testing.LoseLease, client: lockline.Client, lease: lockline.Lease, looped: aio.Lease
) -> None:
    assert_type(lose(lease), int)
    assert_type(lose(looped, "evicted"), int)
    assert_type(lose("x", reason="expired", client=client), int)
    # The fixtures of the plugin: what a test gets by these names.
    print(testing.lockline_url, testing.lockline_client, testing.lose_lease)
