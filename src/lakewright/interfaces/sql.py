"""SQL statements that Spark cannot carry out for a Python source, carried out here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlglot
from pyspark.sql import types as T
from sqlglot import exp

from lakewright.errors import InvalidError
from lakewright.interfaces.datasource import FORMATS, OPTIONS_METADATA, storage_options
from lakewright.interfaces.query_options import plan_query, read_settings
from lakewright.read.run import spark_schema
from lakewright.storage.locate import storage_for
from lakewright.table.snapshot import load_snapshot

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


def parse_statement(text: str) -> CreateTable | None:
    """The statement if it is one of those carried out here, else None."""
    if not _CREATE_TABLE.match(text):
        return None
    plain = re.sub(r"\borg\.apache\.hudi\b", FORMATS[0], text)
    try:
        tree = sqlglot.parse_one(plain, read="spark")
    except sqlglot.ParseError as error:
        raise InvalidError("the statement does not parse", sql=text, reason=str(error)) from error
    if not isinstance(tree, exp.Create):
        raise InvalidError("the statement does not parse", sql=text)
    table = tree.find(exp.Table)
    assert table is not None
    options = {p.name: p.args["value"].name for p in tree.find_all(exp.Property) if _is_text(p)}
    location = tree.find(exp.LocationProperty)
    if location is not None:
        options["path"] = location.name
    return CreateTable(table.sql("spark"), bool(tree.args.get("exists")), options)


def run_statement(spark: SparkSession, statement: CreateTable) -> DataFrame:
    """Put an existing table into Spark's catalog under a name."""
    path = statement.options.get("path")
    if not path:
        raise InvalidError(
            "CREATE TABLE USING hudi needs the LOCATION of a table", name=statement.name
        )
    if not (statement.if_not_exists and spark.catalog.tableExists(statement.name)):
        storage = storage_for(path, storage_options(statement.options))
        settings = read_settings(statement.options)
        schema = spark_schema(plan_query(load_snapshot(storage), settings).result_schema)
        first, *rest = schema.fields
        metadata = {OPTIONS_METADATA: {**statement.options, "path": path}}
        carrying = T.StructField(first.name, first.dataType, first.nullable, metadata)
        spark.catalog.createTable(
            statement.name, source=FORMATS[0], schema=T.StructType([carrying, *rest])
        )
    return spark.createDataFrame([], T.StructType())


def _is_text(item: exp.Property) -> bool:
    return type(item) is exp.Property and isinstance(item.args.get("value"), exp.Literal)
