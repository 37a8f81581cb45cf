"""A consumer of the table's change feed: it keeps totals by city, from changes alone."""

from __future__ import annotations

from pyspark.sql import functions as F

import lakewright as lw
from lakewright.demo.events import FINISHED
from lakewright.demo.expected import Totals
from lakewright.demo.story import Consumed

_COLUMNS = ["city", "status", "fare_cents"]
_DDL = "city string, status string, fare_cents bigint"


class Consumer:
    """Counts rides by city: a change takes the row before it off, and puts the one after it on.

    What was read is a range of completion times, so no write is passed over, however long it took.
    """

    def __init__(self, table: lw.Table) -> None:
        self._table = table
        self.totals: dict[str, Totals] = {}
        self.consumed = Consumed()

    def follow(self) -> int:
        """Read what has completed since the checkpoint; gives how many changes there were."""
        since = self.consumed.checkpoint
        changes = self._table.changes(since=since, format="cdc", columns=_COLUMNS)
        signed = changes.dataframe.select(
            F.explode(
                F.array(
                    F.struct(F.lit(-1).alias("sign"), F.col("before").alias("row")),
                    F.struct(F.lit(1).alias("sign"), F.col("after").alias("row")),
                )
            ).alias("each"),
            (F.col("op") == "d").alias("is_delete"),
        ).where("each.row IS NOT NULL")
        parsed = signed.select("each.sign", "is_delete", F.from_json("each.row", _DDL).alias("row"))
        counts = parsed.groupBy("row.city").agg(
            F.sum("sign"),
            F.sum(F.col("sign") * (F.col("row.status") == FINISHED).cast("int")),
            F.sum(F.col("sign") * F.col("row.fare_cents")),
            F.sum(((F.col("sign") > 0) | F.col("is_delete")).cast("int")),
        )
        told = 0
        for city, rides, finished, cents, number in counts.collect():
            before = self.totals.get(city, Totals())
            self.totals[city] = before + Totals(rides, finished, cents)
            told += number
        consumed = self.consumed
        self.consumed = Consumed(
            consumed.changes + told, consumed.commits + len(changes.instants), changes.checkpoint
        )
        return told
