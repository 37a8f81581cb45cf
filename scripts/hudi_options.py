"""Every option name of Hudi, and what becomes of it here: the tables of docs/hudi-options.md.

Nothing is told twice: honoured is what a family of settings reads or a table stores, refused is
what the checks of options refuse, and the rest of Hudi's names is harmless.
"""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module, resources
from types import ModuleType
from typing import Any

from lakewright.ingestion.cloud.options import REFUSED_CLOUD_OPTIONS
from lakewright.ingestion.options import REFUSED_TABLE_SOURCE_OPTIONS
from lakewright.scan.options import REFUSED_READ_OPTIONS
from lakewright.table.create import is_table_option
from lakewright.write.options import OPERATION_KEYS, REFUSED_WRITE_OPTIONS

# Where a module stands tells who reads its settings; of an option that several read, the first
# in this order explains it.
USES = {
    "lakewright.model": "services",
    "lakewright.client": "ingestion",
    "lakewright.scan": "reading",
    "lakewright.services": "services",
    "lakewright.catalog": "services",
    "lakewright.ingestion": "ingestion",
    "lakewright.table": "writing",
    "lakewright.metrics": "writing",
    "lakewright.write": "writing",
}
_REFUSED = {
    "writing": REFUSED_WRITE_OPTIONS,
    "reading": REFUSED_READ_OPTIONS,
    "ingestion": {**REFUSED_TABLE_SOURCE_OPTIONS, **REFUSED_CLOUD_OPTIONS},
}

# What describes a table has no setting of its own: `lw.create` has arguments for most of it.
_OF_TABLES = {
    "hoodie.compaction.payload.class": (
        "Told by the merge mode; a class that is none of Hudi's own is refused."
    ),
    "hoodie.database.name": "Stored with the table.",
    "hoodie.datasource.write.hive_style_partitioning": "Whether paths are like `day=2026-01-31`.",
    "hoodie.datasource.write.keygenerator.class": (
        "Hudi's own generators: simple, complex, timestamp-based, custom, non-partitioned."
    ),
    "hoodie.datasource.write.keygenerator.type": "The same by a word.",
    "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled": (
        "Whether times in keys are written as text."
    ),
    "hoodie.datasource.write.operation": (
        "Which operation `df.write` is: upsert, insert, bulk_insert, delete, "
        "insert_overwrite, insert_overwrite_table, delete_partition."
    ),
    "hoodie.datasource.write.partitionpath.field": (
        "The partition columns: `partition_by` of `lw.create`."
    ),
    "hoodie.datasource.write.partitionpath.urlencode": "Whether values in paths are escaped.",
    "hoodie.datasource.write.partitions.to.delete": (
        "What the operation delete_partition takes out."
    ),
    "hoodie.datasource.write.precombine.field": "The ordering columns: `ordering` of `lw.create`.",
    "hoodie.datasource.write.recordkey.field": "The key columns: `record_key` of `lw.create`.",
    "hoodie.datasource.write.slash.separated.date.partitioning": (
        "Whether days are paths like `2026/01/31`."
    ),
    "hoodie.datasource.write.table.name": "The table's name.",
    "hoodie.datasource.write.table.type": "COPY_ON_WRITE or MERGE_ON_READ.",
    "hoodie.record.merge.mode": "EVENT_TIME_ORDERING or COMMIT_TIME_ORDERING; CUSTOM is refused.",
    "hoodie.write.record.merge.mode": (
        "EVENT_TIME_ORDERING or COMMIT_TIME_ORDERING; CUSTOM is refused."
    ),
    "hoodie.table.cdc.enabled": "Whether the table logs changes.",
    "hoodie.table.cdc.supplemental.logging.mode": "How much of each change is logged.",
    "hoodie.table.timeline.timezone": (
        "The zone of instants: UTC for new tables, LOCAL where it is told."
    ),
    "hoodie.table.version": "8 or 9.",
    "hoodie.write.table.version": "8 or 9.",
}
_TIME_KEYS = ("hoodie.keygen.timebased.", "hoodie.deltastreamer.keygen.timebased.")


@dataclass
class Honoured:
    """An option that does here what it does in Hudi."""

    name: str
    default: str = ""
    doc: str = ""
    uses: set[str] = field(default_factory=set)


def hudi_names() -> list[str]:
    """The names of Hudi's options, as Hudi writes them."""
    text = resources.files("lakewright").joinpath("hudi_options.txt").read_text("ascii")
    return sorted(text.split())


