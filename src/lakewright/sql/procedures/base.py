"""What all procedures have in common: parsing of `CALL`, parameters, descriptions for `help`.

`parse_call` parses `CALL name(argument, name => argument)`, and `bound_arguments` checks the
arguments against the parameters of a procedure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewright.errors import InvalidError
from lakewright.options import parse_bool
from lakewright.sql.tokenizer import statement_of

if TYPE_CHECKING:
    from lakewright.api.table import Table

Value = str | int | float | bool | None

# The alternatives are disjoint: otherwise each comment would double the time of backtracking.
_SPACE = r"(?:\s|--[^\n]*+(?:\n|$)|/\*(?:[^*]|\*(?!/))*+\*/)"
_CALL = re.compile(
    rf"CALL{_SPACE}++`?(?P<name>\w+)`?\s*\((?P<rest>.*)\)(?:;|{_SPACE})*+", re.I | re.S
)
# A text that is meant as a call of a procedure without a catalog, even if it does not parse.
_CALL_START = re.compile(rf"CALL{_SPACE}++`?\w+`?\s*(?![\w`.\s])", re.I | re.S)
_NAME = re.compile(r"\s*(?P<name>\w+)\s*=>")
_VALUE = re.compile(
    r"""\s*(?:'(?P<single>(?:[^'\\]|''|\\.)*)'|"(?P<double>(?:[^"\\]|""|\\.)*)"
        |(?P<number>[+-]?\d+(?:\.\d+)?)L?|(?P<marker>:\w+|\?)|(?P<word>\w+))\s*""",
    re.X | re.S,
)
_CONSTANTS: dict[str, Value] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Call:
    """The name of a procedure, and the arguments of a call."""

    name: str
    positional: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a procedure; without a `kind` its type is that of the default, or str."""

    name: str
    default: Value = None
    required: bool = False
    about: str = ""
    kind: type[str | int | float | bool] | None = None

    @property
    def type(self) -> type[str | int | float | bool]:
        """The type of its values."""
        return self.kind or (str if self.default is None else type(self.default))

    def checked(self, value: Value) -> Value:
        """Return a value converted to the type of the parameter; ValueError if it cannot be."""
        if value is None or isinstance(value, self.type):
            if isinstance(value, bool) and self.type is not bool:
                raise ValueError
            return value
        return parse_bool(str(value)) if self.type is bool else self.type(str(value))


_TYPE_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def parse_call(text: str, values: Any = None) -> Call | None:
    """Parse a call; None for other statements, and for calls of a catalog's procedures.

    `values` are the values of parameter markers, by name or in order.

    Raises:
        InvalidError: The text starts like a call and does not parse.
    """
    text = statement_of(text)
    match = _CALL.fullmatch(text)
    if match is None:
        if _CALL_START.match(text):
            raise InvalidError("a call is CALL name(argument, name => argument)", sql=text)
        return None
    positional: list[Value] = []
    named: list[tuple[str, Value]] = []
    rest = match["rest"]
    marker_values = iter(values if isinstance(values, (list, tuple)) else ())
    while rest.strip():
        name = _NAME.match(rest)
        rest = rest[name.end() :] if name else rest
        value = _VALUE.match(rest)
        if value is None:
            raise InvalidError("an argument does not parse", sql=text, at=rest[:40])
        rest = rest[value.end() :]
        if rest and not rest.startswith(","):
            raise InvalidError("a comma is missing between arguments", sql=text, at=rest[:40])
        rest = rest[1:]
        if name:
            named.append((name["name"].lower(), _value(value, values, marker_values)))
        elif named:
            raise InvalidError("an argument without a name follows one with a name", sql=text)
        else:
            positional.append(_value(value, values, marker_values))
    return Call(match["name"].lower(), tuple(positional), tuple(named))


def bound_arguments(call: Call, parameters: Sequence[Parameter]) -> dict[str, Value]:
    """Return the arguments of a call by name, with defaults.

    Raises:
        InvalidError: An argument is unknown, missing, given twice or of the wrong type. The error
            names the parameters.
    """
    names = [parameter.name for parameter in parameters]
    if len(call.positional) > len(names):
        raise InvalidError(
            f"{call.name} takes {len(names)} arguments", given=len(call.positional), known=names
        )
    by_name = {name.lower(): name for name in names}
    bound = dict(zip(names, call.positional, strict=False))
    for name, value in call.named:
        if name not in by_name:
            similar = difflib.get_close_matches(name, by_name, n=1)
            hint = {"did_you_mean": by_name[similar[0]]} if similar else {}
            raise InvalidError(
                f"{call.name} has no such argument", argument=name, known=names, **hint
            )
        if by_name[name] in bound:
            raise InvalidError(f"{call.name} is given an argument twice", argument=name)
        bound[by_name[name]] = value
    missing = [p.name for p in parameters if p.required and bound.get(p.name) is None]
    if missing:
        raise InvalidError(f"{call.name} lacks arguments", missing=missing, known=names)
    return {p.name: _checked(call, p, bound.get(p.name)) for p in parameters}


