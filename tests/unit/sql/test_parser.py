"""Statements that change tables, from their text: nothing in them is evaluated or printed anew."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.sql.parser import (
    Change,
    Clause,
    Delete,
    DropPartitions,
    Insert,
    Merge,
    MergeAction,
    Target,
    Truncate,
    Update,
    When,
    find_target,
    parse_change,
)
from lakewright.sql.tokenizer import tokenize, with_named_markers


def parsed(text: str) -> tuple[Target, Change] | None:
    statement = find_target(text)
    return None if statement is None else parse_change(statement)


T = Target(("t",))

CHANGES = {
    "INSERT INTO t VALUES (1, 'a')": (T, Insert("VALUES (1, 'a')")),
    "insert into table db.t select * from s;": (
        Target(("db", "t")),
        Insert("select * from s"),
    ),
    "INSERT INTO t (a, `b c`) SELECT x, y FROM s": (
        T,
        Insert("SELECT x, y FROM s", columns=("a", "b c")),
    ),
    "INSERT INTO t (SELECT 1)": (T, Insert("(SELECT 1)")),
    "INSERT INTO t BY NAME SELECT 1 AS a": (T, Insert("SELECT 1 AS a", by_name=True)),
    "INSERT INTO t TABLE s": (T, Insert("TABLE s")),
    "INSERT INTO t FROM s SELECT a": (T, Insert("FROM s SELECT a")),
    "INSERT OVERWRITE t PARTITION (day = '2026-01-01', hour) SELECT 1": (
        T,
        Insert("SELECT 1", overwrite=True, partition=(("day", "'2026-01-01'"), ("hour", None))),
    ),
    "INSERT OVERWRITE TABLE t SELECT 1 -- the end": (T, Insert("SELECT 1", overwrite=True)),
    "DELETE FROM t": (T, Delete()),
    "DELETE FROM t AS x WHERE x.a IN (SELECT a FROM s WHERE b > 1);": (
        Target(("t",), "x"),
        Delete("x.a IN (SELECT a FROM s WHERE b > 1)"),
    ),
    "delete from t x where note = 'SET a = 1; WHERE'": (
        Target(("t",), "x"),
        Delete("note = 'SET a = 1; WHERE'"),
    ),
    "UPDATE t SET a = a + 1, `b` = CASE WHEN a > 1 THEN 'x, y' ELSE f(1, 2) END WHERE c": (
        T,
        Update(((("a",), "a + 1"), (("b",), "CASE WHEN a > 1 THEN 'x, y' ELSE f(1, 2) END")), "c"),
    ),
    "UPDATE hudi.`/data/my trips` u SET u.a = 1": (
        Target(("hudi", "/data/my trips"), "u"),
        Update(((("u", "a"), "1"),)),
    ),
    "UPDATE t SET end = 1 WHERE a[0] = {x}": (T, Update(((("end",), "1"),), "a[0] = {x}")),
    "/* who */ -- what\n TRUNCATE TABLE t": (T, Truncate()),
    "TRUNCATE TABLE t PARTITION (day = 1)": (T, Truncate((("day", "1"),))),
    "ALTER TABLE t DROP PARTITION (day = '1'), PARTITION (day = '2')": (
        T,
        DropPartitions(((("day", "'1'"),), (("day", "'2'"),))),
    ),
    "ALTER TABLE t DROP IF EXISTS PARTITION (day = date'2026-01-01') PURGE": (
        T,
        DropPartitions(((("day", "date'2026-01-01'"),),), if_exists=True),
    ),
}


@pytest.mark.parametrize("text", CHANGES, ids=list(CHANGES))
def test_changes(text: str) -> None:
    assert parsed(text) == CHANGES[text]


def test_merge_with_many_clauses() -> None:
    change = parsed(
        """
        MERGE INTO db.trips AS t
        USING (SELECT id, max(ts) AS ts FROM s GROUP BY id) u  -- newest
        ON t.id <=> u.id AND CASE WHEN t.a THEN true ELSE u.b END
        WHEN MATCHED AND u.op = 'WHEN NOT MATCHED' THEN DELETE
        WHEN MATCHED AND CASE WHEN u.x THEN 1 ELSE 2 END = 1 THEN UPDATE SET t.a = u.a, b = f(1, 2)
        WHEN MATCHED THEN UPDATE SET *
        WHEN NOT MATCHED BY TARGET AND u.ts > 1 THEN INSERT (id, `ts`) VALUES (u.id, coalesce(1, 2))
        WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE AND t.ts < 5 THEN DELETE
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET a = 0;
        """
    )
    assert change == (
        Target(("db", "trips"), "t"),
        Merge(
            "(SELECT id, max(ts) AS ts FROM s GROUP BY id)",
            "u",
            "t.id <=> u.id AND CASE WHEN t.a THEN true ELSE u.b END",
            (
                Clause(When.MATCHED, MergeAction.DELETE, "u.op = 'WHEN NOT MATCHED'"),
                Clause(
                    When.MATCHED,
                    MergeAction.UPDATE,
                    "CASE WHEN u.x THEN 1 ELSE 2 END = 1",
                    ((("t", "a"), "u.a"), (("b",), "f(1, 2)")),
                ),
                Clause(When.MATCHED, MergeAction.UPDATE, None, None),
                Clause(
                    When.NOT_MATCHED,
                    MergeAction.INSERT,
                    "u.ts > 1",
                    ((("id",), "u.id"), (("ts",), "coalesce(1, 2)")),
                ),
                Clause(When.NOT_MATCHED, MergeAction.INSERT, None, None),
                Clause(When.NOT_MATCHED_BY_SOURCE, MergeAction.DELETE, "t.ts < 5"),
                Clause(When.NOT_MATCHED_BY_SOURCE, MergeAction.UPDATE, None, ((("a",), "0"),)),
            ),
        ),
    )


SOURCES = {
    "s": ("s", "s"),
    "db.s AS x": ("db.s", "x"),
    "hudi.`/a/b` x": ("hudi.`/a/b`", "x"),
    "s TIMESTAMP AS OF '2026-01-01' x": ("s TIMESTAMP AS OF '2026-01-01'", "x"),
    "range(5) AS r": ("range(5)", "r"),
    "(VALUES (1))": ("(VALUES (1))", None),
    "(VALUES (1, 2)) AS x(a, b)": ("(VALUES (1, 2)) AS `x`(a, b)", "x"),
}


@pytest.mark.parametrize("text", SOURCES)
def test_sources_of_merge(text: str) -> None:
    change = parsed(f"MERGE INTO t USING {text} ON true WHEN MATCHED THEN DELETE")
    assert change is not None
    assert isinstance(change[1], Merge)
    assert (change[1].source, change[1].source_alias) == SOURCES[text]


def test_with_before_a_statement() -> None:
    text = "WITH a AS (SELECT 1), b(x) AS (SELECT 2 /* ) */) INSERT INTO t SELECT * FROM a, b"
    statement = find_target(text)
    assert statement is not None
    assert (statement.kind, statement.target) == ("INTO", T)
    assert statement.ctes == "WITH a AS (SELECT 1), b(x) AS (SELECT 2 /* ) */) "


def test_a_field_named_like_a_keyword_is_a_field() -> None:
    statement = find_target("WITH a AS (SELECT t.case FROM t) INSERT INTO t SELECT a.end FROM a")
    assert statement is not None
    assert statement.ctes == "WITH a AS (SELECT t.case FROM t) "
    assert parsed("UPDATE t SET a = t.case, b = t.where WHERE t.end = 1") == (
        T,
        Update(((("a",), "t.case"), (("b",), "t.where")), "t.end = 1"),
    )


OTHERS = (
    "SELECT 1",
    "WITH a AS (SELECT 1) SELECT * FROM a",
    "SELECT 'DELETE FROM t'",
    "-- DELETE FROM t\nSELECT 1",
    "INSERT OVERWRITE DIRECTORY '/x' USING parquet SELECT 1",
    "INSERT OVERWRITE LOCAL DIRECTORY '/x' SELECT 1",
    "INSERT SOMEWHERE",
    "ALTER VIEW v AS SELECT 1",
    "DESCRIBE t",
    "DELETE 'unfinished",
    "WITH a AS (SELECT case FROM t) SELECT * FROM a",
    "WITH a AS (SELECT 1 SELECT 2",
    "",
    "WITH",
)


@pytest.mark.parametrize("text", OTHERS)
def test_what_changes_no_table(text: str) -> None:
    assert find_target(text) is None


@pytest.mark.parametrize(
    "text", ["ALTER TABLE t ADD COLUMNS (a INT)", "ALTER TABLE t DROP COLUMN a"]
)
def test_what_only_the_catalog_does(text: str) -> None:
    assert parsed(text) is None


WRONG = {
    "UPDATE t a = 1": "SET expected",
    "UPDATE t SET a": "= expected",
    "UPDATE t SET a = (1": "is missing",
    "DELETE FROM t x y": "the end expected",
    "DELETE FROM t WHERE": "a condition expected",
    "INSERT INTO t": "a query or VALUES expected",
    "MERGE INTO t USING s ON true": "WHEN MATCHED",
    "MERGE INTO t USING s ON true WHEN MATCHED THEN INSERT *": "UPDATE SET expected",
    "MERGE INTO t USING s ON true WHEN NOT MATCHED THEN DELETE": "INSERT expected",
    "MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT (a) VALUES (1, 2)": "1 values",
    "MERGE INTO t USING s ON true WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *": "star",
    "TRUNCATE TABLE t 1": "the end expected",
    "ALTER TABLE t DROP PARTITION (day = 1": "is missing|expected",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_does_not_parse_is_reported(text: str) -> None:
    with pytest.raises(InvalidError, match=WRONG[text]):
        parsed(text)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t REPLACE WHERE a = 1 SELECT 1",
        "INSERT OVERWRITE t PARTITION (a = 1) IF NOT EXISTS SELECT 1",
        "ALTER TABLE t DROP PARTITION (day > 5)",
    ],
)
def test_what_is_not_carried_out_is_reported(text: str) -> None:
    with pytest.raises(UnsupportedError):
        parsed(text)


def test_words_keep_their_places() -> None:
    text = "SELECT 'ä\\'?', \"?\", `?`, r'\\?', ?, 10L, X'AB' FOR VERSION /* ? */ AS OF ? -- ?"
    words = tokenize(text)
    assert words is not None
    assert all(text[word.start : word.end] == word.raw for word in words)
    assert [word.raw for word in words[-6:]] == ["X'AB'", "FOR", "VERSION", "AS", "OF", "?"]
    assert with_named_markers(text, words) == (
        "SELECT 'ä\\'?', \"?\", `?`, r'\\?', :_lakewright_0, 10L, X'AB' FOR VERSION /* ? */ AS OF "
        ":_lakewright_1 -- ?"
    )
