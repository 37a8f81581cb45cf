"""Comments before a statement: any number of them, and which words follow."""

from __future__ import annotations

import pytest

from lakewright.sql.create_table import parse_create
from lakewright.sql.parser import find_target
from lakewright.sql.procedures.base import Call, parse_call
from lakewright.sql.tokenizer import statement_of

# So many that a search which doubles with each of them would never end.
HEADERS = {
    "blocks": "/* made by a tool */\n" * 10_000,
    "blocks with stars": "/** made * by ** a tool **/ " * 10_000,
    "lines": "-- made by a tool\n" * 10_000,
    "both": "/* made by */ -- a tool\n" * 10_000,
    "nested": "/* a" + "/* b */" * 10_000 + "*/",
    "blanks": " \t\n" * 10_000,
}
STARTS = {
    "SELECT 1": "SELECT 1",
    "": "",
    " -- a\n-- b\r\nSELECT 1": "SELECT 1",
    "-- goes on \\\n SELECT 0\nSELECT 1": "SELECT 1",
    "/* a /* b */ SELECT 0 */ SELECT 1": "SELECT 1",
    "/*/ a */ SELECT 1": "SELECT 1",
    "/**/SELECT 1": "SELECT 1",
    "/* never closed SELECT 1": "",
    "-- /*\nSELECT 1 /* */": "SELECT 1 /* */",
    "/*+ hint */ SELECT 1": "/*+ hint */ SELECT 1",
}


@pytest.mark.parametrize(("text", "rest"), STARTS.items(), ids=list(STARTS))
def test_where_a_statement_begins(text: str, rest: str) -> None:
    assert statement_of(text) == rest


@pytest.mark.parametrize("header", HEADERS.values(), ids=list(HEADERS))
def test_any_number_of_comments_before_a_statement_of_others(header: str) -> None:
    text = f"{header} SELECT 1"
    assert parse_call(text) is None
    assert parse_create(text) is None
    assert find_target(text) is None


@pytest.mark.parametrize("header", HEADERS.values(), ids=list(HEADERS))
def test_any_number_of_comments_before_a_statement_of_ours(header: str) -> None:
    assert parse_call(f"{header} CALL p('a');") == Call("p", ("a",))
    created = parse_create(f"{header} CREATE TABLE t USING hudi LOCATION '/data/t'")
    assert created is not None
    assert created.path == "/data/t"
    statement = find_target(f"{header} DELETE FROM t")
    assert statement is not None
    assert statement.target.name == ("t",)


def test_any_number_of_comments_within_a_call() -> None:
    header = "/* a */ " * 10_000
    assert parse_call(f"CALL {header} p('a') {header};") == Call("p", ("a",))
    assert parse_call(f"CALL {header} system.p('a') {header} x") is None
