"""The rows that are raced with: TPC-H's lineitem, and changes to it, as plain parquet files.

Every change comes with the rows it takes out of the table (`*_old`), so that the sum over the rows
that must be there afterwards is known without asking any of the systems.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.plan import COMMIT_ROWS, HOT_YEAR, Kind

PARTS = 4
TINY_ROWS = 10_000
NEW_KEYS = 10**12  # above every order key of the generator

ROWS, TINY = "rows", "tiny_rows"


@dataclass(frozen=True, slots=True)
class Source:
    """A folder of data sets, each a folder of parquet files."""

    folder: Path

    def files(self, name: str) -> list[str]:
        """The files of a data set, in order."""
        return [str(file) for file in sorted((self.folder / name).glob("*.parquet"))]

    def commit(self, number: int) -> str:
        """The file of one tiny commit."""
        return self.files("tiny")[number]


def loaded(kind: Kind) -> str:
    """The data set that a table begins with."""
    return TINY if kind.is_tiny else ROWS


def generate_lineitem(program: Path, scale: float, folder: Path) -> list[Path]:
    """Let the generator of TPC-H write lineitem; gives its files."""
    command = [program, "parquet", "-s", str(scale), "--tables", "lineitem"]
    command += ["--parts", str(PARTS), "--output-dir", folder]
    subprocess.run([str(argument) for argument in command], check=True, stdout=subprocess.DEVNULL)
    return sorted((folder / "lineitem").glob("*.parquet"))


def prepare(lineitem: list[Path], folder: Path, commits: int, feed: int) -> Source:
    """Write all data sets of the race, made from the files of lineitem."""
    source = Source(folder)
    offset = 0
    for number, file in enumerate(lineitem):
        rows = with_columns(pq.read_table(file))
        for name, part in changes(rows, offset).items():
            _write(part, folder / name / f"part-{number}.parquet")
        if number == 0:
            for name, part in (*tiny_changes(rows, commits), *feed_changes(rows, feed)):
                _write(part, folder / name)
        offset += rows.num_rows
    return source


def with_columns(rows: pa.Table) -> pa.Table:
    """The generated rows with `ts`, the ordering, and `ship_year`, the partition."""
    columns = {
        field.name: column.cast(pa.string()) if field.type == pa.string_view() else column
        for field, column in zip(rows.schema, rows.columns, strict=True)
    }
    years = pc.cast(pc.year(rows["l_shipdate"]), pa.string())
    times = pa.array(np.zeros(rows.num_rows, dtype=np.int64))
    return pa.table({**columns, "ts": times, "ship_year": years})


def changes(rows: pa.Table, offset: int) -> dict[str, pa.Table]:
    """The rows themselves and what each workload changes; `offset` rows came before these."""
    draw = scattered(np.arange(offset, offset + rows.num_rows, dtype=np.uint64))
    hot = np.asarray(pc.equal(rows["ship_year"], HOT_YEAR))
    spread = rows.filter(pa.array(draw < 50))
    fresh = renumbered(rows.filter(pa.array((draw >= 50) & (draw < 70))), NEW_KEYS)
    heated = rows.filter(pa.array(hot & (draw >= 100) & (draw < 300)))
    deleted = rows.filter(pa.array((draw >= 300) & (draw < 310)))
    return {
        ROWS: rows,
        "spread": pa.concat_tables([updated(spread, 1), fresh]),
        "spread_old": spread,
        "touch": updated(spread, 1),
        "touch_old": spread,
        "hot": updated(heated, 1),
        "hot_old": heated,
        "delete": timed(deleted, 1),
        "delete_old": deleted,
    }


def tiny_changes(rows: pa.Table, commits: int) -> Iterator[tuple[str, pa.Table]]:
    """A small table of one partition, and commits: half updates of rows of their own, half new."""
    base = rows.filter(pc.equal(rows["ship_year"], HOT_YEAR)).slice(0, TINY_ROWS)
    half = COMMIT_ROWS // 2
    if base.num_rows < half * commits:
        raise ValueError(
            f"{commits} commits need {half * commits} rows of {HOT_YEAR} in the first file; "
            f"there are {base.num_rows}: take a greater --scale"
        )
    yield f"{TINY}/part-0.parquet", base
    for number in range(commits):
        old = base.slice(number * half, half)
        fresh = renumbered(old, NEW_KEYS)
        yield f"tiny_old/{number:04}.parquet", old
        yield f"tiny/{number:04}.parquet", pa.concat_tables([updated(old, number + 1), fresh])


def feed_changes(rows: pa.Table, commits: int) -> Iterator[tuple[str, pa.Table]]:
    """Commits to the whole table, each to one year: half updates of rows of its own, half new."""
    years = sorted(set(rows["ship_year"].to_pylist()))
    half = COMMIT_ROWS // 2
    for number in range(commits):
        turn, year = divmod(number, len(years))
        base = rows.filter(pc.equal(rows["ship_year"], years[year]))
        old = base.slice(turn * half % max(base.num_rows - half, 1), half)
        fresh = renumbered(old, (number + 1) * NEW_KEYS)
        yield f"feed/{number:04}.parquet", pa.concat_tables([updated(old, number + 1), fresh])


def scattered(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A number below 1000 for each row, spread evenly and the same in every run."""
    mixed = (numbers * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return mixed % np.uint64(1000)


def updated(rows: pa.Table, time: int) -> pa.Table:
    """Newer versions of the same keys."""
    comments = pc.binary_join_element_wise(rows["l_comment"], f"changed {time}", " ")
    quantities = pa.array([time] * rows.num_rows).cast(pa.decimal128(19, 0))
    quantity = rows.schema.field("l_quantity").type
    changed = _with(rows, "l_comment", comments)
    return timed(_with(changed, "l_quantity", quantities.cast(quantity)), time)


def timed(rows: pa.Table, time: int) -> pa.Table:
    """The same rows at a later time."""
    return _with(rows, "ts", pa.array(np.full(rows.num_rows, time, dtype=np.int64)))


def renumbered(rows: pa.Table, by: int) -> pa.Table:
    """The same rows under new keys."""
    return _with(rows, "l_orderkey", pc.add(rows["l_orderkey"], by))


def _with(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)


def _write(rows: pa.Table, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, file, compression="zstd")
