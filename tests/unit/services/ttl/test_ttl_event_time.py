"""KEEP_BY_EVENT_TIME: the path of a partition determines its age."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.model.partition_time import PathTime
from lakewright.model.plans import Skip
from lakewright.model.ttl import HUDI_DAYS, HUDI_TYPE
from lakewright.services.ttl.planner import ReferenceSource
from lakewright.services.ttl.service import explain
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, row

EVENT = "hoodie.partition.ttl.strategy.event.time."
# 2026-05-01T12:00Z: with a day less the cutoff is at noon of the 30th of April.
NOON = 1_777_636_800_000
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

FORMATS: dict[str, tuple[str, str, str, str]] = {
    # format, expired, at the cutoff, after it
    "days": ("yyyy-MM-dd", "2026-04-22", "2026-04-30", "2026-05-01"),
    "days without dashes": ("yyyyMMdd", "20260422", "20260430", "20260501"),
    "hours": ("yyyy-MM-dd/HH", "2026-04-30/11", "2026-04-30/12", "2026-04-30/13"),
    "hours without dashes": ("yyyyMMdd/HH", "20260430/11", "20260430/12", "20260430/13"),
}
PLACES = {
    "alone": ("", 0),
    "after a level": ("us/", 1),
    "after two levels": ("us/ca/", 2),
}


def styled(path: str, *, hive_style: bool) -> str:
    if not hive_style:
        return path
    return "/".join(f"c{n}={value}" for n, value in enumerate(path.split("/")))


def partitions(
    paths: list[str], format: str, start: int, now_ms: int, *, hive_style: bool, days: str = "1"
) -> dict[str, bool]:
    """What happens to partitions, by their paths without names of columns."""
    clock = ManualClock(now_ms - 3_600_000)
    columns = tuple(f"c{n}" for n in range(paths[0].count("/") + 1))
    style = {"hoodie.datasource.write.hive_style_partitioning": str(hive_style).lower()}
    schema = pa.schema(
        [("id", pa.string()), ("ts", pa.int64()), *((c, pa.string()) for c in columns)]
    )
    table = WrittenTable(clock=clock, options=NO_SERVICES, schema=schema)
    table.create(partition_by=columns, options=style)
    rows = [
        {"id": path, "ts": 1, **dict(zip(columns, path.split("/"), strict=True))} for path in paths
    ]
    table.upsert(rows)
    clock.advance(now_ms - clock.now_ms())
    options = {
        HUDI_DAYS: days,
        HUDI_TYPE: "KEEP_BY_EVENT_TIME",
        EVENT + "format": format,
        EVENT + "partition.start.index": str(start),
    }
    decisions = explain(table.services(options).planning_context(load_snapshot(table.storage)))
    named = {styled(path, hive_style=hive_style): path for path in paths}
    assert all(decision.source is ReferenceSource.PATH for decision in decisions)
    return {named[decision.partition]: decision.expired for decision in decisions}


@pytest.mark.parametrize("hive_style", [False, True], ids=["plain", "hive style"])
@pytest.mark.parametrize(("prefix", "start"), PLACES.values(), ids=list(PLACES))
@pytest.mark.parametrize(("format", "old", "cutoff", "young"), FORMATS.values(), ids=list(FORMATS))
def test_paths_contain_a_time(
    format: str, old: str, cutoff: str, young: str, prefix: str, start: int, hive_style: bool
) -> None:
    hours = format.endswith("HH")
    now_ms = NOON if hours else NOON - 12 * 3_600_000
    paths = [prefix + path for path in (old, cutoff, young)]
    expired = partitions(paths, format, start, now_ms, hive_style=hive_style)
    assert expired == {paths[0]: True, paths[1]: False, paths[2]: False}


def test_a_day_counts_from_its_beginning() -> None:
    expired = partitions(["2026-04-30"], "yyyy-MM-dd", 0, NOON, hive_style=False)
    assert expired == {"2026-04-30": True}


LEVELS = {"yyyy-MM-dd": 1, "yyyyMMdd": 1, "yyyy-MM-dd/HH": 2, "yyyyMMdd/HH": 2}


@pytest.mark.parametrize(("format", "levels"), LEVELS.items())
def test_levels_of_formats(format: str, levels: int) -> None:
    assert PathTime(format).levels == levels


REFUSED: dict[str, tuple[str, str, int, bool]] = {
    "no date": ("yesterday", "yyyy-MM-dd", 0, False),
    "no such day": ("2026-02-30", "yyyy-MM-dd", 0, False),
    "another format": ("20260422", "yyyy-MM-dd", 0, False),
    "no zeros": ("2026-4-2", "yyyy-MM-dd", 0, False),
    "no such hour": ("2026-04-22/24", "yyyy-MM-dd/HH", 0, False),
    "too short a path": ("2026-04-22", "yyyy-MM-dd/HH", 0, False),
    "an index that is not there": ("2026-04-22", "yyyy-MM-dd", 1, False),
    "names of columns where the table has none": ("dt=2026-04-22", "yyyy-MM-dd", 0, False),
    "no names of columns where the table has them": ("2026-04-22", "yyyy-MM-dd", 0, True),
}


@pytest.mark.parametrize(
    ("path", "format", "start", "hive_style"), REFUSED.values(), ids=list(REFUSED)
)
def test_nothing_is_guessed(path: str, format: str, start: int, hive_style: bool) -> None:
    with pytest.raises(InvalidError) as error:
        PathTime(format, start).parse(path, hive_style=hive_style)
    assert path in str(error.value)


@pytest.mark.parametrize("on", [False, True], ids=["kept", "expired"])
@pytest.mark.parametrize("path", [NO_VALUE, f"{NO_VALUE}/11", f"2020-01-01/{NO_VALUE}"])
def test_the_partition_without_a_value_expires_only_if_configured(path: str, on: bool) -> None:
    format = "yyyy-MM-dd/HH" if "/" in path else "yyyy-MM-dd"
    clock = ManualClock()
    columns = ("day", "note") if "/" in path else ("day",)
    table = WrittenTable(clock=clock, options=NO_SERVICES).create(partition_by=columns)
    values = [None if value == NO_VALUE else value for value in path.split("/")]
    table.upsert([{**row("a"), **dict(zip(columns, values, strict=True))}])
    clock.advance(86_400_000)
    options = {
        HUDI_DAYS: "1",
        HUDI_TYPE: "KEEP_BY_EVENT_TIME",
        EVENT + "format": format,
        EVENT + "delete.hive.default.partition": str(on).lower(),
    }
    assert isinstance(table.services(options).run("ttl"), Commit if on else Skip)
    assert len(table.rows()) == (0 if on else 1)


def test_one_path_without_a_time_fails_the_run() -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a", day="2020-01-01"), row("b", day="later")])
    options = {HUDI_DAYS: "1", HUDI_TYPE: "KEEP_BY_EVENT_TIME"}
    with pytest.raises(InvalidError, match="names no time"):
        table.services(options).run("ttl")
    assert len(table.rows()) == 2
    only = {**options, "hoodie.partition.ttl.strategy.partition.selected": "2020-01-01"}
    assert isinstance(table.services(only).run("ttl"), Commit)
    assert [record["id"] for record in table.rows()] == ["b"]
