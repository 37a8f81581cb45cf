"""Sends the metrics of a table to the reporters that options and this process name."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lakewright.clock import Clock
from lakewright.errors import InvalidError, LakewrightError
from lakewright.metrics.metric import METRICS, Metric, MetricReporter
from lakewright.metrics.options import MetricsSettings, ReporterType, metrics_settings
from lakewright.metrics.reporters import make_reporter
from lakewright.storage.base import Storage
from lakewright.storage.metered import MeteredStorage, metered
from lakewright.table.freshness_options import call_user_function
from lakewright.table.properties import load_properties
from lakewright.utils.deprecation import warn_renamed

# Gets the table, the time of the commit in milliseconds since 1970, and its figures.
CommitFunction = Callable[[str, int, Mapping[str, float]], object]
Registered = TypeVar("Registered")

_process_reporters: list[MetricReporter] = []
_commit_functions: list[CommitFunction] = []
_created_reporters: dict[tuple[object, ...], MetricReporter] = {}
_warned: set[str] = set()
_table_names: dict[str, str] = {}
_lock = threading.Lock()


def report_to(reporter: MetricReporter) -> Callable[[], None]:
    """Send all metrics of this process to a reporter; return a function that removes it.

    Until version 0.3 an object with a method `report(table, at_ms, values)` instead of `take` gets
    the figures of commits, with a DeprecationWarning.
    """
    if callable(getattr(reporter, "take", None)):
        return _add(_process_reporters, reporter)
    report: CommitFunction | None = getattr(reporter, "report", None)
    if not callable(report):
        raise InvalidError(
            "a reporter has a method take(metrics), which gets the figures of commits too",
            reporter=type(reporter).__name__,
        )
    warn_renamed("a reporter's report(table, at_ms, values)", "take(metrics)")
    return _add(_commit_functions, report)


def _add(registered: list[Registered], item: Registered) -> Callable[[], None]:
    registered.append(item)

    def remove() -> None:
        if item in registered:
            registered.remove(item)

    return remove


def commit_functions() -> tuple[CommitFunction, ...]:
    """Return the methods `report` of this process's reporters: they get the figures of commits."""
    return tuple(_commit_functions)


@dataclass(frozen=True)
class MetricsRecorder:
    """Records the metrics of one table; does nothing if there is no reporter."""

    storage: Storage
    clock: Clock
    settings: MetricsSettings
    name: str | None = None

    @classmethod
    def create(
        cls,
        storage: Storage,
        clock: Clock,
        options: Mapping[str, str],
        name: str | None = None,
    ) -> MetricsRecorder:
        """Return the recorder that options describe; `name` is the table's, if it is known."""
        return cls(storage, clock, metrics_settings(options), name)

    @property
    def is_on(self) -> bool:
        """Whether there is a reporter."""
        return self.settings.on or bool(_process_reporters)

    def gauge(self, values: Iterable[tuple[str, float]], **labels: str) -> None:
        """Report gauges."""
        gauges = list(values) if self.is_on else []
        if gauges:
            self._report((name, value, labels) for name, value in gauges)

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        if self.is_on and by:
            self._report([(name, by, labels)])

    def _report(self, values: Iterable[tuple[str, float, Mapping[str, str]]]) -> None:
        now, table = self.clock.now_ms(), self._table_name()
        metrics = [
            Metric(name, METRICS[name].kind, value, {"table": table, **labels}, now)
            for name, value, labels in (*values, *self._storage_calls())
        ]
        for reporter in self._reporters():
            failure = call_user_function(reporter.take, metrics)
            if failure is not None:
                warn_once(type(reporter).__name__.strip("_"), failure)

    def _storage_calls(self) -> Iterable[tuple[str, float, Mapping[str, str]]]:
        counts = self.storage.take_counts() if isinstance(self.storage, MeteredStorage) else {}
        return [("storage.calls", calls, {"kind": kind}) for kind, calls in counts.items()]

    def _table_name(self) -> str:
        root = self.storage.root
        if self.name is not None:
            _table_names[root] = self.name
        elif root not in _table_names:
            try:
                _table_names[root] = load_properties(self.storage).get("hoodie.table.name", root)
            except LakewrightError:
                return root
        return _table_names[root]

    def _reporters(self) -> list[MetricReporter]:
        reporters = list(_process_reporters)
        for kind in self.settings.types if self.settings.on else ():
            reporter = _reporter(kind, self.settings)
            reporters += [] if reporter is None else [reporter]
        return reporters


def _reporter(kind: ReporterType, settings: MetricsSettings) -> MetricReporter | None:
    """Return the reporter of this process; None, with one warning, if it cannot be created."""
    key = _reporter_key(kind, settings)
    with _lock:
        if key not in _created_reporters:
            created: list[MetricReporter] = []
            failure = call_user_function(lambda: created.append(make_reporter(kind, settings)))
            if failure is not None:
                warn_once(kind.value, failure)
                return None
            _created_reporters[key] = created[0]
        return _created_reporters[key]


def _reporter_key(kind: ReporterType, settings: MetricsSettings) -> tuple[object, ...]:
    """Return what identifies a reporter within this process."""
    s = settings
    if kind is ReporterType.PROMETHEUS:
        return kind, s.prefix, s.address, s.port, s.text_file
    if kind is ReporterType.PROMETHEUS_PUSHGATEWAY:
        return kind, s.prefix, s.push_host, s.push_port, s.push_job, s.push_labels
    return kind, s.prefix, s.json_file


def warn_once(reporter: str, failure: str) -> None:
    """Warn once about a reporter that failed; the write is not affected."""
    if reporter not in _warned:
        _warned.add(reporter)
        text = f"metrics are not reported by {reporter}: {failure}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def with_metrics(storage: Storage, options: Mapping[str, str]) -> Storage:
    """Return the storage, with its calls counted if metrics are on; raise for invalid settings."""
    settings = metrics_settings(options)
    if settings.on and ReporterType.JSON_LINES in settings.types and not settings.json_file:
        raise InvalidError(
            "metrics as JSON lines need a file, or name another reporter",
            options=["lakewright.metrics.jsonl.file", "hoodie.metrics.reporter.type"],
        )
    return metered(storage) if settings.on or _process_reporters else storage
