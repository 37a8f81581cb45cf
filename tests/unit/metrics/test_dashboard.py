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
TOLD = {
    prometheus_name(name, MetricsSettings().prefix)
    + "_total" * (known.kind is MetricKind.COUNTER): known
    for name, known in METRICS.items()
}
_LABELS = re.compile(r"\{\{(\w+)\}\}")


def queries() -> list[tuple[str, str]]:
    panels = json.loads(FILE.read_text("utf-8"))["panels"]
    return [(t["expr"], t["legendFormat"]) for panel in panels for t in panel.get("targets", ())]


def test_every_metric_that_it_queries_is_reported_with_its_labels() -> None:
    assert len(queries()) > 30
    for expression, legend in queries():
        (name,) = re.findall(r"\bhudi_\w+", expression)
        assert name in TOLD, expression
        by = re.findall(r"by \(([^)]*)\)", expression)
        wanted = {*_LABELS.findall(legend), *(part.strip() for t in by for part in t.split(","))}
        assert wanted <= {"table", *TOLD[name].labels}, (expression, legend)
        assert ("increase(" in expression) == (TOLD[name].kind is MetricKind.COUNTER)


def test_panels_stand_beside_each_other() -> None:
    document = json.loads(FILE.read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    for panel in document["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert {v["name"] for v in document["templating"]["list"]} == {"datasource", "table"}


def test_the_file_is_what_the_script_writes() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "dashboard.py"))["text"]()
    assert FILE.read_text("utf-8") == written, "run scripts/dashboard.py"
