"""Filters in SQL as Arrow expressions, where both surely mean the same.

Comparisons of a column with a literal of its own kind, IN, BETWEEN, IS NULL, and AND, OR and NOT of
these are understood. Of anything else, and wherever Spark would first cast one of the sides, nobody
but Spark knows the answer: `parse_filter` gives None then.
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

_LONGEST = 2**63
_NO_CONDITION = "not a condition on rows, such as city = 'Oslo' and ts > 3"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}( \d{2}:\d{2}:\d{2}(\.\d{1,6})?)?")
_COMPARE: dict[type[exp.Expression], tuple[str, Callable[[Any, Any], Any]]] = {
    exp.EQ: ("=", operator.eq),
    exp.NEQ: ("!=", operator.ne),
    exp.LT: ("<", operator.lt),
    exp.LTE: ("<=", operator.le),
    exp.GT: (">", operator.gt),
    exp.GTE: (">=", operator.ge),
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_BY_WORD = dict(_COMPARE.values())


class _NotTranslatableError(Exception):
    """A part of a filter that only Spark is sure to take as it is meant."""


def parse_filter(text: str, schema: pa.Schema) -> RowFilter | None:
    """Read a filter on columns of `schema`; None for one that is to be left to Spark.

    Raises:
        InvalidError: it is no condition, or names a column that there is not.
    """
    tree = _parsed(text)
    for column in tree.find_all(exp.Column):
        _require_column(column, schema)
    try:
        expression = _condition(tree, schema)
    except _NotTranslatableError:
        return None
    names = dict.fromkeys(_field(each, schema).name for each in tree.find_all(exp.Column))
    comparisons = tuple(found for part in _parts(tree) if (found := _comparison(part, schema)))
    return RowFilter(expression, tuple(names), comparisons)


def _parsed(text: str) -> exp.Expression:
    try:
        tree = sqlglot.parse_one(f"SELECT 1 WHERE {text}", dialect="spark")
    except (SqlglotError, RecursionError) as error:
        raise InvalidError(_NO_CONDITION, filter=text) from error
    where = tree.args.get("where")
    known = {"expressions", "where", "kind", "hint", "distinct", "limit", "operation_modifiers"}
    more = [name for name, value in tree.args.items() if value and name not in known]
    if not isinstance(tree, exp.Select) or where is None or more or tree.args.get("limit"):
        raise InvalidError(_NO_CONDITION, filter=text)
    found: exp.Expression = where.this
    return found


def _condition(node: exp.Expression, schema: pa.Schema) -> Any:
    """A condition as an expression that is null where SQL's is, and so passes no row."""
    match node:
        case exp.Paren():
            return _condition(node.this, schema)
        case exp.And():
            return _condition(node.this, schema) & _condition(node.expression, schema)
        case exp.Or():
            return _condition(node.this, schema) | _condition(node.expression, schema)
        case exp.Not():
            return ~_condition(node.this, schema)
        case exp.Is() if isinstance(node.expression, exp.Null):
            return pc.field(_field(node.this, schema).name).is_null()
        case exp.Between() if not node.args.get("symmetric"):
            field = _field(node.this, schema)
            low, high = _value(node.args["low"], field), _value(node.args["high"], field)
            return _compared(field, ">=", low) & _compared(field, "<=", high)
        case exp.In() if node.expressions and not node.args.get("query"):
            field = _field(node.this, schema)
            found = [_compared(field, "=", _value(each, field)) for each in node.expressions]
            expression = found[0]
            for each in found[1:]:
                expression = expression | each
            return expression
    if type(node) in _COMPARE:
        return _compared(*_sides(node, schema))
    raise _NotTranslatableError


def _sides(node: exp.Expression, schema: pa.Schema) -> tuple[pa.Field, str, Any]:
    """Column, operator and literal of a comparison, whichever side they are on."""
    word, left, right = _COMPARE[type(node)][0], node.this, node.expression
    if isinstance(right, exp.Column):
        left, right, word = right, left, _TURNED[word]
    field = _field(left, schema)
    return field, word, _value(right, field)


def _compared(field: pa.Field, word: str, value: Any) -> Any:
    column = pc.field(field.name)
    if pa.types.is_floating(field.type):
        column = column.cast(pa.float64())
    expression = _BY_WORD[word](column, value)
    if pa.types.is_floating(field.type) and word in (">", ">="):
        # For Spark no number is a number too, the largest of all.
        expression = expression | pc.is_nan(column)
    return expression


def _require_column(node: exp.Column, schema: pa.Schema) -> None:
    name = node.name
    found = [each for each in schema.names if each.casefold() == name.casefold()]
    if not found and not node.table:
        near = get_close_matches(name, schema.names, n=1)
        told = {"did_you_mean": near[0]} if near else {"columns": list(schema.names)}
        raise InvalidError("the table has no such column", column=name, **told)


def _field(node: Any, schema: pa.Schema) -> pa.Field:
    if not isinstance(node, exp.Column) or node.table:
        raise _NotTranslatableError
    found = [each for each in schema.names if each.casefold() == node.name.casefold()]
    if len(found) != 1:
        raise _NotTranslatableError
    return schema.field(found[0])


def _value(node: Any, field: pa.Field) -> pa.Scalar:
    """A literal as a value of its column's kind."""
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
        return _from_text(literal.name, kind)
    return _number(f"-{literal.name}" if negative else literal.name, kind)


def _number(text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        if pa.types.is_integer(kind):
            number = int(text)
            if -_LONGEST <= number < _LONGEST:
                return pa.scalar(number, pa.int64())
        if pa.types.is_floating(kind):
            return pa.scalar(float(text), pa.float64())
    except ValueError:
        pass
    raise _NotTranslatableError


def _from_text(text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return pa.scalar(text, kind)
        if pa.types.is_date32(kind) and _DATE.fullmatch(text):
            return pa.scalar(date.fromisoformat(text), kind)
        if pa.types.is_timestamp(kind) and _MOMENT.fullmatch(text):
            moment = datetime.fromisoformat(text)
            # The zone of the command line's sessions.
            return pa.scalar(moment.replace(tzinfo=UTC) if kind.tz else moment, kind)
    except ValueError:
        pass
    raise _NotTranslatableError


def _parts(node: exp.Expression) -> Iterator[exp.Expression]:
    """The conditions that must all be true for a filter to pass a row."""
    if isinstance(node, exp.Paren):
        yield from _parts(node.this)
    elif isinstance(node, exp.And):
        yield from _parts(node.this)
        yield from _parts(node.expression)
    else:
        yield node


def _comparison(node: exp.Expression, schema: pa.Schema) -> Comparison | None:
    """A condition as pruning understands it."""
    if isinstance(node, exp.In):
        field = _field(node.this, schema)
        wanted = tuple(_value(each, field).as_py() for each in node.expressions)
        return Comparison(field.name, "in", wanted)
    if type(node) not in _COMPARE:
        return None
    field, word, value = _sides(node, schema)
    return None if word == "!=" else Comparison(field.name, word, value.as_py())
