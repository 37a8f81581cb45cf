"""Translates SQL filters to Arrow expressions where both have exactly the same meaning.

Supported are comparisons of a column with a literal of the same type, IN, BETWEEN, IS NULL, and
AND, OR and NOT of these. `parse_filter` returns None for anything else, and wherever Spark would
cast one of the sides first: such a filter must be evaluated by Spark.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import expressions as exp
from sqlglot.errors import SqlglotError

from lakewright.errors import InvalidError
from lakewright.scan.scan_plan import Comparison, RowFilter

_INT64_LIMIT = 2**63
_NOT_A_CONDITION = "not a condition on rows, such as city = 'Oslo' and ts > 3"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}( \d{2}:\d{2}:\d{2}(\.\d{1,6})?)?")
_OPERATORS: dict[type[exp.Expression], tuple[str, Callable[[Any, Any], Any]]] = {
    exp.EQ: ("=", operator.eq),
    exp.NEQ: ("!=", operator.ne),
    exp.LT: ("<", operator.lt),
    exp.LTE: ("<=", operator.le),
    exp.GT: (">", operator.gt),
    exp.GTE: (">=", operator.ge),
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_FUNCTIONS = dict(_OPERATORS.values())


class _NotTranslatableError(Exception):
    """A part of a filter that only Spark evaluates reliably."""


def parse_filter(text: str, schema: pa.Schema) -> RowFilter | None:
    """Parse a filter on columns of `schema`; None if only Spark can evaluate it.

    Raises:
        InvalidError: it is not a condition, or names an unknown column.
    """
    tree = _parse_condition(text)
    for column in tree.find_all(exp.Column):
        _require_column(column, schema)
    try:
        expression = _expression(tree, schema)
    except _NotTranslatableError:
        return None
    names = dict.fromkeys(_field(node, schema).name for node in tree.find_all(exp.Column))
    comparisons = tuple(item for part in _conjuncts(tree) if (item := _comparison(part, schema)))
    return RowFilter(expression, tuple(names), comparisons)


def _parse_condition(text: str) -> exp.Expression:
    try:
        tree = sqlglot.parse_one(f"SELECT 1 WHERE {text}", dialect="spark")
    except (SqlglotError, RecursionError) as error:
        raise InvalidError(_NOT_A_CONDITION, filter=text) from error
    where = tree.args.get("where")
    allowed = {"expressions", "where", "kind", "hint", "distinct", "limit", "operation_modifiers"}
    unsupported = [name for name, value in tree.args.items() if value and name not in allowed]
    if not isinstance(tree, exp.Select) or where is None or unsupported or tree.args.get("limit"):
        raise InvalidError(_NOT_A_CONDITION, filter=text)
    condition: exp.Expression = where.this
    return condition


def _expression(node: exp.Expression, schema: pa.Schema) -> Any:
    """Return a condition as an expression that is null where SQL's is, and so selects no row."""
    match node:
        case exp.Paren():
            return _expression(node.this, schema)
        case exp.And():
            return _expression(node.this, schema) & _expression(node.expression, schema)
        case exp.Or():
            return _expression(node.this, schema) | _expression(node.expression, schema)
        case exp.Not():
            return ~_expression(node.this, schema)
        case exp.Is() if isinstance(node.expression, exp.Null):
            return pc.field(_field(node.this, schema).name).is_null()
        case exp.Between() if not node.args.get("symmetric"):
            field = _field(node.this, schema)
            low, high = _value(node.args["low"], field), _value(node.args["high"], field)
            return _compare(field, ">=", low) & _compare(field, "<=", high)
        case exp.In() if node.expressions and not node.args.get("query"):
            field = _field(node.this, schema)
            alternatives = [_compare(field, "=", _value(item, field)) for item in node.expressions]
            expression = alternatives[0]
            for item in alternatives[1:]:
                expression = expression | item
            return expression
    if type(node) in _OPERATORS:
        return _compare(*_sides(node, schema))
    raise _NotTranslatableError


