"""The names of new file groups."""

from __future__ import annotations

from lakewright.testing.clock import ManualClock
from support.tables import WrittenTable, row

LIKE_A_BUCKET = "00000012-3f3e-4c58-b0a5-4a7d3e5b7c11"


class Unlucky(ManualClock):
    """A clock whose next random id looks like that of a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0

    def new_id(self) -> str:
        self.drawn += 1
        return LIKE_A_BUCKET if self.drawn % 2 else super().new_id()


def test_no_group_is_named_like_a_bucket_by_chance() -> None:
    table = WrittenTable(clock=Unlucky()).create()
    table.upsert([row("a", 1)])
    table.upsert([row("a", 2), row("b", 2)])
    assert [record["ts"] for record in table.rows()] == [2, 2]
