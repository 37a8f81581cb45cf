"""Which modules of the library one upsert, one compaction and one read pass through.

`./dev python scripts/modules_passed.py` prints the counts, `--list` the modules too. The table is
merge-on-read, partitioned and in memory; the engine is that of this process. The second count
leaves out what everything uses: model, format, storage, utils, errors, options, clock.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import lakewright
from lakewright.client.write_client import WriteClient
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.model.table_config import TableType
from lakewright.scan.planner import plan_snapshot
from lakewright.storage.memory import MemoryStorage
from lakewright.table.create import TableSpec, create_table
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.local_reads import read_plan
from lakewright.write.task import Operation

_ROOT = Path(lakewright.__file__).parent
_LEAVES = {"model", "format", "storage", "utils", "errors.py", "options.py", "clock.py"}
_NOT_COUNTED = {"testing"}
_OPTIONS = {
    "hoodie.compact.inline": "false",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}


@contextmanager
def traced(modules: set[str]) -> Iterator[None]:
    """Add the modules of all functions that are called in the block, by their paths."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            path = frame.f_code.co_filename
            if path.startswith(str(_ROOT)) and frame.f_code.co_name != "<module>":
                modules.add(path)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def passed(act: Callable[[], object]) -> list[str]:
    """The modules that a call passes through, relative to the package, sorted."""
    paths: set[str] = set()
    with traced(paths):
        act()
    names = (str(Path(path).relative_to(_ROOT)) for path in paths)
    return sorted(name for name in names if name.split("/")[0] not in _NOT_COUNTED)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the modules, too")
    arguments = parser.parse_args()
    storage, clock = MemoryStorage.fresh(), ManualClock()
    spec = TableSpec(
        name="trips",
        table_type=TableType.MERGE_ON_READ,
        record_key=("id",),
        partition_by=("day",),
        ordering=("ts",),
    )
    create_table(storage, clock, spec)
    client = replace(WriteClient.create(storage, _OPTIONS, clock), engine=LocalEngine)

    def upsert(ts: int) -> Callable[[], object]:
        rows = [{"id": str(number), "day": "d1", "ts": ts} for number in range(10)]
        return lambda: client.write(Operation.UPSERT, ArrowRows(pa.Table.from_pylist(rows)))

    upsert(1)()
    runner = client.services
    for name, act in {
        "upsert": upsert(2),
        "compaction": lambda: runner.run("compaction"),
        "read": lambda: read_plan(storage, plan_snapshot(load_snapshot(storage))),
    }.items():
        if name == "read":
            upsert(3)()
        modules = passed(act)
        inner = [module for module in modules if module.split("/")[0] not in _LEAVES]
        print(f"{name}: {len(modules)} modules, {len(inner)} without leaves")
        if arguments.list:
            print("\n".join(f"  {module}" for module in modules))


if __name__ == "__main__":
    main()
