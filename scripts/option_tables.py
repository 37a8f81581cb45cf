"""Writes the tables of options in pages of docs/ anew, from the settings that the code reads.

A table stands between `<!-- options: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from hudi_options import page_tables, shown

from lakewright.core.ttl_settings import TtlSettings
from lakewright.services.archiving.settings import ArchivingSettings
from lakewright.services.cleaning.settings import CleaningSettings
from lakewright.services.clustering.settings import ClusteringSettings
from lakewright.services.compaction.settings import CompactionSettings
from lakewright.services.inline import InlineSettings
from lakewright.services.logcompaction.settings import LogCompactionSettings
from lakewright.services.runner import RunSettings
from lakewright.table.settings import PlanSettings
from lakewright.write.freshness_settings import FreshnessSettings

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
    )
)
FAMILIES: dict[str, type[Any]] = {
    "inline": InlineSettings,
    "run": RunSettings,
    "compaction": CompactionSettings,
    "logcompaction": LogCompactionSettings,
    "clustering": ClusteringSettings,
    "clean": CleaningSettings,
    "archive": ArchivingSettings,
    "freshness": FreshnessSettings,
    "ttl": TtlSettings,
    "plans": PlanSettings,
}
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


def renewed(text: str) -> str:
    """The page with tables as the settings are now."""
    hudi = page_tables() if "<!-- options: " in text else {}
    tables = {**hudi, **{name: table(family) for name, family in FAMILIES.items()}}
    return _TABLE.sub(lambda found: f"{found[1]}{tables[found[2]]}\n{found[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text("utf-8")), "utf-8")
