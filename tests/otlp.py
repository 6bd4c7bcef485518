"""A receiver of OpenTelemetry's protocol on loopback, for what the real exporters send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from packaging.version import Version

#: Airflow reads the variables of OpenTelemetry since 3.2.
IS_BELOW_3_2 = Version(version("apache-airflow")) < Version("3.2")


class Receiver(ThreadingHTTPServer):
    """Parses every request, and keeps the metrics and spans.

    Attributes:
        units: Unit of each metric.
        spans: All spans.
        bytes: All request bodies together, to search them for secrets.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.units: dict[str, str] = {}
        self._points: dict[str, dict[str, tuple[dict[str, Any], Any]]] = {}
        self.spans: list[Any] = []
        self.bytes = b""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self) -> dict[str, str]:
        """Returns the variables that make Airflow send its metrics and spans here."""
        of_3_1 = {
            "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__OTEL_PORT": str(self.server_port),
            "AIRFLOW__METRICS__OTEL_INTERVAL_MILLISECONDS": "1000",
        }
        return {
            **(of_3_1 if IS_BELOW_3_2 else {}),
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "AIRFLOW__TRACES__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_EXPORTER": "otlp_proto_http",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        }

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Returns the last data point of each set of attributes of a metric; none if it was not sent."""
        return list(self._points.get(name, {}).values())

    def receive(self, path: str, body: bytes) -> None:
        """Keeps a request."""
        self.bytes += body
        if path == "/v1/metrics":
            request = ExportMetricsServiceRequest.FromString(body)
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        self._keep(metric)
        elif path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def _keep(self, metric: Any) -> None:
        self.units[metric.name] = metric.unit
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            found = attributes(point)
            self._points.setdefault(metric.name, {})[str(sorted(found.items()))] = (found, point)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.receive(self.path, self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Runs a receiver."""
    with Receiver() as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def attributes(thing: Any) -> dict[str, Any]:
    """Returns the attributes of a span or a data point."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in thing.attributes}
