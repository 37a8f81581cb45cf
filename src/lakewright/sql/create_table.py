"""`CREATE TABLE ... USING hudi`: a new table, with the rows of a query or without, or a name."""

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
_SECRET = re.compile(r"secret|password|passphrase|token|(?:^|[._-])key(?:$|[._-])", re.I)
_GIVEN = re.compile(
    r"([\w.-]*(?:secret|password|passphrase|token|key)[\w.-]*['\"`]?\s*=?\s*)('[^']*'|\"[^\"]*\")",
    re.I,
)
_COLOURS = re.compile(r"\x1b\[\d*m")
# What SQL calls the arguments of `create`.
_NAMES = {
    "type": "table_type",
    "primarykey": "record_key",
    "precombinefield": "ordering",
    "orderingfields": "ordering",
}
_SPELLED = ("type", "primaryKey", "preCombineField", "orderingFields")


@dataclass(frozen=True)
class CreateTable:
    """`CREATE TABLE name (columns) USING hudi` with its properties, LOCATION among them.

    `query` gives the columns and rows, if they are not listed.
    """

    name: str
    if_not_exists: bool
    options: dict[str, str]
    columns: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()
    query: str = ""

    @property
    def path(self) -> str | None:
        """Where the table is, or is to be."""
        return self.options.get("path")


def parse_create(text: str) -> CreateTable | None:
    """The statement if it creates a table of ours, else None."""
    text = statement_of(text)
    if not _CREATE_TABLE.match(text):
        return None
    head, query = _parted(text)
    plain = re.sub(r"\borg\.apache\.hudi\b", FORMATS[0], head)
    try:
        tree = sqlglot.parse_one(plain, read="spark")
    except SqlglotError as error:
        reason = _without_secrets(_COLOURS.sub("", str(error)))
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
        raise InvalidError("columns are listed, or a query gives them: leave one of both out")
    exists = bool(tree.args.get("exists"))
    return CreateTable(name, exists, options, columns, partition_by, query)


def _value(of: exp.Property) -> str:
    """The value of a property, which may be a text, a number or a truth value."""
    value = of.args.get("value")
    if isinstance(value, exp.Boolean):
        return "true" if value.this else "false"
    if not isinstance(value, exp.Literal):
        raise InvalidError(
            "the value of a property is a text, a number, true or false", property=of.sql("spark")
        )
    return str(value.name)


def _without_secrets(text: str) -> str:
    """A statement as an error may tell it: the values of what may be credentials are left out."""
    return _GIVEN.sub(r"\1'***'", text)


def _parted(text: str) -> tuple[str, str]:
    """A statement up to its query, and the query as it was written; empty if there is none."""
    cursor = Cursor(text, tokenize(text) or ())
    cursor.until(("USING",))
    cursor.until(("AS", "SELECT", "WITH", "VALUES", "FROM"))
    if cursor.ended:
        return text, ""
    start = cursor.words[cursor.at].start
    cursor.take("AS")
    return text[:start], cursor.rest()


def _columns(tree: exp.Create) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The columns with their types, those of the partition last, and the latter's names."""
    by = tree.find(exp.PartitionedByProperty)
    listed = list(by.this.expressions) if by is not None and by.this is not None else []
    named = [each.name for each in listed]
    known = {c.name: c.kind.sql("spark") if c.kind else "" for c in tree.find_all(exp.ColumnDef)}
    first = [(name, kind) for name, kind in known.items() if name not in named]
    return (*first, *((name, known.get(name, "")) for name in named)), tuple(named)


def run_create(session: Session, statement: CreateTable) -> DataFrame:
    """Make the table if there is none at its path, and put it into Spark's catalog."""
    spark = session.spark
    if statement.if_not_exists and spark.catalog.tableExists(statement.name):
        return spark.createDataFrame([], T.StructType())
    path = statement.path
    if not path:
        raise InvalidError(
            "CREATE TABLE USING hudi needs the LOCATION of the table, new or there already",
            name=statement.name,
        )
    told = statement.options
    _check_kept(told)
    reads = {key: value for key, value in told.items() if key.lower() not in _NAMES}
    places = storage_options(told)
    session_places = session_storage_options(spark)
    storage = storage_for(path, {**session_places, **places})
    if not table_exists(storage):
        statement = _make(session, statement, path)
        reads = {"path": path}
    elif statement.query:
        raise InvalidError(
            "there is a table at this LOCATION: CREATE TABLE without a query gives it a name, and "
            "INSERT INTO adds rows",
            path=path,
        )
    else:
        _check_names(told)
    schema = spark_schema(planned({**reads, **places}, session=session_places)[1].result_schema)
    known = set(schema.names)
    unknown = [name for name, _ in statement.columns if name not in known]
    if unknown:
        raise InvalidError(
            "the table has no such column: leave the columns out, they are the table's own",
            unknown=unknown,
            path=path,
        )
    first, *rest = schema.fields
    kept = {key: value for key, value in reads.items() if key == "path" or key in READ_KEYS}
    kept |= places
    # Spark copies it into views and into the footers of files that are written from the table.
    carrying = T.StructField(first.name, first.dataType, first.nullable, {OPTIONS_METADATA: kept})
    register_source(spark)
    spark.catalog.createTable(
        statement.name, source=FORMATS[0], schema=T.StructType([carrying, *rest])
    )
    return spark.createDataFrame([], T.StructType())


def _make(session: Session, statement: CreateTable, path: str) -> CreateTable:
    """Make the table; gives the statement with the columns that it has by now.

    If the rows of its query cannot be written then, it stays without rows.
    """
    if not statement.query:
        _make_empty(session, statement, path)
        return statement
    frame = session.query(statement.query)
    last = [column_named(frame.schema.fields, name) for name in statement.partition_by]
    partition_by = tuple(field.name for field in last)
    first = [field for field in frame.schema if field.name not in partition_by]
    columns = tuple((field.name, type_sql(field.dataType)) for field in (*first, *last))
    statement = replace(statement, columns=columns, partition_by=partition_by)
    _make_empty(session, statement, path)
    table = session.open(path, options=storage_options(statement.options))
    goal = TargetTable(session, table, table.snapshot(), "")
    goal.write(Operation.BULK_INSERT, frame.select(*(quoted(name) for name, _ in columns)))
    return statement


def _make_empty(session: Session, statement: CreateTable, path: str) -> None:
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
        if key != "path" and key.lower() not in _NAMES and key.lower() not in READ_KEYS
    }
    schema = ", ".join(f"{quoted(name)} {kind}" for name, kind in statement.columns)
    short = re.sub(r"`", "", statement.name.rpartition(".")[2])
    create(
        path,
        session.spark,
        name=options.pop("hoodie.table.name", short),
        partition_by=statement.partition_by or None,
        schema=schema,
        options=options,
        **arguments,
    )


def _arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """The properties that SQL has names of its own for."""
    _check_names(options)
    told = {key.lower(): value for key, value in options.items()}
    return {argument: told[name] for name, argument in _NAMES.items() if name in told}


def _check_kept(options: Mapping[str, str]) -> None:
    """Refuse what must not get into a catalog, where everybody who may see a table can read it."""
    for key in options:
        if is_hadoop_setting(key):
            setting = f"spark.hadoop.{key.removeprefix('spark.hadoop.')}"
        elif _SECRET.search(key) and not key.startswith("hoodie."):
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
    """InvalidError for a property that nothing here takes: the catalog keeps none of its own."""
    others = other_options(options)
    check_names(
        (key for key in others if key != "path" and key.lower() not in _NAMES),
        also=(*storage_option_names(), *_SPELLED),
    )
