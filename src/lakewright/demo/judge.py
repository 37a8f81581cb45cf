"""The result of the demo before its judges: the rows, what is left on disk, and hudi-rs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakewright.demo.events import Row
from lakewright.demo.expected import Check
from lakewright.demo.story import HUDI_RS
from lakewright.model.instant import InstantTime

_NAMES = ("ride", "day", "city", "status", "at", "fare_cents")
_OPTIMIZED = "hoodie.read.use.read_optimized.mode"


def rows_of(tables: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[Row]:
    """The rows of tables of Arrow, with times in milliseconds."""
    for table in tables:
        columns = [table.column(name) for name in _NAMES]
        at = _NAMES.index("at")
        columns[at] = columns[at].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        for values in zip(*(column.to_pylist() for column in columns), strict=True):
            ride, day, city, status, micros, cents = values
            yield Row(ride, day, city, status, micros // 1000, cents)


def left_of(path: str, instant: InstantTime) -> tuple[str, ...]:
    """Files of a table on disk whose names carry an instant, below the table.

    Markers are none of them: they stay while tasks of a write that has ended may be running.
    """
    root = Path(path)
    found = [each.relative_to(root) for each in root.rglob(f"*{instant}*") if each.is_file()]
    return tuple(sorted(str(each) for each in found if each.parts[:2] != (".hoodie", ".temp")))


def has_announced(path: str, instant: InstantTime) -> bool:
    """Whether a write to a table on disk has announced a log file, by a marker."""
    return any(Path(path, ".hoodie", ".temp", instant).rglob("*.log.*.marker.*"))


def ask_hudi_rs(path: str, snapshot: Iterable[Row], optimized: Iterable[Row]) -> Check:
    """Whether hudi-rs, another implementation of the format, reads the same rows in both views."""
    try:
        told = version("hudi")
        hudi = import_module("hudi")
    except (PackageNotFoundError, ImportError):
        return Check(HUDI_RS, None, "not installed: pip install hudi")
    table = hudi.HudiTableBuilder.from_base_uri(path).build()
    fast = hudi.HudiReadOptions().with_hudi_option(_OPTIMIZED, "true")
    views = {
        "snapshot": (_read(table, None), snapshot),
        "read-optimized": (_read(table, fast), optimized),
    }
    seen, passed = [], True
    for name, (theirs, ours) in views.items():
        found, wanted = sorted(theirs, key=_by_ride), sorted(ours, key=_by_ride)
        passed = passed and found == wanted
        told_of = "equal" if found == wanted else f"other than our {len(wanted):,}"
        seen.append(f"{name} {len(found):,} rows {told_of}")
    return Check(HUDI_RS, passed, f"version {told}: {', '.join(seen)}")


def _read(table: Any, options: Any) -> list[Row]:
    found = table.read(options) if options is not None else table.read()
    return list(rows_of(pa.record_batch(batch) for batch in found))


def _by_ride(row: Row) -> tuple[str, int]:
    return row.ride, row.at
