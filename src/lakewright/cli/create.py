"""The command create, and the parser of its column list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pyarrow as pa
import sqlglot
import typer
from sqlglot import expressions as exp
from sqlglot.errors import SqlglotError

from lakewright.cli.common import (
    JsonOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    group,
    listed,
    parse_options,
)
from lakewright.cli.output import Document, show
from lakewright.cli.table import Options, show_info
from lakewright.client.command_options import storage_at, table_options
from lakewright.clock import SystemClock
from lakewright.errors import InvalidError
from lakewright.model.table_config import parse_table_type
from lakewright.table.create import TableSpec, create_table

_SIMPLE_TYPES: dict[Any, Callable[[], pa.DataType]] = {
    exp.DataType.Type.BOOLEAN: pa.bool_,
    exp.DataType.Type.TINYINT: pa.int8,
    exp.DataType.Type.SMALLINT: pa.int16,
    exp.DataType.Type.INT: pa.int32,
    exp.DataType.Type.BIGINT: pa.int64,
    exp.DataType.Type.FLOAT: pa.float32,
    exp.DataType.Type.DOUBLE: pa.float64,
    exp.DataType.Type.TEXT: pa.string,
    exp.DataType.Type.BINARY: pa.binary,
    exp.DataType.Type.DATE: pa.date32,
    exp.DataType.Type.TIMESTAMP: lambda: pa.timestamp("us", "UTC"),
    exp.DataType.Type.TIMESTAMPTZ: lambda: pa.timestamp("us", "UTC"),
    exp.DataType.Type.TIMESTAMPNTZ: lambda: pa.timestamp("us"),
}

app = group()


@app.command(
    epilog=example(
        "lakewright create data/trips --key id --partition-by day --ordering ts --type mor",
        "lakewright create data/trips --key id --schema 'id string, day date, fare double'",
    )
)
def create(
    path: PathArgument,
    key: Annotated[
        str,
        typer.Option(metavar="NAMES", help="The record key; without one rows are only inserted."),
    ] = "",
    name: Annotated[
        str,
        typer.Option(metavar="NAME", help="The name of the table; by default that of its folder."),
    ] = "",
    table_type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="COPY_ON_WRITE or MERGE_ON_READ.")
    ] = "COPY_ON_WRITE",
    partition_by: Annotated[str, typer.Option(metavar="NAMES", help="The partition columns.")] = "",
    ordering: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="The ordering columns: the version with the greater value wins."
        ),
    ] = "",
    event_time: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column with the event time.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS", help="Names and SQL types; by default those of the first write."
        ),
    ] = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an empty table."""
    with exit_codes():
        document = _create_table(
            path,
            parse_options(option, options_file),
            name=name,
            table_type=table_type,
            key=listed(key),
            partition_by=listed(partition_by),
            ordering=listed(ordering),
            event_time=event_time,
            schema=schema,
        )
        show(document, as_json=as_json)


def _create_table(
    path: str,
    options: Options,
    *,
    name: str,
    table_type: str,
    key: tuple[str, ...],
    partition_by: tuple[str, ...],
    ordering: tuple[str, ...],
    event_time: str | None,
    schema: str | None,
) -> Document:
    """Create an empty table, and return its description."""
    storage = storage_at(path, options)
    spec = TableSpec(
        name=name or storage.root.rstrip("/").rpartition("/")[2],
        table_type=parse_table_type(table_type),
        record_key=key,
        partition_by=partition_by,
        ordering=ordering,
        event_time=event_time,
        schema=parse_columns(schema) if schema else None,
        options=table_options(options),
    )
    create_table(storage, SystemClock(), spec)
    return show_info(path, options, size=False)


def parse_columns(text: str) -> pa.Schema:
    """Return the schema of a column list, as SQL has it in the parentheses of CREATE TABLE."""
    try:
        tree = sqlglot.parse_one(f"CREATE TABLE t ({text})", dialect="spark")
    except SqlglotError as error:
        raise InvalidError("not a list of columns", schema=text) from error
    table = tree.this
    other_clauses = [
        name for name, value in tree.args.items() if value and name not in ("this", "kind")
    ]
    if other_clauses or not isinstance(table, exp.Schema) or not isinstance(table.this, exp.Table):
        raise InvalidError("not a list of columns", schema=text)
    return pa.schema([_field(column, text) for column in table.expressions])


def _field(node: Any, text: str) -> pa.Field:
    if not isinstance(node, exp.ColumnDef) or node.kind is None:
        raise InvalidError("each column needs a name and a type", schema=text)
    constraints = [constraint.kind for constraint in node.args.get("constraints") or ()]
    if any(not isinstance(kind, exp.NotNullColumnConstraint) for kind in constraints):
        raise InvalidError(
            "the only supported column constraint is NOT NULL", schema=text, column=node.name
        )
    return pa.field(node.name, _data_type(node.kind, text), nullable=not constraints)


def _data_type(node: Any, text: str) -> pa.DataType:
    if not isinstance(node, exp.DataType):
        raise InvalidError("a type that is not known here", schema=text, type=str(node))
    parameters = node.expressions
    if node.this in _SIMPLE_TYPES and not parameters:
        return _SIMPLE_TYPES[node.this]()
    if node.this is exp.DataType.Type.DECIMAL:
        precision, scale = (
            *(int(parameter.name) for parameter in parameters),
            *(10, 0)[len(parameters) :],
        )
        return pa.decimal128(precision, scale)
    if node.this is exp.DataType.Type.ARRAY and len(parameters) == 1:
        return pa.list_(pa.field("element", _data_type(parameters[0], text)))
    if node.this is exp.DataType.Type.MAP and len(parameters) == 2:
        return pa.map_(_data_type(parameters[0], text), _data_type(parameters[1], text))
    if node.this is exp.DataType.Type.STRUCT and parameters:
        return pa.struct([_field(column, text) for column in parameters])
    raise InvalidError("a type that is not known here", schema=text, type=node.sql("spark"))
