"""Writes dashboards/lakewright.json, the dashboard for Grafana, from the list of panels here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "dashboards" / "lakewright.json"
_TABLE = 'table=~"$table"'
_WRITES = ("commit", "deltacommit", "replacecommit")
_SERVICES = ("compaction", "logcompaction", "clustering", "clean", "archive")
_DATA = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """A picture: its queries by legend, and the unit of its values."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    note: str = ""
    width: int = 8


@dataclass(frozen=True)
class Row:
    """Panels that stand together."""

    title: str
    panels: list[Panel] = field(default_factory=list)


def gauge(name: str) -> str:
    """A gauge of the chosen tables."""
    return f"hudi_{name}{{{_TABLE}}}"


def rate(name: str, by: str, labels: str = "") -> str:
    """How often a counter went up in an hour."""
    return f"sum by ({by}) (increase(hudi_{name}_total{{{_TABLE}{labels}}}[1h]))"


def lag_expression(name: str) -> str:
    """How long ago a time of a view was."""
    return f"time() - {gauge(name)} / 1000"


ROWS = [
    Row("Views", [
        Panel("Completion lag", {
            "{{table}} snapshot": lag_expression("snapshot_completion"),
            "{{table}} read optimized": lag_expression("read_optimized_completion"),
        }, "s", note="How long ago the event time lies up to which a view is complete."),
        Panel("Freshness lag", {
            "{{table}} snapshot": lag_expression("snapshot_freshness"),
            "{{table}} read optimized": lag_expression("read_optimized_freshness"),
        }, "s", note="How long ago the newest event of a view happened."),
        Panel("Log files that wait", {
            "{{table}} files": gauge("debt_logFiles"),
        }, note="Needs lakewright.metrics.debt."),
    ]),
    Row("Writes", [
        Panel("Commits in an hour", {
            f"{{{{table}}}} {name}": rate(f"{name}_completed_counter", "table") for name in _WRITES
        }),
        Panel("Duration", {
            f"{{{{table}}}} {name}": gauge(f"{name}_duration") for name in _WRITES
        }, "ms"),
        Panel("Rows of the last write", {
            **{f"{{{{table}}}} {n} new": gauge(f"{n}_totalInsertRecordsWritten") for n in _WRITES},
            **{f"{{{{table}}}} {n} updated": gauge(f"{n}_totalUpdateRecordsWritten")
               for n in _WRITES},
        }),
        Panel("Bytes of the last write", {
            f"{{{{table}}}} {name}": gauge(f"{name}_totalBytesWritten") for name in _WRITES
        }, "bytes"),
        Panel("Conflicts in an hour", {
            "{{table}} lost": rate("conflict_resolution_failure_counter", "table"),
            "{{table}} passed": rate("conflict_resolution_success_counter", "table"),
        }),
        Panel("Commit latency and freshness", {
            **{f"{{{{table}}}} {n} latency": gauge(f"{n}_commitLatencyInMs") for n in _WRITES[:2]},
            **{f"{{{{table}}}} {n} freshness": gauge(f"{n}_commitFreshnessInMs")
               for n in _WRITES[:2]},
        }, "ms"),
    ]),
    Row("Services", [
        Panel("Runs in an hour", {
            f"{{{{table}}}} {name}": rate(f"{name}_completed_counter", "table")
            for name in _SERVICES
        }),
        Panel("Duration", {
            f"{{{{table}}}} {name}": gauge(f"{name}_duration") for name in _SERVICES
        }, "ms"),
        Panel("Nothing done, by reason", {
            "{{table}} {{service}} {{reason}}": rate("service_skipped", "table, service, reason"),
        }),
        Panel("Failures and plans that gave way", {
            "{{table}} {{service}} {{error}}": rate("service_failed", "table, service, error"),
            "{{table}} {{service}} pre-empted": rate("service_preempted", "table, service"),
            "{{table}} cancelled": rate("plan_cancelled", "table"),
        }),
        Panel("Plans that wait", {
            "{{table}} compaction": gauge("compaction_pendingCompactionInstantCount"),
            "{{table}} clustering": gauge("clustering_pendingClusteringInstantCount"),
        }),
        Panel("Files and partitions that went", {
            "{{table}} cleaned files": gauge("clean_numFilesDeleted"),
            "{{table}} expired partitions": rate("ttl_numPartitionsExpired", "table"),
        }),
    ]),
    Row("Around it", [
        Panel("Ingest lag", {"{{table}} {{source}}": gauge("ingest_lagInMs")}, "ms"),
        Panel("Ingested rows in an hour", {
            "{{table}} {{source}}": rate("ingest_rows", "table, source"),
        }),
        Panel("Calls to storage in an hour", {
            "{{table}} {{kind}}": rate("storage_calls", "table, kind"),
        }),
        Panel("Catalog syncs in an hour", {
            "{{table}} {{catalog}} {{outcome}}": rate("catalog_syncs", "table, catalog, outcome"),
        }),
    ]),
]  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    down = 0
    for row in ROWS:
        grid_position = {"h": 1, "w": 24, "x": 0, "y": down}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row.title, "gridPos": grid_position,
             "collapsed": False, "panels": []}
        )  # fmt: skip
        down += 1
        for number, panel in enumerate(row.panels):
            across, deep = number % 3, number // 3
            grid_position = {"h": 8, "w": panel.width, "x": across * 8, "y": down + deep * 8}
            panels.append(_panel(len(panels) + 1, panel, grid_position))
        down += 8 * ((len(row.panels) + 2) // 3)
    query = 'label_values({__name__=~"hudi_.*_completed_counter_total"}, table)'
    return {
        "title": "Lakewright tables",
        "uid": "lakewright-tables",
        "tags": ["hudi", "lakewright"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "table",
                    "type": "query",
                    "datasource": _DATA,
                    "definition": query,
                    "query": {"query": query, "refId": "tables"},
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                    "sort": 1,
                },
            ]
        },
        "panels": panels,
    }


def _panel(number: int, panel: Panel, grid_position: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.note,
        "datasource": _DATA,
        "gridPos": grid_position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": _DATA, "expr": expr, "legendFormat": legend}
            for i, (legend, expr) in enumerate(panel.queries.items())
        ],
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
