"""Change data as tests look at it: what a range says, and what becomes of a table that obeys it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lakewright.scan.cdc.planner import plan_cdc
from lakewright.scan.query_options import begin_of_range
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_cdc_plan

Row = dict[str, Any]
Change = tuple[str, Row | None, Row | None]

# Which of the rows before and after a change is missing.
_SIDES = {"i": (True, False), "u": (False, False), "d": (False, True)}
_EXPECTED = Path(__file__).parent / "golden" / "cow_cdc.expected.json"


def change(op: str, before: str | None, after: str | None) -> Change:
    """A change whose rows are no longer texts."""
    return op, _row(before), _row(after)


def _row(text: str | None) -> Row | None:
    found: Row | None = None if text is None else json.loads(text)
    return found


def changes_of(
    storage: Storage, since: str | None = None, until: str | None = None, **how: Any
) -> list[Change]:
    """What a range did, in order."""
    plan = plan_cdc(load_snapshot(storage), since=since, until=until, **how).plan
    rows = read_cdc_plan(storage, plan).to_pylist()
    return [change(row["op"], row["before"], row["after"]) for row in rows]


def applied(
    changes: Iterable[Change], key: tuple[str, ...] = ("id",), to: Iterable[Row] = ()
) -> list[Row]:
    """The rows of a table after changes, each of which must fit what is there."""

    def of(row: Row | None) -> tuple[Any, ...]:
        assert row is not None
        return tuple(row[name] for name in key)

    rows = {of(row): row for row in to}
    for op, before, after in changes:
        assert (before is None, after is None) == _SIDES[op]
        if before is None:
            assert of(after) not in rows
        else:
            assert rows.pop(of(before)) == before
        if after is not None:
            rows[of(after)] = after
    return sorted(rows.values(), key=str)


def recorded() -> list[tuple[str | None, list[Change]]]:
    """What real Hudi tells of its own table, range by range."""
    found = json.loads(_EXPECTED.read_text())["cdc"]
    return [
        (begin_of_range(item["after"]), [plain(*json.loads(r).values()) for r in item["rows"]])
        for item in found
    ]


def plain(after: Row | None, before: Row | None, op: str) -> Change:
    """A change of real Hudi, whose rows have meta columns and no nulls at times."""
    return op, before and same_form(before), after and same_form(after)


def same_form(row: Row) -> Row:
    """A row without what differs by the way in which real Hudi came to it.

    Rows from change files have nulls and decimals as bytes; others have meta columns and no
    decimals at all.
    """
    own = {
        name: value
        for name, value in row.items()
        if value is not None and not name.startswith("_hoodie_") and value != {"zero": False}
    }
    if isinstance(own.get("amount"), list):
        unscaled = int.from_bytes(bytes(b % 256 for b in own["amount"]), signed=True)
        own["amount"] = unscaled / 100
    return own
