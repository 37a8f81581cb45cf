"""What a procedure is, and the parameters that many have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewright.errors import InvalidError
from lakewright.interfaces.calls import Parameter, Value

if TYPE_CHECKING:
    from lakewright.interfaces.api import Table

Arguments = Mapping[str, Any]
Rows = list[tuple[Any, ...]]

NAME = Parameter("table", about="the name of a table in the catalog, as db.table")
PATH = Parameter("path", about="where the table is, in place of its name")
TABLE = (NAME, PATH)
OPTIONS = Parameter("options", about="options as key=value, with commas between them")
FILTER = Parameter("filter", about="a condition on the columns of the result, in SQL")
INSTANT = Parameter("instant_time", required=True, about="a write, by its instant")
ARCHIVED = Parameter("showArchived", False, about="whether history is shown, too")


def limit(most: int) -> Parameter:
    """How many rows are shown unless told otherwise."""
    return Parameter("limit", most, about="how many rows at most, the newest first")


LIMIT = limit(20)


@dataclass(frozen=True)
class Procedure:
    """What can be called: its parameters, the columns of its result, and what it does."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    columns: str
    run: Callable[[Table, Arguments], Rows]


def most(arguments: Arguments) -> int | None:
    """How many rows to make; None is all, where a filter picks among them."""
    if arguments.get("filter"):
        return None
    told = arguments.get("limit")
    if told is not None and int(told) < 0:
        raise InvalidError("a limit is a whole number from 0 on", limit=told)
    return None if told is None else int(told)


def told_options(text: Value) -> dict[str, str]:
    """Options that were given as one text."""
    found = {}
    for part in str(text or "").split(","):
        key, equals, value = part.partition("=")
        if part.strip() and not equals:
            raise InvalidError("options are key=value, with commas between them", option=part)
        if equals:
            found[key.strip()] = value.strip()
    return found


DESCRIBE_COLUMNS = (
    "kind STRING, name STRING, type STRING, required BOOLEAN, default STRING, about STRING"
)
_EXAMPLES = {str: "'...'", int: "1", float: "1.0", bool: "true"}
_TYPES = {str: "STRING", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}


def example(procedure: Procedure) -> str:
    """A call of a procedure with what it must be given."""
    needed = [p for p in procedure.parameters if p.required]
    told = [f"{p.name} => {_EXAMPLES[p.type]}" for p in needed]
    table = ["table => 'db.trips'"] if NAME in procedure.parameters else []
    return f"CALL {procedure.name}({', '.join([*table, *told])})"


def describe(procedure: Procedure) -> Rows:
    """A procedure with its parameters, the columns of its result, and an example."""
    parameters = [
        ("parameter", p.name, _TYPES[p.type], p.required, _default(p), p.about)
        for p in procedure.parameters
    ]
    columns = [
        ("column", *each.strip().rsplit(" ", 1), None, None, "")
        for each in procedure.columns.split(",")
    ]
    head = ("procedure", procedure.name, None, None, None, procedure.about)
    return [head, *parameters, *columns, ("example", example(procedure), *(None,) * 3, "")]


def _default(parameter: Parameter) -> str | None:
    value = parameter.default
    return None if value is None else str(value).lower() if value in (True, False) else str(value)