def _checked(call: Call, parameter: Parameter, value: Value) -> Value:
    if value is None:
        return parameter.default
    try:
        return parameter.checked(value)
    except ValueError as error:
        type_name = _TYPE_NAMES[parameter.type]
        raise InvalidError(
            f"{call.name} takes {type_name} as {parameter.name}", given=value
        ) from error


def _value(match: re.Match[str], values: Any, marker_values: Any) -> Value:
    """Return the value of a literal, or that of a parameter marker."""
    marker = match["marker"]
    if marker is None:
        return _literal(match)
    named = values if isinstance(values, Mapping) else {}
    missing = object()
    value = next(marker_values, missing) if marker == "?" else named.get(marker[1:], missing)
    if value is missing:
        raise InvalidError("a parameter marker has no value: give it in args", marker=marker)
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise InvalidError(
            "an argument is a text, a number, true, false or null",
            marker=marker,
            given=type(value).__name__,
        )
    return value


def _literal(match: re.Match[str]) -> Value:
    if match["single"] is not None:
        return _unquoted(match["single"], "'")
    if match["double"] is not None:
        return _unquoted(match["double"], '"')
    if match["number"] is not None:
        text = match["number"]
        return float(text) if "." in text else int(text)
    word = match["word"].lower()
    if word not in _CONSTANTS:
        raise InvalidError(
            "an argument is a text in quotes, a number, true, false or null", at=word
        )
    return _CONSTANTS[word]


def _unquoted(text: str, quote: str) -> str:
    return re.sub(r"\\(.)", r"\1", text.replace(quote * 2, quote))


# Procedures, and their common parameters.

Arguments = Mapping[str, Any]
Rows = list[tuple[Any, ...]]

NAME = Parameter("table", about="the name of a table in the catalog, as db.table")
PATH = Parameter("path", about="the path of the table, instead of its name")
TABLE = (NAME, PATH)
OPTIONS = Parameter("options", about="comma-separated options, as key=value")
FILTER = Parameter("filter", about="a condition on the columns of the result, in SQL")
INSTANT = Parameter("instant_time", required=True, about="the instant of a write")
ARCHIVED = Parameter("showArchived", False, about="whether to include the archived timeline")


def limit(default: int) -> Parameter:
    """Return a parameter `limit` with a default."""
    return Parameter("limit", default, about="the maximum number of rows, the newest first")


LIMIT = limit(20)


@dataclass(frozen=True)
class Procedure:
    """A procedure of `CALL`: its parameters, the columns of its result, and its function.

    `about` is the description that `help` and the documentation show.
    """

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    columns: str
    run: Callable[[Table, Arguments], Rows]


def row_limit(arguments: Arguments) -> int | None:
    """Return the maximum number of rows, None for all.

    With a filter a procedure returns all rows: the filter applies before the limit.
    """
    if arguments.get("filter"):
        return None
    value = arguments.get("limit")
    if value is not None and int(value) < 0:
        raise InvalidError("a limit is a whole number from 0 on", limit=value)
    return None if value is None else int(value)


def parse_options(text: Value) -> dict[str, str]:
    """Parse comma-separated options `key=value`."""
    options = {}
    for part in str(text or "").split(","):
        key, equals, value = part.partition("=")
        if part.strip() and not equals:
            raise InvalidError("options are key=value, with commas between them", option=part)
        if equals:
            options[key.strip()] = value.strip()
    return options


DESCRIBE_COLUMNS = (
    "kind STRING, name STRING, type STRING, required BOOLEAN, default STRING, about STRING"
)
_EXAMPLES = {str: "'...'", int: "1", float: "1.0", bool: "true"}
_TYPES = {str: "STRING", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}


def example(procedure: Procedure) -> str:
    """Return an example call of a procedure, with its required arguments."""
    required = [p for p in procedure.parameters if p.required]
    arguments = [f"{p.name} => {_EXAMPLES[p.type]}" for p in required]
    table = ["table => 'db.trips'"] if NAME in procedure.parameters else []
    return f"CALL {procedure.name}({', '.join([*table, *arguments])})"


def describe(procedure: Procedure) -> Rows:
    """Return rows with the description, parameters, columns and an example of a procedure."""
    parameters = [
        ("parameter", p.name, _TYPES[p.type], p.required, _default(p), p.about)
        for p in procedure.parameters
    ]
    columns = [
        ("column", *column.strip().rsplit(" ", 1), None, None, "")
        for column in procedure.columns.split(",")
    ]
    head = ("procedure", procedure.name, None, None, None, procedure.about)
    return [head, *parameters, *columns, ("example", example(procedure), *(None,) * 3, "")]


def _default(parameter: Parameter) -> str | None:
    value = parameter.default
    return None if value is None else str(value).lower() if value in (True, False) else str(value)
