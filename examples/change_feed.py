"""A consumer of changes that may be killed at any time: each change is applied once.

It keeps a total for each city in a file, and in the same file how far it has read. The file is
replaced in one step, so both are of one moment; a run that dies before that step did nothing.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import functions as F

import lakewright as lw
from lakewright.demo import sample_table, start_spark


def consume(table: lw.Table, state: Path, batch: int = 2) -> dict[str, float]:
    """Bring the totals up to date, a few writes at a time."""
    progress = (
        json.loads(state.read_text("utf-8")) if state.exists() else {"at": None, "totals": {}}
    )
    while True:
        changes = table.changes(since=progress["at"], limit=batch, format="cdc")
        if not changes.instants:
            return dict(progress["totals"])
        totals = add(progress["totals"], changes)
        progress = {"at": changes.checkpoint, "totals": totals}
        temporary = state.with_suffix(".new")
        temporary.write_text(json.dumps(progress), "utf-8")
        os.replace(temporary, state)


def add(totals: dict[str, float], changes: lw.Changes) -> dict[str, float]:
    """The totals after some changes: what a row was goes, what it is comes."""
    fields = "city STRING, fare DOUBLE"
    sides = [
        changes.dataframe.select(F.from_json(side, fields).alias("row"), F.lit(sign).alias("sign"))
        for side, sign in (("before", -1), ("after", 1))
    ]
    images = sides[0].union(sides[1]).where("row IS NOT NULL")
    sums = images.groupBy("row.city").agg(F.sum(F.col("sign") * F.col("row.fare")).alias("fares"))
    after = dict(totals)
    for row in sums.collect():
        after[row.city] = round(after.get(row.city, 0.0) + row.fares, 2)
    return after


def main(path: str | None = None) -> dict[str, float]:
    spark = start_spark()
    table = lw.open(path or sample_table(), spark=spark)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "totals.json"
        totals = consume(table, state)
        repeated = consume(table, state)  # nothing new: nothing is counted twice
    assert totals == repeated
    for city, fares in sorted(totals.items()):
        print(f"{city:<12} {fares:10.2f}")
    return totals


if __name__ == "__main__":
    main(*sys.argv[1:])