def _sides(node: exp.Expression, schema: pa.Schema) -> tuple[pa.Field, str, Any]:
    """Return column, operator and literal of a comparison, whichever side they are on."""
    symbol, left, right = _OPERATORS[type(node)][0], node.this, node.expression
    if isinstance(right, exp.Column):
        left, right, symbol = right, left, _MIRRORED[symbol]
    field = _field(left, schema)
    return field, symbol, _value(right, field)


def _compare(field: pa.Field, symbol: str, value: Any) -> Any:
    column = pc.field(field.name)
    if pa.types.is_floating(field.type):
        column = column.cast(pa.float64())
    expression = _FUNCTIONS[symbol](column, value)
    if pa.types.is_floating(field.type) and symbol in (">", ">="):
        # To Spark, NaN is the greatest of all numbers.
        expression = expression | pc.is_nan(column)
    return expression


def _require_column(node: exp.Column, schema: pa.Schema) -> None:
    name = node.name
    matches = [column for column in schema.names if column.casefold() == name.casefold()]
    if not matches and not node.table:
        near = get_close_matches(name, schema.names, n=1)
        hint = {"did_you_mean": near[0]} if near else {"columns": list(schema.names)}
        raise InvalidError("the table has no such column", column=name, **hint)


def _field(node: Any, schema: pa.Schema) -> pa.Field:
    if not isinstance(node, exp.Column) or node.table:
        raise _NotTranslatableError
    matches = [name for name in schema.names if name.casefold() == node.name.casefold()]
    if len(matches) != 1:
        raise _NotTranslatableError
    return schema.field(matches[0])


def _value(node: Any, field: pa.Field) -> pa.Scalar:
    """Return a literal as a value of its column's type."""
    kind = field.type
    if isinstance(node, exp.Boolean) and pa.types.is_boolean(kind):
        return pa.scalar(bool(node.this))
    negative = isinstance(node, exp.Neg)
    literal = node.this if negative else node
    if not isinstance(literal, exp.Literal):
        raise _NotTranslatableError
    if literal.is_string:
        if negative:
            raise _NotTranslatableError
        return _from_string(literal.name, kind)
    return _from_number(f"-{literal.name}" if negative else literal.name, kind)


def _from_number(text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        if pa.types.is_integer(kind):
            number = int(text)
            if -_INT64_LIMIT <= number < _INT64_LIMIT:
                return pa.scalar(number, pa.int64())
        if pa.types.is_floating(kind):
            return pa.scalar(float(text), pa.float64())
    except ValueError:
        pass
    raise _NotTranslatableError


def _from_string(text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return pa.scalar(text, kind)
        if pa.types.is_date32(kind) and _DATE.fullmatch(text):
            return pa.scalar(date.fromisoformat(text), kind)
        if pa.types.is_timestamp(kind) and _TIMESTAMP.fullmatch(text):
            moment = datetime.fromisoformat(text)
            # UTC is the time zone of the command line's sessions.
            return pa.scalar(moment.replace(tzinfo=UTC) if kind.tz else moment, kind)
    except ValueError:
        pass
    raise _NotTranslatableError


def _conjuncts(node: exp.Expression) -> Iterator[exp.Expression]:
    """Return the conditions that must all be true for a filter to select a row."""
    if isinstance(node, exp.Paren):
        yield from _conjuncts(node.this)
    elif isinstance(node, exp.And):
        yield from _conjuncts(node.this)
        yield from _conjuncts(node.expression)
    else:
        yield node


def _comparison(node: exp.Expression, schema: pa.Schema) -> Comparison | None:
    """Return a condition in the form that partition pruning uses, or None."""
    if isinstance(node, exp.In):
        field = _field(node.this, schema)
        values = tuple(_value(item, field).as_py() for item in node.expressions)
        return Comparison(field.name, "in", values)
    if type(node) not in _OPERATORS:
        return None
    field, symbol, value = _sides(node, schema)
    return None if symbol == "!=" else Comparison(field.name, symbol, value.as_py())
