"""Change data of tables that we or real Hudi wrote: both read the same."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count, pairwise, product
from pathlib import Path

import pytest
from real_hudi import RealHudi, RealHudiError

from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.write.writer import Commit
from support.queries import Change, apply_changes, read_changes
from support.soak import some
from support.tables import CDC_SCHEMA, NO_SERVICES, Row, WrittenTable, row

pytestmark = pytest.mark.thorough

COW, MOR = "COPY_ON_WRITE", "MERGE_ON_READ"
MODES = ("OP_KEY_ONLY", "DATA_BEFORE", "DATA_BEFORE_AFTER")
DAYS = ("2026-01-01", "2026-01-02")
SCHEMA = "id STRING, day STRING, ts BIGINT, note STRING"
CDC = {
    "hoodie.metadata.enable": "false",
    "hoodie.datasource.query.type": "incremental",
    "hoodie.datasource.query.incremental.format": "cdc",
}
BEGIN = "hoodie.datasource.read.begin.instanttime"
END = "hoodie.datasource.read.end.instanttime"
COMPACT = {"hoodie.compact.inline.max.delta.commits": "1"}

Write = tuple[str, list[Row]]


@dataclass
class Captured:
    """A table that logs changes, and its two writers."""

    hudi: RealHudi
    path: Path
    table_type: str
    mode: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> WrittenTable:
        return WrittenTable(LocalStorage(str(self.path)), SystemClock(), NO_SERVICES)

    @property
    def logging(self) -> dict[str, str]:
        return {
            "hoodie.table.cdc.enabled": "true",
            "hoodie.table.cdc.supplemental.logging.mode": self.mode,
            **self.options,
        }

    def create(self) -> None:
        self.path.mkdir()
        self.ours.create(self.table_type, options=self.logging, name="captured")

    def write(self, operation: str, rows: list[Row]) -> None:
        self.ours.write(operation, rows)

    def write_by_them(self, operation: str, rows: list[Row], *, small_files: str = "0") -> None:
        """Without small files to fill by default: real Hudi logs no inserts into them."""
        options = {
            "hoodie.parquet.small.file.limit": small_files,
            "hoodie.table.name": "captured",
            "hoodie.datasource.write.table.type": self.table_type,
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.partitionpath.field": "day",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.datasource.write.operation": operation.lower(),
            "hoodie.table.timeline.timezone": "UTC",
            "hoodie.metadata.enable": "false",
            **NO_SERVICES,
            **self.logging,
        }
        self.hudi.write(self.path, rows, SCHEMA, options)

    @property
    def times(self) -> list[str]:
        writes = load_snapshot(LocalStorage(str(self.path))).timeline.by_completion
        return [instant.completed_at or "" for instant in writes]

    @property
    def change_files(self) -> list[str]:
        return sorted(str(path) for path in self.path.glob("2026*/.*.cdc"))

    def changes_read_by_them(self, ranges: list[tuple[str | None, str]]) -> list[list[str]]:
        option_sets = [{**CDC, BEGIN: since or "000", END: until} for since, until in ranges]
        answers = self.hudi.read_all(self.path, option_sets)
        return [
            in_form(
                (change["op"], _row(change.get("before")), _row(change.get("after")))
                for change in rows
            )
            for rows in answers
        ]

    def check(self) -> None:
        """Both read the same changes of every range, and all changes together make the table."""
        times = self.times
        ranges: list[tuple[str | None, str]] = [(None, times[-1]), *pairwise(times)]
        storage = LocalStorage(str(self.path))
        ours = [in_form(read_changes(storage, *bounds)) for bounds in ranges]
        for bounds, mine, theirs in zip(
            ranges, ours, self.changes_read_by_them(ranges), strict=True
        ):
            assert (bounds, mine) == (bounds, theirs)
        assert apply_changes(read_changes(storage)) == self.ours.rows()


def _row(text: str | None) -> Row | None:
    parsed: Row | None = None if text is None else json.loads(text)
    return parsed


def in_form(changes: Iterable[Change]) -> list[str]:
    """Changes in no order; real Hudi has meta columns at times, and omits nulls."""

    def plain(row: Row | None) -> object:
        own = (row or {}).items()
        return sorted((k, v) for k, v in own if v is not None and not k.startswith("_hoodie_"))

    return sorted(f"{op} {plain(before)} {plain(after)}" for op, before, after in changes)


def history() -> list[Write]:
    """Everything that can be done to rows, a late and an empty change among it."""
    return [
        ("UPSERT", [row(f"k{n}", 1, "first" if n else None, DAYS[n % 2]) for n in range(8)]),
        (
            "UPSERT",
            [
                row("k0", 2, 'se"cond', DAYS[0]),
                row("k1", 0, "late", DAYS[1]),
                row("k2", 2, None, DAYS[0]),
                row("n1", 2, "new", DAYS[0]),
            ],
        ),
        ("INSERT", [row("n2", 2, "inserted", DAYS[0]), row("n3", 2, "inserted", "2026-01-03")]),
        ("DELETE", [row("k4", 3, "gone", DAYS[0]), row("nobody", 3, "gone", DAYS[1])]),
        ("UPSERT", [row("k1", 0, "late again", DAYS[1])]),
        ("UPSERT", [row("k0", 4, "third", DAYS[0]), row("k4", 4, "back", DAYS[0])]),
        ("INSERT_OVERWRITE", [row("o1", 5, "over", DAYS[1])]),
        ("DELETE", [row("o1", 6, "gone", DAYS[1])]),
        ("UPSERT", [row("k0", 7, "last", DAYS[0]), row("n3", 7, "last", "2026-01-03")]),
    ]


# Any mode and both types are among the few.
KINDS = some(list(product((COW, MOR), MODES)), 0, 2, 4)


@pytest.mark.parametrize(("table_type", "mode"), KINDS)
def test_real_hudi_shows_what_we_did(
    table_type: str, mode: str, real_hudi: RealHudi, tmp_path: Path
) -> None:
    table = Captured(real_hudi, tmp_path / "captured", table_type, mode)
    table.create()
    for number, (operation, rows) in enumerate(history()):
        table.write(operation, rows)
        if table_type == MOR and number == 3:
            assert isinstance(table.ours.services(COMPACT).run("compaction"), Commit)
    table.check()


@pytest.mark.parametrize(
    ("table_type", "mode"), some([(COW, MODES[0]), (COW, MODES[2]), (MOR, MODES[2])], 2)
)
def test_we_show_what_real_hudi_did(
    table_type: str, mode: str, real_hudi: RealHudi, tmp_path: Path
) -> None:
    table = Captured(real_hudi, tmp_path / "captured", table_type, mode)
    for operation, rows in history():
        table.write_by_them(operation, rows)
    table.check()


FULL = {
    "price": Decimal("-1.50"),
    "at": datetime(2026, 1, 1, 12, tzinfo=UTC),
    "on": date(2026, 1, 1),
    "blob": b"\x00\xff",
    "tags": [1, None],
    "info": {"a": None, "b": ["x", None]},
    "words": [("pi", 3.5)],
}


def test_real_hudi_reads_change_rows_of_every_type(real_hudi: RealHudi, tmp_path: Path) -> None:
    table = Captured(real_hudi, tmp_path / "captured", COW, MODES[2])
    table.create()
    for rows in ([{**row("a"), **FULL}, row("b")], [row("a", 2), {**row("b", 2), **FULL}]):
        table.ours.write("UPSERT", rows, schema=CDC_SCHEMA)
    (theirs,) = real_hudi.read_all(table.path, [{**CDC, BEGIN: table.times[0]}])
    parsed = [
        (change["op"], *(in_our_form(change[side]) for side in ("before", "after")))
        for change in theirs
    ]
    ours = read_changes(table.ours.storage, table.times[0])
    assert sorted(map(str, parsed)) == sorted(map(str, ours))


def in_our_form(text: str) -> Row:
    """A row of a change file as real Hudi reads it: decimals and bytes have other forms."""
    parsed: Row = json.loads(text)
    if parsed["price"] is not None:
        parsed["price"] = int.from_bytes(bytes(b % 256 for b in parsed["price"]), signed=True) / 100
        parsed["blob"] = base64.b64encode(parsed["blob"].encode("latin-1")).decode("ascii")
    return parsed


def test_we_show_what_real_hudi_did_and_does_not_show(real_hudi: RealHudi, tmp_path: Path) -> None:
    table = Captured(real_hudi, tmp_path / "captured", COW, MODES[2])
    for operation in ("UPSERT", "INSERT"):
        table.write_by_them(operation, [row(operation)], small_files="1000000")
    with pytest.raises(RealHudiError, match="There should be a cdc log file"):
        table.check()
    assert apply_changes(read_changes(table.ours.storage)) == table.ours.rows()


def test_real_hudi_deletes_the_change_files_of_a_failed_write_of_ours(
    real_hudi: RealHudi, tmp_path: Path
) -> None:
    table = Captured(real_hudi, tmp_path / "captured", COW, MODES[2])
    table.create()
    table.write("UPSERT", [row("a"), row("b")])
    for survive in count(1):
        died = replace(table, path=Path(shutil.copytree(table.path, tmp_path / f"{survive}")))
        storage = CrashingStorage(died.ours.storage, survive)
        with suppress(Crash):
            replace(died.ours, storage=storage).upsert([row("a", 2, "second")])
        if died.change_files:
            break
    assert load_snapshot(died.ours.storage).timeline.pending()
    died.write_by_them("UPSERT", [row("b", 2, "second")])
    assert len(died.change_files) == 1
    died.check()
    assert {record["id"]: record["note"] for record in died.ours.rows()} == {
        "a": "first",
        "b": "second",
    }


@pytest.mark.parametrize("table_type", some([COW, MOR], 0))
def test_both_write_in_turn(table_type: str, real_hudi: RealHudi, tmp_path: Path) -> None:
    table = Captured(real_hudi, tmp_path / "captured", table_type, MODES[2])
    table.create()
    turns: list[Callable[[str, list[Row]], None]] = [table.write, table.write_by_them]
    for number, (operation, rows) in enumerate(history()):
        turns[number % 2](operation, rows)
    table.check()
