"""SQL statements that Spark cannot carry out for a Python source, carried out here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlglot
from pyspark.sql import types as T
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.interfaces.datasource import FORMATS, OPTIONS_METADATA, planned
from lakewright.read.run import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CREATE_TABLE = re.compile(
    r"\s*CREATE\s+(EXTERNAL\s+)?TABLE\s.*\bUSING\s+(`?)(org\.apache\.)?hudi\b", re.I | re.S
)


@dataclass(frozen=True)
class CreateTable:
    """`CREATE TABLE name USING hudi LOCATION path`, for a table that is there already."""

    name: str
    if_not_exists: bool
    options: dict[str, str]
    columns: tuple[str, ...] = ()


def parse_statement(text: str) -> CreateTable | None:
    """The statement if it is one of those carried out here, else None."""
    if not _CREATE_TABLE.match(text):
        return None
    plain = re.sub(r"\borg\.apache\.hudi\b", FORMATS[0], text)
    try:
        tree = sqlglot.parse_one(plain, read="spark")
    except SqlglotError as error:
        raise InvalidError("the statement does not parse", sql=text, reason=str(error)) from error
    source = tree.find(exp.FileFormatProperty)
    if not isinstance(tree, exp.Create) or source is None or source.name.lower() not in FORMATS:
        return None
    if tree.expression:
        raise UnsupportedError(
            "CREATE TABLE USING hudi AS SELECT is not carried out: save the rows with "
            'df.write.format("hudi"), then create the table with their LOCATION',
            sql=text,
        )
    table = tree.find(exp.Table)
    assert table is not None
    options = {
        p.this.sql("spark").replace("`", ""): p.args["value"].name
        for p in tree.find_all(exp.Property)
        if _is_text(p)
    }
    location = tree.find(exp.LocationProperty)
    if location is not None:
        options["path"] = location.name
    columns = tuple(column.name for column in tree.find_all(exp.ColumnDef))
    return CreateTable(table.sql("spark"), bool(tree.args.get("exists")), options, columns)


def run_statement(spark: SparkSession, statement: CreateTable) -> DataFrame:
    """Put an existing table into Spark's catalog under a name."""
    path = statement.options.get("path")
    if not path:
        raise InvalidError(
            "CREATE TABLE USING hudi needs the LOCATION of a table that is there: save some rows "
            "first, or make an empty one with lakewright.create",
            name=statement.name,
        )
    if not (statement.if_not_exists and spark.catalog.tableExists(statement.name)):
        schema = spark_schema(planned(statement.options)[1].result_schema)
        unknown = [name for name in statement.columns if name not in schema.names]
        if unknown:
            raise InvalidError(
                "the table has no such column: leave the columns out, they are the table's own",
                unknown=unknown,
                path=path,
            )
        first, *rest = schema.fields
        metadata = {OPTIONS_METADATA: statement.options}
        carrying = T.StructField(first.name, first.dataType, first.nullable, metadata)
        spark.catalog.createTable(
            statement.name, source=FORMATS[0], schema=T.StructType([carrying, *rest])
        )
    return spark.createDataFrame([], T.StructType())


def _is_text(item: exp.Property) -> bool:
    return type(item) is exp.Property and isinstance(item.args.get("value"), exp.Literal)
