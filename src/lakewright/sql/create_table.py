"""`CREATE TABLE ... USING hudi`: parsing and execution.

If a table exists at the LOCATION the statement registers it in Spark's catalog. Otherwise it
creates the table first, empty or with the rows of a query.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlglot
from pyspark.sql import types as T
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakewright.api.factory import create
from lakewright.datasource.source import (
    FORMATS,
    OPTIONS_METADATA,
    planned,
    register_source,
    session_storage_options,
)
from lakewright.errors import InvalidError
from lakewright.options import check_names
from lakewright.scan.options import READ_KEYS
from lakewright.spark.reader import spark_schema
from lakewright.sql.session import Session, TargetTable
from lakewright.sql.store_assignment import column_named, quoted, type_sql
from lakewright.sql.tokenizer import Cursor, statement_of, tokenize
from lakewright.storage.base import is_hadoop_setting
from lakewright.storage.factory import (
    other_options,
    storage_for,
    storage_option_names,
    storage_options,
)
from lakewright.table.properties import table_exists
from lakewright.write.task import Operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CREATE_TABLE = re.compile(
    r"CREATE\s+(EXTERNAL\s+)?TABLE\s.*\bUSING\s+(`?)(org\.apache\.)?hudi\b", re.I | re.S
)
_SECRET_NAME = re.compile(r"secret|password|passphrase|token|(?:^|[._-])key(?:$|[._-])", re.I)
_SECRET_ASSIGNMENT = re.compile(
    r"([\w.-]*(?:secret|password|passphrase|token|key)[\w.-]*['\"`]?\s*=?\s*)('[^']*'|\"[^\"]*\")",
    re.I,
)
_ANSI_COLORS = re.compile(r"\x1b\[\d*m")
# Table properties with names of their own in SQL, and the arguments of `create` for them.
_ARGUMENT_NAMES = {
    "type": "table_type",
    "primarykey": "record_key",
    "precombinefield": "ordering",
    "orderingfields": "ordering",
}
# The same properties as users write them, for suggestions in error messages.
_SQL_PROPERTIES = ("type", "primaryKey", "preCombineField", "orderingFields")


@dataclass(frozen=True)
class CreateTable:
    """`CREATE TABLE name (columns) USING hudi` with its properties and LOCATION as `options`.

    With a `query`, the columns and rows are those of the query.
    """

    name: str
    if_not_exists: bool
    options: dict[str, str]
    columns: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()
    query: str = ""

    @property
    def path(self) -> str | None:
        """The LOCATION of the table."""
        return self.options.get("path")


def parse_create(text: str) -> CreateTable | None:
    """Parse a statement that creates a Hudi table; None for other statements."""
    text = statement_of(text)
    if not _CREATE_TABLE.match(text):
        return None
    head, query = _split_query(text)
    plain = re.sub(r"\borg\.apache\.hudi\b", FORMATS[0], head)
    try:
        tree = sqlglot.parse_one(plain, read="spark")
    except SqlglotError as error:
        reason = _without_secrets(_ANSI_COLORS.sub("", str(error)))
        raise InvalidError(
            "the statement does not parse", sql=_without_secrets(text), reason=reason
        ) from None
    source = tree.find(exp.FileFormatProperty)
    if not isinstance(tree, exp.Create) or source is None or source.name.lower() not in FORMATS:
        return None
    table = tree.find(exp.Table)
    assert table is not None
    options = {
        p.this.sql("spark").replace("`", "").strip("'\""): _value(p)
        for p in tree.find_all(exp.Property)
        if type(p) is exp.Property
    }
    location = tree.find(exp.LocationProperty)
    if location is not None:
        options["path"] = location.name
    columns, partition_by = _columns(tree)
    name = table.sql("spark")
    if query and any(kind for _, kind in columns):
        raise InvalidError("columns are listed, and the query defines them: leave one of them out")
    exists = bool(tree.args.get("exists"))
    return CreateTable(name, exists, options, columns, partition_by, query)


def _value(node: exp.Property) -> str:
    """Return the value of a property: a string, a number or a boolean."""
    value = node.args.get("value")
    if isinstance(value, exp.Boolean):
        return "true" if value.this else "false"
    if not isinstance(value, exp.Literal):
        raise InvalidError(
            "the value of a property is a text, a number, true or false", property=node.sql("spark")
        )
    return str(value.name)


def _without_secrets(text: str) -> str:
    """Return a statement for an error message, without values that may be credentials."""
    return _SECRET_ASSIGNMENT.sub(r"\1'***'", text)


def _split_query(text: str) -> tuple[str, str]:
    """Return the statement before its query, and the query as written, empty if there is none."""
    cursor = Cursor(text, tokenize(text) or ())
    cursor.until(("USING",))
    cursor.until(("AS", "SELECT", "WITH", "VALUES", "FROM"))
    if cursor.ended:
        return text, ""
    start = cursor.tokens[cursor.at].start
    cursor.take("AS")
    return text[:start], cursor.rest()


def _columns(tree: exp.Create) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the columns with their types, partition columns last, and the partition columns."""
    clause = tree.find(exp.PartitionedByProperty)
    nodes = list(clause.this.expressions) if clause is not None and clause.this is not None else []
    partition_by = [node.name for node in nodes]
    types = {c.name: c.kind.sql("spark") if c.kind else "" for c in tree.find_all(exp.ColumnDef)}
    first = [(name, kind) for name, kind in types.items() if name not in partition_by]
    return (*first, *((name, types.get(name, "")) for name in partition_by)), tuple(partition_by)


