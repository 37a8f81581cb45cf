"""The dashboard can be imported, and queries only metrics that are reported."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

from lakewright.metrics.metric import METRICS, MetricKind
from lakewright.metrics.options import MetricsSettings
from lakewright.metrics.reporters import prometheus_name

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "dashboards" / "lakewright.json"
REPORTED = {
    prometheus_name(name, MetricsSettings().prefix)
    + "_total" * (metric.kind is MetricKind.COUNTER): metric
    for name, metric in METRICS.items()
}
_LABELS = re.compile(r"\{\{(\w+)\}\}")


def queries() -> list[tuple[str, str]]:
    panels = json.loads(FILE.read_text("utf-8"))["panels"]
    return [(t["expr"], t["legendFormat"]) for panel in panels for t in panel.get("targets", ())]


def test_every_metric_that_it_queries_is_reported_with_its_labels() -> None:
    assert len(queries()) > 30
    for expression, legend in queries():
        (name,) = re.findall(r"\bhudi_\w+", expression)
        assert name in REPORTED, expression
        by = re.findall(r"by \(([^)]*)\)", expression)
        labels = {*_LABELS.findall(legend), *(part.strip() for t in by for part in t.split(","))}
        assert labels <= {"table", *REPORTED[name].labels}, (expression, legend)
        assert ("increase(" in expression) == (REPORTED[name].kind is MetricKind.COUNTER)


def test_panels_do_not_overlap() -> None:
    document = json.loads(FILE.read_text("utf-8"))
    occupied: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    for panel in document["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & occupied
        assert at["x"] + at["w"] <= 24
        occupied |= cells
    assert {v["name"] for v in document["templating"]["list"]} == {"datasource", "table"}


def test_the_file_is_what_the_script_writes() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "dashboard.py"))["text"]()
    assert FILE.read_text("utf-8") == written, "run scripts/dashboard.py"
