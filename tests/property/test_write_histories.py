"""Any history of writes leaves the rows that a plain model of it has, for every kind of table."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import InvalidError
from support.soak import sized
from support.tables import Row, WrittenTable, row

BY_FILE_GROUP = {"lakewright.write.partition.max.bytes": "1"}
TABLES = {
    "copy on write": ("COPY_ON_WRITE", {}),
    "merge on read": ("MERGE_ON_READ", {}),
    "merge on read, Avro blocks": ("MERGE_ON_READ", {"hoodie.logfile.data.block.format": "avro"}),
    "copy on write, bloom index": ("COPY_ON_WRITE", {"hoodie.index.type": "BLOOM"}),
    "copy on write, no small files": (
        "COPY_ON_WRITE",
        {"hoodie.parquet.small.file.limit": "0"},
    ),
    "merge on read, tiny files": (
        "MERGE_ON_READ",
        {"hoodie.parquet.max.file.size": "5000", "hoodie.logfile.max.size": "500"},
    ),
    "copy on write, a task for each file group": ("COPY_ON_WRITE", BY_FILE_GROUP),
    "merge on read, a task for each file group": ("MERGE_ON_READ", BY_FILE_GROUP),
}
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}

KEYS = [f"k{n}" for n in range(8)]
DAYS = ["2026-01-01", "2026-01-02"]
keys = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(DAYS)), min_size=1, max_size=6)
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["UPSERT", "UPSERT", "LATE", "DELETE", "INSERT", "INSERT_OVERWRITE", "DELETE_PARTITION"]
        ),
        keys,
    ),
    min_size=1,
    max_size=7,
)


@dataclass
class Model:
    """Rows by partition and key; time goes on with every step."""

    now: int = 100
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)

    def apply(self, table: WrittenTable, kind: str, chosen: list[tuple[str, str]]) -> None:
        self.now += 1
        named = list(dict.fromkeys((day, key) for key, day in chosen))
        match kind:
            case "UPSERT":
                new = [row(key, self.now, f"at {self.now}", day) for day, key in named]
                # An older version of the same key in the same batch never wins.
                older = [{**record, "ts": self.now - 1, "note": "older"} for record in new[:2]]
                table.write("UPSERT", [*older, *new])
                self.rows |= {(record["day"], record["id"]): record for record in new}
            case "LATE":
                existing = [pair for pair in named if pair in self.rows]
                table.write("UPSERT", [row(key, 1, "late", day) for day, key in existing])
            case "DELETE":
                table.write("DELETE", [row(key, 0, None, day) for day, key in named])
                for pair in named:
                    self.rows.pop(pair, None)
            case "INSERT":
                fresh = [pair for pair in named if pair not in self.rows]
                new = [row(key, self.now, f"at {self.now}", day) for day, key in fresh]
                table.write("INSERT", new)
                self.rows |= {(record["day"], record["id"]): record for record in new}
            case "INSERT_OVERWRITE":
                new = [row(key, self.now, "over", day) for day, key in named]
                table.write("INSERT_OVERWRITE", new)
                days = {day for day, _ in named}
                self.rows = {p: r for p, r in self.rows.items() if p[0] not in days}
                self.rows |= {(record["day"], record["id"]): record for record in new}
            case "DELETE_PARTITION":
                table.delete_partitions(named[0][0])
                self.rows = {p: r for p, r in self.rows.items() if p[0] != named[0][0]}


def check(table: WrittenTable, history: list[tuple[str, list[tuple[str, str]]]]) -> None:
    model = Model()
    model.apply(table, "UPSERT", [("k0", DAYS[0])])
    for kind, chosen in history:
        model.apply(table, kind, chosen)
        assert table.rows() == sorted(model.rows.values(), key=str)


few = settings(max_examples=sized(8, soak=300))


@pytest.mark.parametrize("kind", TABLES.values(), ids=list(TABLES))
@few
@given(history=steps)
def test_any_history(
    kind: tuple[str, dict[str, str]], history: list[tuple[str, list[tuple[str, str]]]]
) -> None:
    table_type, options = kind
    check(WrittenTable(options=options).create(table_type), history)


@pytest.mark.parametrize("options", [{}, BY_FILE_GROUP], ids=["a partition", "a bucket"])
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@few
@given(history=steps)
def test_any_history_with_buckets(
    table_type: str, options: dict[str, str], history: list[tuple[str, list[tuple[str, str]]]]
) -> None:
    """The tasks of a write own partitions or, if these are too large, buckets."""
    check(WrittenTable(options=options).create(table_type, options=BUCKETS), history)


def test_a_model_notices_wrong_options() -> None:
    with pytest.raises(InvalidError, match="no such option"):
        WrittenTable(options={"hoodie.parquet.max.file.sizes": "1"}).create().upsert([row("a")])
