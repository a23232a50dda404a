"""Events as figures: read back by a real Prometheus and over real OTLP, with every gauge at zero in the end."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, start_http_server

import lockline
from lockline import AcquireTimeout, LeaseLost, aio
from lockline.fence import Mark, Offer
from lockline.fence.rule import passed
from lockline.observe import FenceRefused, on_refusal
from lockline.observe.exporter import GAUGES, serve
from lockline.observe.figures import FIGURES, MOST_GROUPS, Groups
from lockline.observe.otel import OpenTelemetry
from lockline.observe.prometheus import PrometheusMetrics, name_of

from ..contract.scene import A_MINUTE, Scene
from ..servers.process import free_port, wait_for
from .heard import Heard

ROOT = Path(__file__).parents[2]


def a_busy_minute(client: lockline.Client, other: lockline.Client) -> None:
    """Free, contended, timed out, lost, evicted: two grants after a wait, one timeout, one eviction; five stories, and one of the other's."""
    client.lock("a/1").acquire().release()
    lease = client.lock("a/2").acquire()
    threads = [threading.Thread(target=lambda: client.lock("a/2").acquire().release()) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(client.inspect("a/2").waiters) == 2)
    with pytest.raises(AcquireTimeout):
        other.lock("a/2").acquire(timeout=0.05)
    lease.release()
    for thread in threads:
        thread.join(A_MINUTE)
    lease = client.lock("b/1").acquire()
    lease.extend(5)
    other.evict("b/1")
    assert lease.lost.wait(A_MINUTE)
    with pytest.raises(LeaseLost):
        lease.release()


def refuse() -> None:
    with pytest.raises(lockline.StaleToken):
        passed("accounts", Mark(9, "new"), Offer("a/1", 7, "old"), writes=True, exact=False)


def by_first_word(name: str) -> str:
    return name.partition("/")[0]


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


@pytest.mark.flavour("sync")
def test_the_figures_of_prometheus(world: Scene) -> None:
    registry, heard = CollectorRegistry(), Heard()
    metrics = PrometheusMetrics(registry, group=by_first_word)
    client = lockline.connect(world.place, on_event=[metrics, heard], **world.world.options())
    other = lockline.connect(world.place, on_event=metrics, **world.world.options())
    with client, other:
        a_busy_minute(client, other)
        heard.wait_for_the_end(of=5)
        count = "lockline_acquire_duration_seconds_count"
        wait_for(
            lambda: value(registry, count, kind="lock", group="a", outcome="timeout") == 1, A_MINUTE, "the timeout"
        )
        assert value(registry, count, kind="lock", group="a", outcome="granted") == 4
        assert value(registry, "lockline_lease_lost_total", kind="lock", group="b", reason="evicted", cause="gone") == 1
        assert value(registry, "lockline_hold_duration_seconds_count", kind="lock", group="b", outcome="lost") == 1
        assert value(registry, "lockline_lease_margin_seconds_count", kind="lock", group="b") >= 1
        assert value(registry, "lockline_renew_duration_seconds_sum", kind="lock", group="b") > 0
        for gauge in ("lockline_waiters", "lockline_holders"):
            assert [sample.value for metric in registry.collect() for sample in metric.samples if sample.name == gauge and sample.value] == []  # fmt: skip
    stop = on_refusal(metrics)
    try:
        refuse()
        wait_for(lambda: value(registry, "lockline_fence_rejected_total", group="a") == 1, A_MINUTE, "the refusal")
    finally:
        stop()


@pytest.mark.flavour("asyncio")
def test_gauges_come_back_to_zero_when_all_is_cancelled(world: Scene) -> None:
    registry = CollectorRegistry()

    async def main() -> None:
        async with aio.connect(
            world.place, on_event=PrometheusMetrics(registry), **world.world.options()
        ) as client, client.lock("x"):  # fmt: skip
            tasks = [asyncio.create_task(client.lock("x").acquire()) for _ in range(30)]
            await asyncio.to_thread(wait_for, lambda: value(registry, "lockline_waiters", kind="lock") == 30)
            assert value(registry, "lockline_holders", kind="lock") == 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(wait_for, lambda: value(registry, "lockline_waiters", kind="lock") == 0)

    asyncio.run(main())
    wait_for(lambda: value(registry, "lockline_holders", kind="lock") == 0)


