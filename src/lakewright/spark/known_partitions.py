"""The partitions of a DataFrame's rows where literals in its query name them.

Such as `where("day = '2026-01-31'")`, `withColumn("day", lit("2026-01-31"))` and INSERT INTO with
PARTITION (day = '2026-01-31'). Only the analyzed plan is looked at, which Spark has made before:
there is no job, no file is listed, and nothing is optimized. A plan that is not understood names
none.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakewright.errors import LakewrightError
from lakewright.model.partition_paths import PartitionRule, partition_paths
from lakewright.spark.worker_environment import SPARK_ERRORS
from lakewright.write.incoming_rows import rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# More is looked at neither in a plan nor in a node of it: each look is a call to the JVM.
_MOST_NODES = 50
_MOST_ITEMS = 300
_MOST_PARTITIONS = 100
# Nodes whose output is some of the rows of their child, or all, in any order.
_TRANSPARENT = (
    "SubqueryAlias",
    "Filter",
    "Sort",
    "GlobalLimit",
    "LocalLimit",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "Distinct",
    "Deduplicate",
)
_EPOCH = date(1970, 1, 1)
_TYPES = {
    "string": pa.string(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "date": pa.date32(),
}


def known_partitions(
    frame: DataFrame, rule: PartitionRule, columns: pa.Schema
) -> frozenset[str] | None:
    """Return the partitions that literals in the query of a frame name; None if they do not.

    `columns` are those of the table, whose types the values get before they are written.
    """
    if not rule.fields:
        return frozenset({""})
    names = [field.name for field in rule.fields]
    if not set(names) <= {*frame.columns} & {*columns.names} or not hasattr(frame, "_jdf"):
        return None
    try:
        plan = frame._jdf.queryExecution().analyzed()
        values = [_values(plan, frame.columns.index(name)) for name in names]
        return _paths(names, values, rule, columns)
    except (*SPARK_ERRORS, LakewrightError, pa.ArrowException):
        return None  # what is wrong with the rows is for the tasks to find that write them


def _paths(
    names: list[str], values: list[pa.Array | None], rule: PartitionRule, columns: pa.Schema
) -> frozenset[str] | None:
    found = [array for array in values if array is not None]
    if len(found) < len(names) or prod(map(len, found)) > _MOST_PARTITIONS:
        return None
    combined = product(*(range(len(array)) for array in found))
    indices = list(zip(*combined, strict=True))
    arrays = [array.take(pa.array(index)) for array, index in zip(found, indices, strict=True)]
    schema = pa.schema([columns.field(name) for name in names])
    return frozenset(partition_paths(rows_in(pa.table(arrays, names), schema), rule).to_pylist())


def _values(plan: Any, place: int) -> pa.Array | None:
    """Return the values that a column of a plan may have; None if they are not known."""
    column = plan.output().apply(place).exprId().id()
    for _ in range(_MOST_NODES):
        kind = plan.nodeName()
        if kind == "Project":
            item = _item(plan.projectList(), column)
            if item is None:
                return None
            if item.nodeName() != "AttributeReference":
                return _literals([item])
            column = item.exprId().id()
        elif kind not in _TRANSPARENT:
            return None
        found = _allowed(plan.condition(), column) if kind == "Filter" else None
        if found is not None:
            return found
        plan = plan.child()
    return None


def _item(items: Any, column: int) -> Any | None:
    """Return what a projection makes a column of: another column, or an expression."""
    if items.size() > _MOST_ITEMS:
        return None
    named = (items.apply(place) for place in range(items.size()))
    item = next((item for item in named if item.exprId().id() == column), None)
    return item.child() if item is not None and item.nodeName() == "Alias" else item


def _conjuncts(condition: Any) -> Iterator[Any]:
    waiting = [condition]
    for _ in range(_MOST_NODES):
        if not waiting:
            return
        condition = waiting.pop()
        if condition.nodeName() == "And":
            waiting += [condition.left(), condition.right()]
        else:
            yield condition


def _allowed(condition: Any, column: int) -> pa.Array | None:
    """Return the values that a filter leaves of a column; None if it says nothing of that."""
    allowed = (_allowed_by(part, column) for part in _conjuncts(condition))
    return next((values for values in allowed if values is not None), None)


def _allowed_by(condition: Any, column: int) -> pa.Array | None:
    kind = condition.nodeName()
    if kind in ("EqualTo", "EqualNullSafe"):
        sides = [condition.left(), condition.right()]
        for side, other in (sides, reversed(sides)):
            if _is_column(side, column):
                return _literals([other])
    if kind == "In" and _is_column(condition.value(), column):
        items = condition.list()
        if items.size() <= _MOST_PARTITIONS:
            return _literals([items.apply(place) for place in range(items.size())])
    return None


def _is_column(expression: Any, column: int) -> bool:
    is_attribute = expression.nodeName() == "AttributeReference"
    return bool(is_attribute and expression.exprId().id() == column)


def _literals(expressions: list[Any]) -> pa.Array | None:
    """Return the values of literals, and of casts of literals, of one type."""
    if not expressions:
        return None
    kind = _TYPES.get(expressions[0].dataType().typeName())
    values = []
    for expression in expressions:
        literal = expression
        while literal.nodeName() == "Cast":
            literal = literal.child()
        if kind is None or literal.nodeName() != "Literal":
            return None
        if _TYPES.get(expression.dataType().typeName()) != kind:
            return None
        values.append(_python_value(expression.eval(None), kind))
    return pa.array(values, kind)


def _python_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else value.toString()
    return _EPOCH + timedelta(days=value) if pa.types.is_date(kind) else value
