"""Figures for Prometheus: `connect(..., on_event=PrometheusMetrics())`, one for all clients of a process.

Seconds, `_total`, and no label but the kind of lock, the outcome and the group. The extra `lockline[prometheus]` has the library.
"""

from __future__ import annotations

from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from ..core.events import Event
from .figures import BUCKETS, FIGURES, Figure, Figures, Group, Labels

KINDS: Final[dict[str, Any]] = {"counter": Counter, "gauge": Gauge}


def name_of(figure: Figure) -> str:
    """What Prometheus calls it: with its unit, and `_total` where it only rises."""
    name = figure.name.replace(".", "_")
    return f"{name}_seconds" if figure.unit == "s" else f"{name}_total" if figure.kind == "counter" else name


class PrometheusMetrics:
    """A listener whose figures lie in a registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, group: Group | None = None) -> None:
        self._grouped = group is not None
        self._metrics = {figure.name: self._made(figure, registry) for figure in FIGURES}
        self._figures = Figures(self, group)

    def _made(self, figure: Figure, registry: CollectorRegistry) -> Any:
        labels = (*figure.labels, "group") if self._grouped else figure.labels
        if figure.kind == "histogram":
            return Histogram(name_of(figure), figure.help, labels, registry=registry, buckets=BUCKETS)
        return KINDS[figure.kind](name_of(figure), figure.help, labels, registry=registry)

    def __call__(self, event: Event) -> None:
        """Count it."""
        self._figures(event)

    def record(self, figure: Figure, value: float, labels: Labels) -> None:
        """Write one figure down."""
        metric = self._metrics[figure.name]
        child = metric.labels(**labels) if labels else metric
        if figure.kind == "histogram":
            child.observe(value)
        else:
            child.inc(value)
