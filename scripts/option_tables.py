"""Writes the tables of options in pages of docs/ anew, from the settings that the code reads.

A table stands between `<!-- options: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from hudi_options import page_tables, shown

from lakewright.catalog.options import SyncSettings
from lakewright.metrics.metric import METRICS, WRITE_NAMES
from lakewright.metrics.options import MetricsSettings
from lakewright.model.ttl import TtlSettings
from lakewright.services.archiving.planner import ArchivingSettings
from lakewright.services.asynchronous import AsyncSettings
from lakewright.services.cleaning.options import CleaningSettings
from lakewright.services.clustering.options import ClusteringSettings
from lakewright.services.compaction.options import CompactionSettings
from lakewright.services.inline import InlineSettings
from lakewright.services.log_compaction import LogCompactionSettings
from lakewright.services.runner import RunSettings
from lakewright.table.freshness_options import FreshnessSettings
from lakewright.table.options import PlanSettings

_DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = tuple(
    _DOCS / name
    for name in (
        "services.md",
        "freshness.md",
        "ttl.md",
        "cancellable.md",
        "coming-from-hudi.md",
        "hudi-options.md",
        "catalogs.md",
        "metrics.md",
    )
)
FAMILIES: dict[str, type[Any]] = {
    "inline": InlineSettings,
    "async": AsyncSettings,
    "run": RunSettings,
    "compaction": CompactionSettings,
    "logcompaction": LogCompactionSettings,
    "clustering": ClusteringSettings,
    "clean": CleaningSettings,
    "archive": ArchivingSettings,
    "freshness": FreshnessSettings,
    "ttl": TtlSettings,
    "plans": PlanSettings,
    "sync": SyncSettings,
    "metrics": MetricsSettings,
}
_METRICS = re.compile(r"(<!-- metrics -->\n).*?(<!-- end metrics -->)", re.DOTALL)
_TABLE = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(family: type[Any]) -> str:
    """The options of a family as a table in Markdown."""
    lines = ["| option | default | |", "|---|---|---|"]
    for field in dataclasses.fields(family):
        facts = field.metadata
        if "key" in facts:
            text = facts["doc"].replace("|", "\\|")
            lines.append(f"| `{facts['key']}` | {shown(field.default)} | {text} |")
    return "\n".join(lines)


def metrics_table() -> str:
    """The metrics that there are; those of writes once for all of their actions."""
    lines = ["| metric | kind | labels | |", "|---|---|---|---|"]
    for name, metric in METRICS.items():
        action, _, rest = name.partition(".")
        doc = metric.doc
        if action in WRITE_NAMES and "pending" not in rest:
            if action != WRITE_NAMES[0]:
                continue
            name, doc = f"ACTION.{rest}", doc.removeprefix(f"last {action}: ")
            doc = doc.replace(f"a {action} ", "one ")
        lines.append(f"| `{name}` | {metric.kind.value} | {', '.join(metric.labels)} | {doc} |")
    actions = ", ".join(f"`{name}`" for name in WRITE_NAMES)
    return "\n".join([*lines, "", f"ACTION is one of {actions}."])


def renewed(text: str) -> str:
    """The page with tables as the settings and metrics are now."""
    hudi = page_tables() if "<!-- options: " in text else {}
    tables = {**hudi, **{name: table(family) for name, family in FAMILIES.items()}}
    text = _METRICS.sub(lambda match: f"{match[1]}{metrics_table()}\n{match[2]}", text)
    return _TABLE.sub(lambda match: f"{match[1]}{tables[match[2]]}\n{match[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text("utf-8")), "utf-8")
