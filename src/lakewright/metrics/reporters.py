"""The reporters that options can name; each is created once in a process."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Sequence
from typing import Any

from lakewright.metrics.metric import METRICS, Metric, MetricKind, MetricReporter
from lakewright.metrics.options import MetricsSettings, ReporterType
from lakewright.utils.optional_imports import imported

_EXTRA = "metrics"
_INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")


class JsonLines:
    """Appends a line to a file for each metric; lines appended together stay together."""

    def __init__(self, path: str, prefix: str = "") -> None:
        self._path = path
        self._prefix = prefix

    def take(self, metrics: Sequence[Metric]) -> None:
        """See `MetricReporter`."""
        lines = "".join(f"{json_line(metric, self._prefix)}\n" for metric in metrics)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        # One write in append mode: lines of several processes do not mix.
        descriptor = os.open(self._path, flags, 0o644)
        try:
            data = lines.encode()
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)


class Console:
    """Writes JSON lines to the standard error stream."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def take(self, metrics: Sequence[Metric]) -> None:
        """See `MetricReporter`."""
        sys.stderr.write("".join(f"{json_line(metric, self._prefix)}\n" for metric in metrics))


class InMemory:
    """Keeps the last value of gauges, and the sum of counters."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._lock = threading.Lock()

    def take(self, metrics: Sequence[Metric]) -> None:
        """See `MetricReporter`."""
        with self._lock:
            for metric in metrics:
                key = metric.name, tuple(sorted(metric.labels.items()))
                previous = self.values.get(key, 0) if metric.kind is MetricKind.COUNTER else 0
                self.values[key] = previous + metric.value


class Prometheus:
    """Keeps metrics in a registry of the Prometheus client, to be served, written or pushed."""

    def __init__(self, prefix: str, registry: Any = None) -> None:
        self._client = imported("prometheus_client", _EXTRA)
        self._prefix = prefix
        self._series: dict[str, Any] = {}
        self._lock = threading.Lock()
        self.registry = registry if registry is not None else self._client.CollectorRegistry()

    def take(self, metrics: Sequence[Metric]) -> None:
        """See `MetricReporter`."""
        for metric in metrics:
            series = self._series_of(metric).labels(
                *(metric.labels[k] for k in sorted(metric.labels))
            )
            if metric.kind is MetricKind.COUNTER:
                series.inc(metric.value)
            else:
                series.set(metric.value)

    def serve(self, port: int, address: str) -> None:
        """Serve the metrics over HTTP from a thread, until the process ends."""
        self._client.start_http_server(port, addr=address, registry=self.registry)

    def write(self, path: str) -> None:
        """Write all metrics to a file, atomically."""
        self._client.write_to_textfile(path, self.registry)

    def push(self, gateway: str, job: str, labels: dict[str, str]) -> None:
        """Push all metrics to a gateway."""
        self._client.push_to_gateway(gateway, job, self.registry, grouping_key=labels)

    def _series_of(self, metric: Metric) -> Any:
        with self._lock:
            if metric.name not in self._series:
                descriptor = METRICS.get(metric.name)
                kind = (
                    self._client.Counter
                    if metric.kind is MetricKind.COUNTER
                    else self._client.Gauge
                )
                self._series[metric.name] = kind(
                    prometheus_name(metric.name, self._prefix),
                    descriptor.doc if descriptor else metric.name,
                    sorted(metric.labels),
                    registry=self.registry,
                )
            return self._series[metric.name]


class _TextFileReporter:
    """A registry that is written to a file after each change."""

    def __init__(self, prometheus: Prometheus, path: str) -> None:
        self._prometheus = prometheus
        self._path = path

    def take(self, metrics: Sequence[Metric]) -> None:
        """See `MetricReporter`."""
        self._prometheus.take(metrics)
        self._prometheus.write(self._path)


class _PushReporter:
    """A registry that is pushed after each change."""

    def __init__(self, prometheus: Prometheus, settings: MetricsSettings) -> None:
        self._prometheus = prometheus
        self._settings = settings

    def take(self, metrics: Sequence[Metric]) -> None:
        """See `MetricReporter`."""
        settings = self._settings
        self._prometheus.take(metrics)
        gateway = f"{settings.push_host}:{settings.push_port}"
        self._prometheus.push(gateway, settings.push_job, dict(settings.push_labels))


MEMORY = InMemory()


def prometheus_name(name: str, prefix: str) -> str:
    """Return a name that Prometheus allows; its client adds `_total` to counters."""
    return _INVALID_CHARACTER.sub("_", f"{prefix}.{name}" if prefix else name)


def json_line(metric: Metric, prefix: str = "") -> str:
    """Return a metric as one line of JSON."""
    name = f"{prefix}.{metric.name}" if prefix else metric.name
    fields = {
        "time": metric.at_ms,
        "name": name,
        "kind": metric.kind.value,
        "labels": dict(metric.labels),
        "value": metric.value,
    }
    return json.dumps(fields, separators=(",", ":"))


def make_reporter(kind: ReporterType, settings: MetricsSettings) -> MetricReporter:
    """Create the reporter that the settings describe."""
    if kind is ReporterType.JSON_LINES:
        return JsonLines(settings.json_file or "", settings.prefix)
    if kind is ReporterType.CONSOLE:
        return Console(settings.prefix)
    if kind is ReporterType.INMEMORY:
        return MEMORY
    prometheus = Prometheus(settings.prefix)
    if kind is ReporterType.PROMETHEUS_PUSHGATEWAY:
        return _PushReporter(prometheus, settings)
    if settings.port:
        prometheus.serve(settings.port, settings.address)
    return _TextFileReporter(prometheus, settings.text_file) if settings.text_file else prometheus
