"""Settings of metrics, by Hudi's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lakewright.options import at_least, option, parse_bool, settings_from

METRICS_ON = "hoodie.metrics.on"


class ReporterType(StrEnum):
    """Where metrics go."""

    PROMETHEUS = "PROMETHEUS"
    PROMETHEUS_PUSHGATEWAY = "PROMETHEUS_PUSHGATEWAY"
    JSON_LINES = "JSON_LINES"
    CONSOLE = "CONSOLE"
    INMEMORY = "INMEMORY"


def _types(text: str) -> tuple[ReporterType, ...]:
    words = [word.strip().upper() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in list(ReporterType)]
    if unknown or not words:
        raise ValueError(f"one or more of {', '.join(ReporterType)} expected")
    return tuple(ReporterType(word) for word in words)


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [pair.partition(":") for pair in text.split(",") if pair.strip()]
    if any(not key.strip() or not colon for key, colon, _ in pairs):
        raise ValueError("name:value pairs, with commas between them, expected")
    return tuple((key.strip(), value.strip()) for key, _, value in pairs)


def _prefix(text: str) -> str:
    word = text.strip()
    if not all(char.isalnum() or char in "._-" for char in word):
        raise ValueError("letters, digits, dots, dashes and underscores expected")
    return word


def _port(text: str) -> int:
    number = at_least(0)(text)
    if number > 65535:
        raise ValueError("a port expected")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Which metrics go where."""

    on: bool = option(
        METRICS_ON,
        False,
        parse=parse_bool,
        doc="Whether writes and services tell their figures to a reporter.",
    )
    types: tuple[ReporterType, ...] = option(
        "hoodie.metrics.reporter.type",
        (ReporterType.JSON_LINES,),
        parse=_types,
        doc="Where they go, one or several with commas: PROMETHEUS, PROMETHEUS_PUSHGATEWAY, "
        "JSON_LINES, CONSOLE, INMEMORY. Hudi's default, GRAPHITE, is not there.",
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
        doc="Whether a service round also counts the log files that wait, which lists the "
        "partitions that may hold some.",
    )


def metrics_settings(options: Mapping[str, str]) -> MetricsSettings:
    """The settings that options name."""
    return settings_from(MetricsSettings, options)
