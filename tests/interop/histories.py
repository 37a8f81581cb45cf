"""Rows of all types, and a table that we and real Hudi write in turn while a model keeps count."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from kinds import Kind
from real_hudi import RealHudi, Row

from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import Snapshot, load_snapshot
from support.golden import as_json
from support.tables import WrittenTable

_PLAIN_DAYS = ("2026-01-01", "2026-01-02", "2026-01-03", "2026-02-01")
_ODD_DAYS = ("2026/01", "a b:c=%", "ø*?", "[x]^")
_REGIONS = ("north", "south")

_Columns = dict[str, tuple[pa.DataType, str]]

_EARLY_COLUMNS: _Columns = {
    "id": (pa.string(), "STRING"),
    "region": (pa.string(), "STRING"),
    "day": (pa.string(), "STRING"),
    "ts": (pa.int64(), "BIGINT"),
    "count": (pa.int32(), "INT"),
    "x": (pa.float64(), "DOUBLE"),
    "f": (pa.float32(), "FLOAT"),
    "flag": (pa.bool_(), "BOOLEAN"),
    "price": (pa.decimal128(12, 2), "DECIMAL(12,2)"),
    "huge": (pa.decimal128(38, 10), "DECIMAL(38,10)"),
    "at": (pa.timestamp("us", "UTC"), "TIMESTAMP"),
    "born": (pa.date32(), "DATE"),
    "blob": (pa.binary(), "BINARY"),
    "tags": (pa.list_(pa.string()), "ARRAY<STRING>"),
    "sizes": (pa.list_(pa.int64()), "ARRAY<BIGINT>"),
    "marks": (pa.map_(pa.string(), pa.int64()), "MAP<STRING,BIGINT>"),
    "info": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        "STRUCT<a: BIGINT, b: STRING>",
    ),
    "deep": (
        pa.list_(pa.struct([("z", pa.string()), ("n", pa.list_(pa.int32()))])),
        "ARRAY<STRUCT<z: STRING, n: ARRAY<INT>>>",
    ),
    "_hoodie_is_deleted": (pa.bool_(), "BOOLEAN"),
}
# What the columns are later: always one more, and in some kinds of tables one is wider.
_ADDED: _Columns = {"added": (pa.string(), "STRING")}
_WIDENED: _Columns = {"count": (pa.int64(), "BIGINT")}
# Columns whose JSON hides digits, as real Hudi says them and as we do.
EXACT = {
    "id": "id",
    "huge": "cast(huge AS STRING)",
    "at": "unix_micros(at)",
    "blob": "hex(blob)",
}
_PROCEDURE_OPTIONS = (
    "hoodie.metadata.enable",
    "hoodie.metadata.index.column.stats.enable",
    "hoodie.write.auto.upgrade",
    "hoodie.write.complex.keygen.validation.enable",
)

# A compaction drops the deletes that it merges, and a clean deletes old versions: both run
# only where a test says so.
BY_HAND = {
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}


def types_written() -> set[str]:
    """The types of the columns, as Arrow names them for Parquet."""
    columns = (_EARLY_COLUMNS | _ADDED).values()
    return {str(kind).replace("item:", "element:") for kind, _ in columns}


@dataclass(frozen=True)
class Change:
    """A version of a row, or its end."""

    n: int
    ts: int
    deleted: bool = False


def at(ts: int, *numbers: int) -> list[Change]:
    """Versions of some rows."""
    return [Change(n, ts) for n in numbers]


def deletes(ts: int, *numbers: int) -> list[Change]:
    """Rows that say of themselves that they are deleted."""
    return [Change(n, ts, deleted=True) for n in numbers]


@dataclass
class Model:
    """What must be in the table: rows by number, and the order of deletes that logs remember."""

    kind: Kind
    rows: dict[int, Row] = field(default_factory=dict)
    deletes: dict[int, int] = field(default_factory=dict)

    def partition(self, n: int) -> tuple[str, ...]:
        where = place(self.kind, n)
        return tuple(where[name] for name in self.kind.partition_by)

    def upsert(self, changes: Iterable[Change], rows: Mapping[Change, Row]) -> None:
        for change in self._winners(changes):
            stored_ts = self.deletes.get(change.n)
            if change.n in self.rows:
                stored_ts = self.rows[change.n]["ts"]
            if self.kind.by_event and stored_ts is not None and change.ts < stored_ts:
                continue
            self.forget([change.n])
            if not change.deleted:
                self.rows[change.n] = rows[change]
            elif self.kind.merge_on_read and self.kind.by_event:
                self.deletes[change.n] = change.ts

    def forget(self, numbers: Iterable[int]) -> None:
        for n in numbers:
            self.rows.pop(n, None)
            self.deletes.pop(n, None)

    def forget_partitions(self, changes: Iterable[Change]) -> None:
        partitions = {self.partition(change.n) for change in changes}
        numbers = {*self.rows, *self.deletes}
        self.forget([n for n in numbers if self.partition(n) in partitions])

    def _winners(self, changes: Iterable[Change]) -> Iterable[Change]:
        newest: dict[int, Change] = {}
        for change in changes:
            old = newest.get(change.n)
            if not (self.kind.by_event and old and change.ts < old.ts):
                newest[change.n] = change
        return newest.values()


def place(kind: Kind, n: int) -> dict[str, str]:
    """Where a row is: its key and its partition, by its number alone."""
    days = _ODD_DAYS if kind.style == "encoded" else _PLAIN_DAYS
    # Of a composite key the first part alone does not identify a row.
    name = n // 2 if kind.keys == "composite" else n
    day = days[3] if n >= 36 else days[n % 3]
    return {"id": f"k{name:02d}", "region": _REGIONS[n % 2], "day": day}


def version(kind: Kind, change: Change, *, later: bool) -> Row:
    """A row of all types; every fifth is null wherever it may be."""
    # Of event times, which are of thirteen digits, only the last ones make other columns.
    n, ts = change.n, change.ts % 1000
    row: Row = {**place(kind, n), "ts": change.ts, "_hoodie_is_deleted": change.deleted}
    if (n + ts) % 5 == 0:
        return row
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n - 9000, microseconds=1007 * ts + 1)
    row |= {
        "count": n + (2**40 if later and kind.evolution == "widened" else 0),
        "x": n / 4,
        "f": ts / 8,
        "flag": n % 2 == 0,
        "price": Decimal(n * 100 + ts) / 100,
        "huge": Decimal(f"{n - 3}12345678901234567890.0123456789"),
        "at": moment,
        "born": date(1970, 1, 1) + timedelta(days=(n - 5) * ts),
        "blob": bytes([n, 0, 255]),
        "tags": [f"t{n}", ""][: n % 3],
        "sizes": [n, -(2**40), ts][: n % 4],
        "marks": {"n": n, "æ": ts} if n % 4 else {},
        "info": {"a": n, "b": None if n % 3 else "b"},
        "deep": [{"z": "z", "n": [n, ts]}, {"z": None, "n": []}][: n % 3],
    }
    return {**row, "added": f"at {ts}"} if later else row


@dataclass
class SharedTable:
    """A table, its model, and its two writers."""

    hudi: RealHudi
    path: Path
    kind: Kind
    model: Model = field(init=False)
    later: bool = False
    catalogued: bool = False

    def __post_init__(self) -> None:
        self.model = Model(self.kind)

    @property
    def written(self) -> WrittenTable:
        storage = LocalStorage(str(self.path))
        options = {**self.kind.write_options, **BY_HAND}
        return WrittenTable(storage, SystemClock(), options, self._schema)

    @property
    def snapshot(self) -> Snapshot:
        return load_snapshot(self.written.storage)

    @property
    def completion_times(self) -> list[str]:
        return sorted(i.completed_at or "" for i in self.snapshot.timeline.completed_writes)

    @property
    def is_indexed(self) -> bool:
        """Whether readers find a metadata table to trust."""
        return bool(self.snapshot.config.properties.get("hoodie.table.metadata.partitions"))

    @property
    def _columns(self) -> _Columns:
        columns = _EARLY_COLUMNS | (_ADDED if self.later else {})
        return columns | (_WIDENED if self.widened else {})

    @property
    def widened(self) -> bool:
        return self.later and self.kind.evolution == "widened"

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([(name, kind) for name, (kind, _) in self._columns.items()])

    @property
    def _ddl(self) -> str:
        return ", ".join(f"`{name}` {ddl}" for name, (_, ddl) in self._columns.items())

    @property
    def suits_hudi_rs(self) -> bool:
        """It does not read logs of older columns if these became wider, or are lists in Avro."""
        return not (
            self.later
            and self.kind.merge_on_read
            and (self.widened or self.kind.files == "mor-avro")
        )

    def create(self, *, event_time: str | None = None) -> Self:
        """Let us begin the table."""
        self.written.create(
            self.kind.table_type,
            key=self.kind.record_key,
            partition_by=self.kind.partition_by,
            ordering=self.kind.ordering,
            event_time=event_time,
            options=self.kind.table_options,
            name="shared",
        )
        return self

    def ours(
        self,
        operation: str,
        changes: list[Change],
        more: Mapping[str, str] | None = None,
        *,
        ordered: bool = False,
    ) -> None:
        """A write by us."""
        rows = self._remember(operation, changes, ordered=ordered)
        self.written.write(operation.upper(), rows, more, ordered=ordered)

    def theirs(
        self, operation: str, changes: list[Change], more: Mapping[str, str] | None = None
    ) -> None:
        """The same by real Hudi."""
        rows = self._remember(operation, changes, ordered=False)
        options = {
            **self.kind.their_options,
            "hoodie.table.name": "shared",
            "hoodie.datasource.write.operation": operation,
            **(more or {}),
        }
        self.hudi.write(self.path, map(as_input, rows), self._ddl, options)

    def delete_partition_of(self, n: int) -> None:
        """Delete the whole partition of a row, by us."""
        paths = {
            row["_hoodie_partition_path"]
            for row in self.written.rows(meta=True)
            if self.model.partition(n) == tuple(row[name] for name in self.kind.partition_by)
        }
        self.written.delete_partitions(*paths)
        self.model.forget_partitions(at(0, n))

    def service(self, procedure: str, options: str = "") -> None:
        """Let real Hudi plan and run a service."""
        listed = f"hoodie.metadata.enable={self._metadata},{options}".rstrip(",")
        self._call(
            f"{procedure}(op => 'scheduleAndExecute', path => '{self.path}', options => '{listed}')"
        )

    def roll_back_theirs(self, changes: list[Change]) -> None:
        """Let real Hudi upsert rows and roll that commit back."""
        before = deepcopy(self.model)
        self.theirs("upsert", changes)
        self.model = before
        newest = self.snapshot.timeline.completed_writes[-1].requested_at
        self._call(f"rollback_to_instant(table => '{self._name}', instant_time => '{newest}')")

    def clean(self) -> None:
        """Let real Hudi keep as few old files as it can."""
        self._call(
            f"run_clean(table => '{self._name}', retain_commits => 1, "
            f"options => 'hoodie.metadata.enable={self._metadata}')"
        )

    def archive(self, settings: Mapping[str, str] | None = None) -> None:
        """Let real Hudi keep as few instants as it can on the timeline."""
        self._call(
            f"archive_commits(path => '{self.path}', min_commits => 2, max_commits => 3, "
            f"retain_commits => 1, enable_metadata => {self._metadata})",
            settings,
        )
        assert self.snapshot.archived

    def archived_by_their_reading(self) -> set[str]:
        """The requested times of the writes that real Hudi finds in the archived timeline."""
        rows = self._call(
            f"show_archived_commits(table => '{self._name}', limit => 1000, "
            "start_ts => '20200101000000000', end_ts => '20990101000000000')"
        )
        return {row["commit_time"] for row in rows}

    def _call(self, procedure: str, more: Mapping[str, str] | None = None) -> list[Row]:
        # What its procedures do not take as an argument, they take from the session.
        settings = {key: self.kind.their_options[key] for key in _PROCEDURE_OPTIONS}
        settings |= more or {}
        if not self.catalogued:
            self.hudi.sql(f"CREATE TABLE {self._name} USING hudi LOCATION '{self.path}'", settings)
            self.catalogued = True
        return self.hudi.sql(f"call {procedure}", settings)

    @property
    def _metadata(self) -> str:
        return self.kind.their_options["hoodie.metadata.enable"]

    @property
    def _name(self) -> str:
        """The table in real Hudi's catalogue, which some of its procedures need."""
        return self.path.parent.name

    def _remember(self, operation: str, changes: list[Change], *, ordered: bool) -> list[Row]:
        rows = {change: version(self.kind, change, later=self.later) for change in changes}
        if operation == "delete":
            ends = [Change(change.n, change.ts, deleted=True) for change in changes]
            if ordered:
                self.model.upsert(ends, {})
            else:
                self.model.forget(change.n for change in changes)
        else:
            if operation.startswith("insert_overwrite"):
                self.model.forget_partitions(changes)
            self.model.upsert(changes, rows)
        return [rows[change] for change in changes]

    @property
    def expected(self) -> list[str]:
        """The rows of the model."""
        return sorted(map(as_json, self.model.rows.values()))


def as_input(row: Row) -> Row:
    """A row as real Hudi takes it: JSON in which numbers keep their digits."""
    return {name: _text(value) for name, value in row.items()}


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.isoformat() if isinstance(value, date) else value
