"""The merge on columns against the rules applied row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakewright.model.merge import Deletes, MergeRule, Upserts, merge_logs, merge_with_base
from lakewright.model.schema import RECORD_KEY

SCHEMA = pa.schema(
    [
        pa.field(RECORD_KEY, pa.string()),
        pa.field("ts", pa.int64()),
        pa.field("minor", pa.string()),
        pa.field("a", pa.int64()),
        pa.field("b", pa.int64()),
        pa.field("_hoodie_is_deleted", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Version:
    """One version of a key: a row, a row in part, or a delete."""

    key: str
    ts: int | None
    minor: str
    a: int
    b: int
    kind: str  # row, flagged, partial, delete, unconditional

    @property
    def order(self) -> tuple[object, ...]:
        return (self.ts is not None, self.ts or 0)

    def row(self) -> dict[str, object]:
        return {"ts": self.ts, "minor": self.minor, "a": self.a, "b": self.b}


KINDS = ("row", "row", "flagged", "delete", "unconditional")


def versions(
    kinds: tuple[str, ...], ts: st.SearchStrategy[int | None]
) -> st.SearchStrategy[Version]:
    return st.builds(
        Version,
        key=st.sampled_from(["k1", "k2", "k3", "k4"]),
        ts=ts,
        minor=st.sampled_from("xyz"),
        a=st.integers(0, 9),
        b=st.integers(0, 9),
        kind=st.sampled_from(kinds),
    )


TIMES = st.integers(1, 4)
BASE = st.lists(versions(("row",), TIMES), max_size=4, unique_by=lambda v: v.key)


def block(version: Version, ordering: tuple[str, ...]) -> Upserts | Deletes:
    """Each version is its own block: how versions are cut into blocks must not matter."""
    if version.kind in ("delete", "unconditional"):
        free = version.kind == "unconditional"
        values = {"ts": pa.array([version.ts], pa.int64()), "minor": pa.array([version.minor])}
        arrays = tuple(values[name] for name in ordering)
        return Deletes(pa.array([version.key]), () if free else arrays, pa.array([free]))
    row = {
        RECORD_KEY: version.key,
        **version.row(),
        "_hoodie_is_deleted": version.kind == "flagged",
    }
    carried = None
    if version.kind == "partial":
        carried = frozenset({RECORD_KEY, "ts", "minor", "a", "_hoodie_is_deleted"})
        row["b"] = None
    return Upserts(pa.Table.from_pylist([row], SCHEMA), carried)


def merged(
    base: list[Version], logs: list[Version], ordering: tuple[str, ...]
) -> dict[str, object]:
    rule = MergeRule(ordering)
    outcome = merge_logs([block(version, ordering) for version in logs], SCHEMA, rule)
    rows = [{RECORD_KEY: v.key, **v.row(), "_hoodie_is_deleted": False} for v in base]
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=2)
    merged_rows: dict[str, object] = {}
    for table in merge_with_base(batches, outcome, rule):
        assert table.schema == SCHEMA
        for row in table.to_pylist():
            key = row.pop(RECORD_KEY)
            del row["_hoodie_is_deleted"]
            assert key not in merged_rows
            merged_rows[key] = row
    return merged_rows


def expected(
    base: list[Version], logs: list[Version], ordering: tuple[str, ...]
) -> dict[str, object]:
    """The rules, one version after the other: the logs among themselves, then with the base."""
    state: dict[str, Version] = {}
    for version in logs:
        current = state.get(version.key)
        if current is None or current.kind == "unconditional" or _wins(version, current, ordering):
            state[version.key] = version
    for version in base:
        current = state.get(version.key)
        if current is None or not _wins(current, version, ordering):
            state[version.key] = version
    return {key: v.row() for key, v in state.items() if v.kind == "row"}


def _wins(newer: Version, older: Version, ordering: tuple[str, ...]) -> bool:
    free = not ordering or newer.kind == "unconditional"
    return free or _order(newer, ordering) >= _order(older, ordering)


def _order(version: Version, ordering: tuple[str, ...]) -> tuple[object, ...]:
    return (*version.order, version.minor) if "minor" in ordering else version.order


@given(BASE, st.lists(versions(KINDS, TIMES), max_size=12))
def test_the_last_version_wins_by_commit_time(base: list[Version], logs: list[Version]) -> None:
    assert merged(base, logs, ()) == expected(base, logs, ())


@given(BASE, st.lists(versions(KINDS, TIMES), max_size=12))
def test_the_highest_ordering_value_wins_by_event_time(
    base: list[Version], logs: list[Version]
) -> None:
    assert merged(base, logs, ("ts",)) == expected(base, logs, ("ts",))


@given(BASE, st.lists(versions(KINDS, TIMES), max_size=12))
def test_several_ordering_fields_compare_one_after_the_other(
    base: list[Version], logs: list[Version]
) -> None:
    ordering = ("ts", "minor")
    assert merged(base, logs, ordering) == expected(base, logs, ordering)


@given(
    st.lists(versions(("row",), st.none() | TIMES), max_size=4, unique_by=lambda v: v.key),
    st.lists(versions(("row", "delete"), st.none() | TIMES), max_size=12),
)
def test_no_ordering_value_is_the_lowest(base: list[Version], logs: list[Version]) -> None:
    logs = [v for v in logs if v.kind == "row" or v.ts is not None]
    assert merged(base, logs, ("ts",)) == expected(base, logs, ("ts",))


def expected_in_part(base: list[Version], logs: list[Version]) -> dict[str, Any]:
    """Logs among themselves first, then on top of the base."""
    state: dict[str, dict[str, Any]] = {}
    for version in logs:
        patch = {k: v for k, v in version.row().items() if version.kind == "row" or k != "b"}
        current = state.get(version.key, {})
        late = bool(current) and (version.ts or 0) < current["ts"]
        state[version.key] = {**patch, **current} if late else {**current, **patch}
    result: dict[str, dict[str, Any]] = {v.key: v.row() for v in base}
    for key, patch in state.items():
        under = result.get(key)
        if under is None:
            result[key] = {"b": None, **patch}
        elif patch["ts"] >= under["ts"]:
            result[key] = {**under, **patch}
    return result


@given(BASE, st.lists(versions(("row", "partial", "partial", "partial"), TIMES), max_size=12))
def test_rows_updated_in_part_keep_their_other_columns(
    base: list[Version], logs: list[Version]
) -> None:
    assert merged(base, logs, ("ts",)) == expected_in_part(base, logs)
