"""Figures and spans for OpenTelemetry: `connect(..., on_event=OpenTelemetry())`, one for all clients of a process.

One span per wait, `lockline.wait`, under the span in which the lock was asked for, with the outcome and whom it waited for; an
acquire that need not wait has none. To know the holder costs one look at the line per wait, in the background. The extra
`lockline[otel]` has the API; which exporter there is, is the program's own business.
"""

from __future__ import annotations

from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace import Span, Status, StatusCode

from .. import __version__
from ..core.events import Event, Granted, Waiting, Withdrawn
from .figures import BUCKETS, FIGURES, Figure, Figures, Group, Groups, Labels

SCOPE: Final = "lockline"


class OpenTelemetry:
    """A listener that records metrics and spans with the given providers, or else with the global ones."""

    wants_holders = True
    wants_context = True

    def __init__(
        self,
        meter_provider: metrics.MeterProvider | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        *,
        group: Group | None = None,
    ) -> None:
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        self._instruments = {figure.name: _made(meter, figure) for figure in FIGURES}
        self._figures = Figures(self, group)
        self._groups = Groups(group)
        self._spans: dict[str, Span] = {}

    def __call__(self, event: Event) -> None:
        """Count it, and begin or end its span."""
        if isinstance(event, Waiting):
            self._begin(event)
        elif isinstance(event, (Granted, Withdrawn)):
            self._end(event)
        self._figures(event)

    def record(self, figure: Figure, value: float, labels: Labels) -> None:
        """Write one figure down."""
        instrument = self._instruments[figure.name]
        attributes = {f"lockline.{key}": said for key, said in labels.items()}
        if figure.kind == "histogram":
            instrument.record(value, attributes)
        else:
            instrument.add(int(value), attributes)

    def _begin(self, event: Waiting) -> None:
        parent = None if event.context is None else event.context.run(otel_context.get_current)
        labels = {f"lockline.{key}": said for key, said in self._groups.labels(event.name).items()}
        self._spans[event.claim] = self._tracer.start_span(
            "lockline.wait",
            parent,
            start_time=_nanoseconds(event.at),
            attributes={"lockline.kind": event.kind, "lockline.ahead": event.ahead, "lockline.store": event.store, **labels},
        )  # fmt: skip

    def _end(self, event: Granted | Withdrawn) -> None:
        span = self._spans.pop(event.claim, None)
        if span is None:
            return
        if isinstance(event, Granted):
            span.set_attribute("lockline.token", event.token)
        else:
            span.set_status(Status(StatusCode.ERROR, event.why))
        span.set_attribute("lockline.outcome", "granted" if isinstance(event, Granted) else event.why)
        if event.behind:
            span.set_attribute("lockline.behind", event.behind)
        span.end(_nanoseconds(event.at))


def _made(meter: metrics.Meter, figure: Figure) -> Any:
    if figure.kind == "counter":
        return meter.create_counter(figure.name, figure.unit, figure.help)
    if figure.kind == "gauge":
        return meter.create_up_down_counter(figure.name, figure.unit, figure.help)
    return meter.create_histogram(
        figure.name, figure.unit, figure.help, explicit_bucket_boundaries_advisory=list(BUCKETS)
    )


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