def test_groups_are_few_whatever_the_function_gives() -> None:
    groups = Groups(lambda name: name)
    seen = {groups.labels(f"name-{number}")["group"] for number in range(10 * MOST_GROUPS)}
    assert len(seen) == MOST_GROUPS + 1
    assert "other" in seen
    assert groups.labels("name-3") == {"group": "name-3"}
    assert groups.labels(f"name-{10 * MOST_GROUPS - 1}") == {"group": "other"}
    assert Groups(lambda name: 1 / 0).labels("x") == {"group": "other"}  # type: ignore[arg-type, return-value]
    assert Groups(None).labels("x") == {}


# -- a real Prometheus ---------------------------------------------------------------------------------


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Any]:
    """Start a Prometheus that scrapes these ports; a function that queries it."""
    program = which("prometheus")
    if program is None:
        pytest.skip("no prometheus here: apt-get install prometheus")
    running: list[subprocess.Popen[bytes]] = []

    def start(*ports: int) -> Any:
        config = tmp_path / "prometheus.yml"
        targets = [f"127.0.0.1:{port}" for port in ports]
        config.write_text(
            json.dumps({
                "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
                "scrape_configs": [{"job_name": "lockline", "static_configs": [{"targets": targets}]}],
            })
        )  # fmt: skip
        port = free_port()
        running.append(
            subprocess.Popen(
                [program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip

        def query(text: str) -> dict[str, float]:
            """The value by the labels, but for those that Prometheus adds."""
            url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    found = json.load(answer)["data"]["result"]
            except OSError:
                return {}
            return {
                ",".join(f"{key}={said}" for key, said in sorted(one["metric"].items()) if key not in ("__name__", "job", "instance")):
                float(one["value"][1]) for one in found
            }  # fmt: skip

        return query

    yield start
    for one in running:
        one.terminate()
        one.wait(20)


@pytest.mark.server
def test_a_real_prometheus_reads_the_figures_and_the_state_of_the_store(prometheus: Any, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    url = f"local://{tmp_path}/locks.db"
    metrics = PrometheusMetrics(registry)
    with lockline.connect(url, on_event=metrics) as client, lockline.connect(url, on_event=metrics) as other:
        a_busy_minute(client, other)
        lease = client.lock("still\nheld").acquire()
        stop = on_refusal(metrics)
        refuse()
        wait_for(lambda: value(registry, "lockline_fence_rejected_total") == 1, A_MINUTE, "the refusal")
        stop()
        ours, thread = start_http_server(0, "127.0.0.1", registry)
        store, store_thread = serve([client], "127.0.0.1", 0)
        query = prometheus(ours.server_port, store.server_port)

        def told(text: str, *expected: dict[str, float]) -> dict[str, float]:
            """What Prometheus knows, once it does: a scrape that a busy machine did not answer in time makes it forget all for a moment."""
            found: dict[str, float] = {}

            def known() -> bool:
                nonlocal found
                found = query(text)
                return bool(found) and (not expected or found in expected)

            wait_for(known, 60, f"{text}: {expected}")
            return found

        told("lockline_holders", {"kind=lock": 1})
        told("lockline_waiters", {"kind=lock": 0})
        told("lockline_lease_lost_total", {"cause=gone,kind=lock,reason=evicted": 1})
        told("lockline_acquire_duration_seconds_count", {"kind=lock,outcome=granted": 6, "kind=lock,outcome=timeout": 1})  # fmt: skip
        told("lockline_fence_rejected_total", {"": 1})
        assert 0 < told("histogram_quantile(0.5, sum by (le) (lockline_lease_margin_seconds_bucket))")[""] < 60
        where = f"store={client.url}"
        told("lockline_store_up", {where: 1})
        told("lockline_store_holders", {where: 1})
        told("lockline_store_waiters", {where: 0})
        assert told("lockline_store_oldest_hold_seconds")[where] < 120
        assert told('{__name__=~"lockline.*",__name__!~".*_bucket"}')
        with urllib.request.urlopen(f"http://127.0.0.1:{store.server_port}/metrics") as answer:
            assert "still" not in answer.read().decode(), "no name is told"
        lease.release()
        for server, its_thread in ((ours, thread), (store, store_thread)):
            server.shutdown()
            server.server_close()
            its_thread.join(A_MINUTE)


def test_the_dashboard_shows_every_figure_and_no_other() -> None:
    board = json.loads((ROOT / "docs" / "grafana" / "lockline.json").read_text())
    words = " ".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\blockline_\w+", words)}
    assert shown == {name_of(figure) for figure in FIGURES} | set(GAUGES)
    labels = {label for group in re.findall(r"by \(([^)]*)\)", words) for label in re.split(r",\s*", group)}
    assert labels - {"le"} <= {label for figure in FIGURES for label in figure.labels}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


# -- OpenTelemetry -------------------------------------------------------------------------------------


def totals(reader: InMemoryMetricReader) -> dict[tuple[str, str], float]:
    """Sum or count by name and outcome or reason."""
    data = reader.get_metrics_data()
    found: dict[tuple[str, str], float] = {}
    for resource in data.resource_metrics if data else ():
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points:
                said: Any = point.attributes or {}
                key = metric.name, str(said.get("lockline.outcome", said.get("lockline.reason", "")))
                number = point.count if hasattr(point, "count") else point.value
                found[key] = found.get(key, 0) + number
    return found


@pytest.mark.flavour("sync")
def test_the_figures_and_spans_of_opentelemetry(world: Scene) -> None:
    reader, spans, heard = InMemoryMetricReader(), InMemorySpanExporter(), Heard()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = OpenTelemetry(MeterProvider([reader]), tracers, group=by_first_word)
    client = lockline.connect(world.place, on_event=[telemetry, heard], owner="reports", **world.world.options())
    other = lockline.connect(world.place, owner="holder\n<b>", **world.world.options())
    tracer = tracers.get_tracer("the program")
    with client, other:
        a_busy_minute(client, other)
        taken = other.lock("x").acquire()
        with tracer.start_as_current_span("a request") as request, pytest.raises(AcquireTimeout):
            client.lock("x").acquire(timeout=1.5)
        taken.release()
        heard.wait_for_the_end(of=6)
        wait_for(lambda: len(spans.get_finished_spans()) >= 4, A_MINUTE, "all spans")
    found = totals(reader)
    assert found["lockline.acquire.duration", "granted"] == 4 + 1
    assert found["lockline.acquire.duration", "timeout"] == 1
    assert found["lockline.lease.lost", "evicted"] == 1
    assert found["lockline.waiters", ""] == found["lockline.holders", ""] == 0
    assert found["lockline.lease.margin", ""] >= 1
    waits = [span for span in spans.get_finished_spans() if span.name == "lockline.wait"]
    (last,) = [span for span in waits if (span.attributes or {})["lockline.outcome"] == "timeout"]
    assert last.attributes is not None
    assert last.attributes["lockline.behind"] == "holder\\n<b>"
    assert last.attributes["lockline.group"] == "x"
    assert last.parent is not None
    assert last.parent.span_id == request.get_span_context().span_id
    assert last.start_time is not None
    assert last.end_time is not None
    assert (last.end_time - last.start_time) / 1e9 > 1.0
    assert len(waits) == 3
    assert all("name" not in (span.attributes or {}) for span in waits)


class Collector(ThreadingHTTPServer):
    """The receiving end of OTLP over HTTP, with the protocol's own messages."""

    def __init__(self) -> None:
        self.metrics: set[str] = set()
        self.spans: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                if self.path == "/v1/metrics":
                    request = ExportMetricsServiceRequest.FromString(body)
                    for resource in request.resource_metrics:
                        collector.metrics |= {
                            metric.name for scope in resource.scope_metrics for metric in scope.metrics
                        }
                else:
                    asked = ExportTraceServiceRequest.FromString(body)
                    for one in asked.resource_spans:
                        collector.spans += [span.name for scope in one.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)


def test_it_travels_by_otlp() -> None:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        where = f"http://127.0.0.1:{collector.server_port}"
        meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{where}/v1/metrics"))])
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{where}/v1/traces")))
        telemetry, heard, heard_of_other = OpenTelemetry(meters, tracers), Heard(), Heard()
        with (
            lockline.connect("memory:otlp", on_event=[telemetry, heard]) as client,
            lockline.connect("memory:otlp", on_event=[telemetry, heard_of_other]) as other,
        ):
            a_busy_minute(client, other)
            heard.wait_for_the_end(of=5)
            heard_of_other.wait_for_the_end(of=1)
        telemetry(FenceRefused(at=0, resource="r", lock="l", offered=1, highest=2))
        meters.shutdown()
        tracers.shutdown()
        collector.shutdown()
        thread.join(A_MINUTE)
    assert {name for name in collector.metrics if name.startswith("lockline.")} == {figure.name for figure in FIGURES}
    assert collector.spans.count("lockline.wait") == 3
    assert isinstance(trace.get_tracer_provider(), object)
