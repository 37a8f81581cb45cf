"""File slices by hand, by their sizes in megabytes, and what strategies are told about them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import count
from pathlib import Path

from golden_tables import upload

from lakewright.format.timeline_metadata import parse_compaction_plan
from lakewright.model.file_group import BaseFile, FileSlice, LogFile
from lakewright.model.plans import CompactionPlan
from lakewright.model.timeline import Timeline
from lakewright.options import settings_from
from lakewright.services.compaction.options import CompactionSettings
from lakewright.services.compaction.planner import StrategyChain, strategy_for
from lakewright.services.compaction.strategies import MB, StrategyContext
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.timeline_drawing import at

TODAY = date(2026, 3, 10)
_ids = count()


def by_hand(
    partition: str,
    base: int | None,
    logs: Sequence[int] = (),
    *,
    file_id: str | None = None,
    first_tick: int = 10,
) -> FileSlice:
    """A slice with a base file and log files of these sizes, one log file for each tick."""
    name = file_id or f"f{next(_ids)}"
    made = [
        LogFile(name, at(first_tick + number), size=size * MB) for number, size in enumerate(logs)
    ]
    base_file = None if base is None else BaseFile(name, "0-0-0", at(0), size=base * MB)
    return FileSlice(
        partition, name, at(0) if base_file else at(first_tick), base_file, tuple(made)
    )


def compaction_settings(**options: object) -> CompactionSettings:
    """Settings by the end of their keys, with underscores: `target_io=400`."""
    ends = {
        "strategy": "hoodie.compaction.strategy",
        "target_io": "hoodie.compaction.target.io",
        "size_threshold": "hoodie.compaction.logfile.size.threshold",
        "num_threshold": "hoodie.compaction.logfile.num.threshold",
        "target_partitions": "hoodie.compaction.daybased.target.partitions",
        "regex": "hoodie.compaction.partition.path.regex",
        "order": "lakewright.compaction.order",
        "trigger": "hoodie.compact.inline.trigger.strategy",
        "max_commits": "hoodie.compact.inline.max.delta.commits",
        "max_seconds": "hoodie.compact.inline.max.delta.seconds",
    }
    return settings_from(CompactionSettings, {ends[k]: str(v) for k, v in options.items()})


def chain_of(settings: CompactionSettings) -> StrategyChain:
    """The strategies of the settings, today."""
    return strategy_for(settings, StrategyContext(Timeline(), at(99), TODAY))


def of_real_hudi(table: Path, instant: str, action: str) -> tuple[CompactionPlan, Snapshot]:
    """A plan on a table of real Hudi, and the table as it was when that plan was made."""
    storage = upload(table, MemoryStorage.fresh())
    folder = ".hoodie/timeline"
    plan = parse_compaction_plan(storage.read(f"{folder}/{instant}.{action}.requested"))
    later = [file.path for file in storage.list_files(folder) if file.name >= instant]
    storage.delete_many(later)
    return plan, load_snapshot(storage)
