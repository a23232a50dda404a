"""Figures for Prometheus: `connect(..., on_event=PrometheusMetrics())`, one for all clients of a process.

Seconds, `_total`, and no label but the kind of lock, the outcome and the group. The extra `lockline[prometheus]` has the library.
"""

from __future__ import annotations

import os
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from ..core.events import Event
from .figures import BUCKETS, FIGURES, Figure, Figures, Group, Labels

SHARED: Final = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
"""Where one of these is set, the processes of a server write their figures down side by side, and one of them tells them all."""


def name_of(figure: Figure) -> str:
    """What Prometheus calls it: with its unit, and `_total` where it only rises."""
    name = figure.name.replace(".", "_")
    return f"{name}_seconds" if figure.unit == "s" else f"{name}_total" if figure.kind == "counter" else name


class PrometheusMetrics:
    """A listener whose figures lie in a registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, group: Group | None = None) -> None:
        self._grouped = group is not None
        self._shared = any(name in os.environ for name in SHARED)
        self._metrics = {figure.name: self._made(figure, registry) for figure in FIGURES}
        self._figures = Figures(self, group)

    def _made(self, figure: Figure, registry: CollectorRegistry) -> Any:
        labels = (*figure.labels, "group") if self._grouped else figure.labels
        if figure.kind == "histogram":
            return Histogram(name_of(figure), figure.help, labels, registry=registry, buckets=BUCKETS)
        if figure.kind == "gauge":
            # Of several processes: what those hold together that are alive. Each by itself would be a series for each process there was.
            return Gauge(name_of(figure), figure.help, labels, registry=registry, multiprocess_mode="livesum")
        return Counter(name_of(figure), figure.help, labels, registry=registry)

    def __call__(self, event: Event) -> None:
        """Count it."""
        if self._shared and "forked" in (getattr(event, "end", ""), getattr(event, "why", "")):
            return  # the child's own figures begin at zero there: what its parent holds was never counted in them
        self._figures(event)

    def record(self, figure: Figure, value: float, labels: Labels) -> None:
        """Write one figure down."""
        metric = self._metrics[figure.name]
        child = metric.labels(**labels) if labels else metric
        if figure.kind == "histogram":
            child.observe(value)
        else:
            child.inc(value)
