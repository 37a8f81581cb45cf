"""Takes what happens to a table to the reporters that options and this process name."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lakewright.clock import Clock
from lakewright.errors import InvalidError, LakewrightError
from lakewright.metrics.metric import METRICS, Metric, MetricReporter
from lakewright.metrics.options import MetricsSettings, ReporterType, metrics_settings
from lakewright.metrics.reporters import make_reporter
from lakewright.storage.base import Storage
from lakewright.storage.metered import MeteredStorage, metered
from lakewright.table.freshness_options import call_user_function
from lakewright.table.properties import load_properties

_listeners: list[MetricReporter] = []
_made: dict[tuple[object, ...], MetricReporter] = {}
_warned: set[str] = set()
_names: dict[str, str] = {}
_lock = threading.Lock()


def add_reporter(reporter: MetricReporter) -> Callable[[], None]:
    """Tell a reporter of all that happens in this process; gives a function that ends it."""
    _listeners.append(reporter)

    def end() -> None:
        if reporter in _listeners:
            _listeners.remove(reporter)

    return end


@dataclass(frozen=True)
class MetricsRecorder:
    """The metrics of one table; asks and does nothing while nobody wants them."""

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
        """The meter that options describe; `name` is the table's, if that is known."""
        return cls(storage, clock, metrics_settings(options), name)

    @property
    def is_on(self) -> bool:
        """Whether anybody wants to know."""
        return self.settings.on or bool(_listeners)

    def gauge(self, values: Iterable[tuple[str, float]], **labels: str) -> None:
        """Tell how things are."""
        told = list(values) if self.is_on else []
        if told:
            self._report((name, value, labels) for name, value in told)

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        if self.is_on and by:
            self._report([(name, by, labels)])

    def _report(self, values: Iterable[tuple[str, float, Mapping[str, str]]]) -> None:
        now, table = self.clock.now_ms(), self._table()
        told = [
            Metric(name, METRICS[name].kind, value, {"table": table, **labels}, now)
            for name, value, labels in (*values, *self._calls())
        ]
        for reporter in self._reporters():
            failure = call_user_function(reporter.take, told)
            if failure is not None:
                warn_once(type(reporter).__name__.strip("_"), failure)

    def _calls(self) -> Iterable[tuple[str, float, Mapping[str, str]]]:
        taken = self.storage.take_counts() if isinstance(self.storage, MeteredStorage) else {}
        return [("storage.calls", calls, {"kind": kind}) for kind, calls in taken.items()]

    def _table(self) -> str:
        root = self.storage.root
        if self.name is not None:
            _names[root] = self.name
        elif root not in _names:
            try:
                _names[root] = load_properties(self.storage).get("hoodie.table.name", root)
            except LakewrightError:
                return root
        return _names[root]

    def _reporters(self) -> list[MetricReporter]:
        found = list(_listeners)
        for kind in self.settings.types if self.settings.on else ():
            reporter = _reporter(kind, self.settings)
            found += [] if reporter is None else [reporter]
        return found


def _reporter(kind: ReporterType, settings: MetricsSettings) -> MetricReporter | None:
    """The reporter of this process; None if it cannot be made, which is warned of once."""
    key = _identity(kind, settings)
    with _lock:
        if key not in _made:
            held: list[MetricReporter] = []
            failure = call_user_function(lambda: held.append(make_reporter(kind, settings)))
            if failure is not None:
                warn_once(kind.value, failure)
                return None
            _made[key] = held[0]
        return _made[key]


def _identity(kind: ReporterType, settings: MetricsSettings) -> tuple[object, ...]:
    """What makes two reporters the same one."""
    told = settings
    if kind is ReporterType.PROMETHEUS:
        return kind, told.prefix, told.address, told.port, told.text_file
    if kind is ReporterType.PROMETHEUS_PUSHGATEWAY:
        return kind, told.prefix, told.push_host, told.push_port, told.push_job, told.push_labels
    return kind, told.prefix, told.json_file


def warn_once(who: str, failure: str) -> None:
    """Warn of a reporter that failed, once: the write stands, whoever hears of it."""
    if who not in _warned:
        _warned.add(who)
        text = f"metrics are not reported by {who}: {failure}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def reporter_for(kind: ReporterType, settings: MetricsSettings) -> MetricReporter | None:
    """The reporter that this process has for such settings, made if it is not there yet."""
    return _reporter(kind, settings)


def with_metrics(storage: Storage, options: Mapping[str, str]) -> Storage:
    """The storage, counted if metrics are wanted; settings that cannot be are refused here."""
    settings = metrics_settings(options)
    if settings.on and ReporterType.JSON_LINES in settings.types and not settings.json_file:
        raise InvalidError(
            "metrics as JSON lines need a file, or name another reporter",
            options=["lakewright.metrics.jsonl.file", "hoodie.metrics.reporter.type"],
        )
    return metered(storage) if settings.on or _listeners else storage