def run_create(session: Session, statement: CreateTable) -> DataFrame:
    """Create the table unless one exists at its path, and register it in Spark's catalog."""
    spark = session.spark
    if statement.if_not_exists and spark.catalog.tableExists(statement.name):
        return spark.createDataFrame([], T.StructType())
    path = statement.path
    if not path:
        raise InvalidError(
            "CREATE TABLE USING hudi needs the LOCATION of a new or existing table",
            name=statement.name,
        )
    options = statement.options
    _refuse_storage_settings(options)
    read_options = {
        key: value for key, value in options.items() if key.lower() not in _ARGUMENT_NAMES
    }
    table_storage = storage_options(options)
    session_storage = session_storage_options(spark)
    storage = storage_for(path, {**session_storage, **table_storage})
    if not table_exists(storage):
        statement = _create(session, statement, path)
        read_options = {"path": path}
    elif statement.query:
        raise InvalidError(
            "there is a table at this LOCATION: CREATE TABLE without a query registers it, and "
            "INSERT INTO adds rows",
            path=path,
        )
    else:
        _check_names(options)
    schema = spark_schema(
        planned({**read_options, **table_storage}, session=session_storage)[1].result_schema
    )
    names = set(schema.names)
    unknown = [name for name, _ in statement.columns if name not in names]
    if unknown:
        raise InvalidError(
            "the table has no such column: leave the columns out, they are the table's own",
            unknown=unknown,
            path=path,
        )
    first, *rest = schema.fields
    stored = {
        key: value for key, value in read_options.items() if key == "path" or key in READ_KEYS
    }
    stored |= table_storage
    # Spark copies this metadata into views, and into the footers of files written from the table.
    marked = T.StructField(first.name, first.dataType, first.nullable, {OPTIONS_METADATA: stored})
    register_source(spark)
    spark.catalog.createTable(
        statement.name, source=FORMATS[0], schema=T.StructType([marked, *rest])
    )
    return spark.createDataFrame([], T.StructType())


def _create(session: Session, statement: CreateTable, path: str) -> CreateTable:
    """Create the table, and return the statement with the columns of its query.

    If the query fails while its rows are written, an empty table remains.
    """
    if not statement.query:
        _create_empty(session, statement, path)
        return statement
    frame = session.query(statement.query)
    partition_columns = [column_named(frame.schema.fields, name) for name in statement.partition_by]
    partition_by = tuple(field.name for field in partition_columns)
    data_columns = [field for field in frame.schema if field.name not in partition_by]
    columns = tuple(
        (field.name, type_sql(field.dataType)) for field in (*data_columns, *partition_columns)
    )
    statement = replace(statement, columns=columns, partition_by=partition_by)
    _create_empty(session, statement, path)
    table = session.open(path, options=storage_options(statement.options))
    target = TargetTable(session, table, table.snapshot(), "")
    target.write(Operation.BULK_INSERT, frame.select(*(quoted(name) for name, _ in columns)))
    return statement


def _create_empty(session: Session, statement: CreateTable, path: str) -> None:
    if not statement.columns or any(not kind for _, kind in statement.columns):
        raise InvalidError(
            "there is no table at this LOCATION: save some rows there, or give the columns of a "
            "new one with their types",
            path=path,
        )
    arguments = _arguments(statement.options)
    options = {
        key: value
        for key, value in statement.options.items()
        if key != "path" and key.lower() not in _ARGUMENT_NAMES and key.lower() not in READ_KEYS
    }
    schema = ", ".join(f"{quoted(name)} {kind}" for name, kind in statement.columns)
    unqualified_name = re.sub(r"`", "", statement.name.rpartition(".")[2])
    create(
        path,
        session.spark,
        name=options.pop("hoodie.table.name", unqualified_name),
        partition_by=statement.partition_by or None,
        schema=schema,
        options=options,
        **arguments,
    )


def _arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `create` that properties such as `primaryKey` stand for."""
    _check_names(options)
    lowered = {key.lower(): value for key, value in options.items()}
    return {
        argument: lowered[name] for name, argument in _ARGUMENT_NAMES.items() if name in lowered
    }


def _refuse_storage_settings(options: Mapping[str, str]) -> None:
    """Raise InvalidError for storage settings and credentials.

    The catalog shows the options of a table to every user who may read the table.
    """
    for key in options:
        if is_hadoop_setting(key):
            setting = f"spark.hadoop.{key.removeprefix('spark.hadoop.')}"
        elif _SECRET_NAME.search(key) and not key.startswith("hoodie."):
            setting = "spark.hadoop.fs.s3a.secret.key, for example"
        else:
            continue
        raise InvalidError(
            "a catalog would keep and show this option: give settings of storage, credentials "
            "among them, to the session",
            option=key,
            setting=setting,
        )


def _check_names(options: Mapping[str, str]) -> None:
    """Raise InvalidError for an unknown property: the catalog does not store any of its own."""
    table_options = other_options(options)
    check_names(
        (key for key in table_options if key != "path" and key.lower() not in _ARGUMENT_NAMES),
        also=(*storage_option_names(), *_SQL_PROPERTIES),
    )