def families() -> Iterator[tuple[str, type[Any]]]:
    """The families of settings of the library, each with who reads it."""
    visited: set[type[Any]] = set()
    for package, use in USES.items():
        for info in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if "option(" not in _source(module := import_module(info.name)):
                continue
            for _, kind in inspect.getmembers(module, inspect.isclass):
                if kind.__module__ == info.name and kind not in visited and _has_options(kind):
                    visited.add(kind)
                    yield use, kind


def _has_options(kind: type[Any]) -> bool:
    if not dataclasses.is_dataclass(kind):
        return False
    return any("key" in setting.metadata for setting in dataclasses.fields(kind))


def _source(module: ModuleType) -> str:
    return inspect.getsource(module)


def honoured() -> dict[str, Honoured]:
    """What is honoured, by the names in lower case."""
    names = {name.lower(): name for name in hudi_names()}
    options: dict[str, Honoured] = {}
    for use, family in families():
        for setting in dataclasses.fields(family):
            facts = setting.metadata
            for key in (facts.get("key"), *facts.get("aliases", ())):
                if key is None or key.lower() not in names:
                    continue
                main = key == facts["key"]
                doc = facts["doc"] if main else f"An older name of `{facts['key']}`."
                entry = options.setdefault(key.lower(), Honoured(names[key.lower()]))
                entry.uses.add(use)
                entry.default = entry.default or (shown(setting.default) if main else "")
                entry.doc = entry.doc or doc
    for key, name in names.items():
        if key in OPERATION_KEYS:
            options.setdefault(key, Honoured(name)).uses.add("writing")
        if is_table_option(key) and key not in REFUSED_WRITE_OPTIONS:
            options.setdefault(key, Honoured(name)).uses.add("the table")
    for key, entry in options.items():
        entry.doc = entry.doc or _of_tables(key)
    return options


def _of_tables(key: str) -> str:
    if key.startswith(_TIME_KEYS):
        return "How times become partition paths, by the timestamp-based key generator."
    return _OF_TABLES.get(key, "A property of the table, as in Hudi.")


def shown(value: Any) -> str:
    """A default, as people would type it."""
    if value is None or value == "" or value == ():
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(str(item) for item in value)}`"
    return f"`{getattr(value, 'value', value)}`"


def refused() -> dict[str, dict[str, str]]:
    """What is refused, by name: where, and with which value it is not."""
    refusals: dict[str, dict[str, str]] = {}
    for name in hudi_names():
        for use, table in _REFUSED.items():
            if name.lower() in {key.lower() for key in table}:
                harmless_value = next(
                    text for key, text in table.items() if key.lower() == name.lower()
                )
                refusals.setdefault(name, {})[use] = harmless_value
    return refusals


def harmless() -> list[str]:
    """The rest: names of Hudi's that change nothing here."""
    covered = honoured().keys() | {name.lower() for name in refused()}
    return [name for name in hudi_names() if name.lower() not in covered]


def page_tables() -> dict[str, str]:
    """The three tables, by the names under which pages ask for them."""
    return {
        "honoured": _honoured(),
        "refused": _refused(),
        "harmless": _harmless(),
        "hudi": _counts(),
    }


def _honoured() -> str:
    lines = ["| option | default here | for | |", "|---|---|---|---|"]
    for _, entry in sorted(honoured().items()):
        doc = entry.doc.replace("|", "\\|")
        uses = ", ".join(sorted(entry.uses))
        lines.append(f"| `{entry.name}` | {entry.default} | {uses} | {doc} |")
    return "\n".join(lines)


def _refused() -> str:
    lines = ["| option | refused in | unless it is |", "|---|---|---|"]
    for name, where in sorted(refused().items()):
        values = sorted(set(where.values()))
        same = " or ".join(f"`{value}`" if value else "left out" for value in values)
        lines.append(f"| `{name}` | {', '.join(sorted(where))} | {same} |")
    return "\n".join(lines)


def _harmless() -> str:
    lines = ["| option | |", "|---|---|"]
    for name in harmless():
        lines.append(f"| `{name}` |  |")
    return "\n".join(lines)


def _counts() -> str:
    counts = (len(honoured()), len(refused()), len(harmless()))
    return (
        "| of Hudi 1.2's options | |\n|---|---|\n"
        f"| [honoured](hudi-options.md#honoured) | {counts[0]} |\n"
        f"| [refused](hudi-options.md#refused) where they would change the result | {counts[1]} |\n"
        f"| [harmless](hudi-options.md#harmless) to ignore | {counts[2]} |"
    )
