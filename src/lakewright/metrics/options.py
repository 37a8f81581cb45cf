"""The options of metrics, with Hudi's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lakewright.options import at_least, option, parse_bool, settings_from

METRICS_ON = "hoodie.metrics.on"


class ReporterType(StrEnum):
    """The reporters that options can name."""

    PROMETHEUS = "PROMETHEUS"
    PROMETHEUS_PUSHGATEWAY = "PROMETHEUS_PUSHGATEWAY"
    JSON_LINES = "JSON_LINES"
    CONSOLE = "CONSOLE"
    INMEMORY = "INMEMORY"


def _types(text: str) -> tuple[ReporterType, ...]:
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in list(ReporterType)]
    if unknown or not names:
        raise ValueError(f"one or more of {', '.join(ReporterType)} expected")
    return tuple(ReporterType(name) for name in names)


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [pair.partition(":") for pair in text.split(",") if pair.strip()]
    if any(not key.strip() or not colon for key, colon, _ in pairs):
        raise ValueError("name:value pairs, with commas between them, expected")
    return tuple((key.strip(), value.strip()) for key, _, value in pairs)


def _prefix(text: str) -> str:
    prefix = text.strip()
    if not all(char.isalnum() or char in "._-" for char in prefix):
        raise ValueError("letters, digits, dots, dashes and underscores expected")
    return prefix


def _port(text: str) -> int:
    number = at_least(0)(text)
    if number > 65535:
        raise ValueError("a port expected")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Which reporters get the metrics, and their settings."""

    on: bool = option(
        METRICS_ON,
        False,
        parse=parse_bool,
        doc="Whether writes and services send their metrics to a reporter.",
    )
    types: tuple[ReporterType, ...] = option(
        "hoodie.metrics.reporter.type",
        (ReporterType.JSON_LINES,),
        parse=_types,
        doc="Where they go, one or several with commas: PROMETHEUS, PROMETHEUS_PUSHGATEWAY, "
        "JSON_LINES, CONSOLE, INMEMORY. Hudi's default, GRAPHITE, is not supported.",
    )
    prefix: str = option(
        "hoodie.metrics.reporter.metricsname.prefix",
        "hudi",
        parse=_prefix,
        doc="What names begin with in Prometheus and in JSON lines.",
    )
    port: int = option(
        "hoodie.metrics.prometheus.port",
        9090,
        parse=_port,
        doc="PROMETHEUS: the port at which this process serves its metrics; 0 serves none, which "
        "leaves the text file, or a server of your own.",
    )
    address: str = option(
        "lakewright.metrics.prometheus.address",
        "127.0.0.1",
        parse=str.strip,
        doc="PROMETHEUS: the address to serve at.",
    )
    text_file: str | None = option(
        "lakewright.metrics.prometheus.textfile",
        None,
        parse=str.strip,
        doc="PROMETHEUS: a file, which ends in .prom, that is written anew each time, for the "
        "text file collector of the node exporter.",
    )
    push_host: str = option(
        "hoodie.metrics.pushgateway.host",
        "localhost",
        parse=str.strip,
        doc="PROMETHEUS_PUSHGATEWAY: its host. Metrics are pushed after each commit and service.",
    )
    push_port: int = option(
        "hoodie.metrics.pushgateway.port",
        9091,
        parse=_port,
        doc="PROMETHEUS_PUSHGATEWAY: its port.",
    )
    push_job: str = option(
        "hoodie.metrics.pushgateway.job.name",
        "lakewright",
        parse=str.strip,
        doc="PROMETHEUS_PUSHGATEWAY: the job that metrics are pushed for.",
    )
    push_labels: tuple[tuple[str, str], ...] = option(
        "hoodie.metrics.pushgateway.report.labels",
        (),
        parse=_labels,
        doc="PROMETHEUS_PUSHGATEWAY: more labels of the job, such as env:prod,team:rides.",
    )
    json_file: str | None = option(
        "lakewright.metrics.jsonl.file",
        None,
        parse=str.strip,
        doc="JSON_LINES: the file that lines are added to; several processes may share it.",
    )
    debt: bool = option(
        "lakewright.metrics.debt",
        False,
        parse=parse_bool,
        doc="Whether a service round also counts uncompacted log files, which lists the "
        "partitions that may have some.",
    )


def metrics_settings(options: Mapping[str, str]) -> MetricsSettings:
    """Return the settings that options describe."""
    return settings_from(MetricsSettings, options)
