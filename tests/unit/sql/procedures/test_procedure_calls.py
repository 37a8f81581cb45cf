"""CALL statements: what they parse to, and which arguments a procedure takes."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError
from lakewright.sql.procedures.base import (
    Call,
    Parameter,
    bound_arguments,
    parse_call,
    parse_options,
)

CALLS = {
    "CALL show_debt(table => 't')": Call("show_debt", (), (("table", "t"),)),
    "call Run_Compaction('schedule', 't');": Call("run_compaction", ("schedule", "t")),
    "CALL p(path => 'a''b', n => 20260101000000000, ok => true, none => NULL, x => -1.5)": Call(
        "p",
        (),
        (("path", "a'b"), ("n", 20260101000000000), ("ok", True), ("none", None), ("x", -1.5)),
    ),
    'CALL `p`(\n  "a \\" b"\n)': Call("p", ('a " b',)),
    "CALL p()": Call("p"),
    "CALL p(options => 'a=1,b=(2)')": Call("p", (), (("options", "a=1,b=(2)"),)),
}
OTHERS = ["SELECT 1", "CALL cat.system.rewrite(table => 't')", "callable", "CREATE TABLE t"]
BROKEN = [
    "CALL p",
    "CALL p(",
    "CALL p(a =>)",
    "CALL p('a' 'b')",
    "CALL p(a => 1, 2)",
    "CALL p(word)",
]
PARAMETERS = (Parameter("table"), Parameter("limit", 20), Parameter("service", required=True))


@pytest.mark.parametrize(("text", "call"), CALLS.items(), ids=list(CALLS))
def test_a_call_is_parsed(text: str, call: Call) -> None:
    assert parse_call(text) == call


@pytest.mark.parametrize("text", OTHERS)
def test_other_statements_are_left_to_spark(text: str) -> None:
    assert parse_call(text) is None


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_call_is_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_call(text)


def test_arguments_are_bound_by_place_and_by_name() -> None:
    call = Call("p", ("t",), (("service", "clean"),))
    assert bound_arguments(call, PARAMETERS) == {"table": "t", "limit": 20, "service": "clean"}


REFUSED = {
    "one that there is not, with the nearest": (Call("p", (), (("servise", "x"),)), "service"),
    "too many": (Call("p", (1, 2, 3, 4)), "takes 3"),
    "twice": (Call("p", ("t",), (("table", "t"),)), "twice"),
    "a missing one": (Call("p", ("t",)), "lacks"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=list(REFUSED))
def test_wrong_arguments_are_refused_by_name(call: Call, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        bound_arguments(call, PARAMETERS)


def test_options_are_one_text() -> None:
    assert parse_options("a=1, b=x=y") == {"a": "1", "b": "x=y"}
    assert parse_options(None) == {}
    with pytest.raises(InvalidError):
        parse_options("a")
