"""Writes the tables of options in pages of docs/ anew, from the settings that the code reads.

A table stands between `<!-- options: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import dataclasses
import re
from enum import Enum
from pathlib import Path
from typing import Any

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
PAGES = tuple(_DOCS / name for name in ("services.md", "freshness.md", "ttl.md", "cancellable.md"))
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
            lines.append(f"| `{facts['key']}` | {_shown(field.default)} | {text} |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is None or value == "" or value == ():
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(str(each) for each in value)}`"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def renewed(text: str) -> str:
    """The page with tables as the settings are now."""
    return _TABLE.sub(lambda found: f"{found[1]}{table(FAMILIES[found[2]])}\n{found[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text("utf-8")), "utf-8")
