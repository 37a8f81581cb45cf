"""Where queries read our tables in ways that Spark does not know."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError
from lakewright.sql.parser import table_references

TEXTS = {
    "SELECT * FROM t TIMESTAMP AS OF '2026-01-01 10:00:00' WHERE a": (
        "t TIMESTAMP AS OF '2026-01-01 10:00:00'",
        ("t",),
        "2026-01-01 10:00:00",
        False,
    ),
    "SELECT * FROM db.t VERSION AS OF 20260101000000000 AS x": (
        "db.t VERSION AS OF 20260101000000000",
        ("db", "t"),
        "20260101000000000",
        True,
    ),
    "SELECT * FROM t FOR SYSTEM_VERSION AS OF '1' x": (
        "t FOR SYSTEM_VERSION AS OF '1'",
        ("t",),
        "1",
        True,
    ),
    "SELECT * FROM t FOR TIMESTAMP AS OF DATE '2026-01-01'": (
        "t FOR TIMESTAMP AS OF DATE '2026-01-01'",
        ("t",),
        "2026-01-01",
        False,
    ),
    "SELECT * FROM t TIMESTAMP AS OF now() - INTERVAL 1 DAY": (
        "t TIMESTAMP AS OF now",
        ("t",),
        "",
        False,
    ),
    "SELECT * FROM hudi.`/data/a b` JOIN s ON true": (
        "hudi.`/data/a b`",
        ("hudi", "/data/a b"),
        None,
        False,
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_one_reading(text: str) -> None:
    (reference,) = table_references(text)
    span, name, as_of, aliased = TEXTS[text]
    assert text[reference.start : reference.end] == span
    assert (reference.name, reference.as_of, reference.aliased) == (name, as_of, aliased)


def test_changes_of_a_table() -> None:
    text = "SELECT op FROM hudi_table_changes('db.t', 'cdc', 'earliest', '2026') c"
    (reference,) = table_references(text)
    assert (reference.name, reference.changes) == (("db.t",), ("cdc", "earliest", "2026"))
    assert reference.aliased
    with pytest.raises(InvalidError, match="in quotes"):
        table_references("SELECT * FROM hudi_table_changes(t, 'cdc', 'earliest')")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 't TIMESTAMP AS OF x'",
        "SELECT version AS of FROM t",
        "SELECT hudi.`a` FROM hudi",
        "SELECT a -- FROM t TIMESTAMP AS OF '1'",
        "SELECT count(*) AS off FROM t",
        "SELECT 'unfinished AS OF",
    ],
)
def test_no_reading(text: str) -> None:
    assert table_references(text) == ()
