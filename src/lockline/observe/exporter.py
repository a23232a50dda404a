"""The state of a whole store as figures for Prometheus, taken when it is asked for: `lockline exporter`.

No name is a label. Whatever the number of lines, the number of series is the same; which line it is, `lockline ls` tells.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import start_http_server
from prometheus_client.registry import Collector

from ..core.backend import Backend, LookingAtMany
from ..core.claim import Line
from ..core.shells import engine_of
from ..errors import BackendUnavailable, ConfigError, LocklineError
from ..runtime.blocking import run
from ..sync import Client

MOST_LINES: Final = 1_000
"""Lines that are looked at for one answer; how many were not is a figure of its own."""
FRESH: Final = 1.0
"""How old an answer may be: however many ask, the store is asked once in that time."""
PATIENCE: Final = 5.0
"""How long the looks of one answer may take together: a scrape has ten seconds, mostly."""

GAUGES: Final = {
    "lockline_store_up": "Whether the store answered.",
    "lockline_store_lines": "Names that are held or waited for.",
    "lockline_store_lines_unseen": "Names that were not looked at, because there are too many, or could not be read.",
    "lockline_store_holders": "Claims that hold.",
    "lockline_store_waiters": "Claims that wait.",
    "lockline_store_contended_lines": "Names that somebody waits for.",
    "lockline_store_longest_line": "How many wait for the one name that most wait for.",
    "lockline_store_oldest_hold_seconds": "For how long the oldest holder has held.",
    "lockline_store_longest_wait_seconds": "For how long the one who waits longest has waited.",
    "lockline_store_shortest_remaining_seconds": "What the holder that is nearest to its expiry has left.",
    "lockline_store_scrape_seconds": "How long it took to ask the store.",
}


def figures_of(lines: Iterable[Line], now: float) -> dict[str, float]:
    """What these lines come to."""
    lines = list(lines)
    holders = [claim for line in lines for claim in line.holders]
    waiters = [claim for line in lines for claim in line.waiters]
    # Who came when is told by the clocks of others, which may be ahead of ours.
    return {
        "lockline_store_holders": len(holders),
        "lockline_store_waiters": len(waiters),
        "lockline_store_contended_lines": sum(1 for line in lines if line.waiters),
        "lockline_store_longest_line": max((len(line.waiters) for line in lines), default=0),
        "lockline_store_oldest_hold_seconds": max((max(0.0, now - claim.began) for claim in holders), default=0.0),
        "lockline_store_longest_wait_seconds": max((max(0.0, now - claim.began) for claim in waiters), default=0.0),
        "lockline_store_shortest_remaining_seconds": min((claim.remaining for claim in holders), default=0.0),
    }


class StoreCollector(Collector):
    """Asks one store when it is collected."""

    def __init__(self, client: Client, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._mutex = threading.Lock()
        self._answer: dict[str, float] = {}
        self._taken = float("-inf")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The figures, not older than a second."""
        with self._mutex:
            if time.monotonic() - self._taken >= FRESH:
                self._answer, self._taken = self._ask(), time.monotonic()
            answer = self._answer
        for name, value in answer.items():
            family = GaugeMetricFamily(name, GAUGES[name], labels=["store"])
            family.add_metric([self._client.url], value)
            yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """What there is, without asking the store for it."""
        for name, says in GAUGES.items():
            yield GaugeMetricFamily(name, says, labels=["store"])

    def _ask(self) -> dict[str, float]:
        began = time.monotonic()
        try:
            names, seen = run(self._look())
        except LocklineError:
            # What is not known is not said, rather than as a zero.
            return {"lockline_store_up": 0.0, "lockline_store_scrape_seconds": time.monotonic() - began}
        return {
            "lockline_store_up": 1.0,
            "lockline_store_lines": len(names),
            "lockline_store_lines_unseen": len(names) - len(seen),
            **figures_of(seen, time.time()),
            "lockline_store_scrape_seconds": time.monotonic() - began,
        }

    async def _look(self) -> tuple[Sequence[str], Sequence[Line]]:
        """The names there are, and as many lines as there is time for; BackendUnavailable where the store says nothing."""
        engine = engine_of(self._client)
        backend, now = engine.backend, engine.runtime.now
        until = now() + PATIENCE
        names = await engine.ask(lambda _: backend.list(self._prefix, until))
        chosen = names[:MOST_LINES]
        if isinstance(backend, LookingAtMany):
            return names, await engine.ask(lambda _: backend.look_many(chosen, until))
        seen: list[Line] = []
        spoilt: BackendUnavailable | None = None
        for name in chosen:
            if now() >= until:
                break
            try:
                seen.append(await engine.ask(functools.partial(_look_at, backend, name, until)))
            except BackendUnavailable as problem:
                if not problem.permanent:
                    raise
                spoilt = problem
        if spoilt and not seen:
            raise spoilt
        return names, seen


async def _look_at(backend: Backend, name: str, until: float, _: float) -> Line:
    return await backend.look(name, until)


def serve(clients: Iterable[Client], host: str, port: int, prefix: str = "") -> tuple[Any, threading.Thread]:
    """Answer scrapes at that address from now on; the server, whose `shutdown()` ends it, and its thread.

    ConfigError where the address is not to be had.
    """
    registry = CollectorRegistry()
    for client in clients:
        registry.register(StoreCollector(client, prefix))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as problem:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {problem.strerror or problem}; --port takes another"
        ) from None
    server.RequestHandlerClass = _bounded(server.RequestHandlerClass)
    return server, thread


def _bounded(handler: Any) -> Any:
    """The same, but for one who says nothing: it would keep a thread for ever."""

    class Bounded(handler):  # type: ignore[misc]
        timeout = PATIENCE

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                self.close_connection = True

    return Bounded
