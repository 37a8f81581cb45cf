"""Which tables are ours: names in Spark's catalog, and paths as in hudi.`/data/trips`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from lakewright.datasource.source import FORMATS, OPTIONS_METADATA
from lakewright.errors import InvalidError
from lakewright.storage.factory import storage_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DETAILS = "# Detailed Table Information"


@dataclass(frozen=True)
class Address:
    """Where a table is, and the options of its storage that the catalog keeps with its name."""

    path: str
    options: Mapping[str, str] = field(default_factory=dict)


def quoted_name(parts: Sequence[str]) -> str:
    """A name in quotes, whatever characters are in it."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def named_path(parts: Sequence[str]) -> str | None:
    """The path in a name such as hudi.`/data/trips`."""
    is_path = len(parts) == 2 and parts[0].lower() in FORMATS and "/" in parts[1]
    return parts[1] if is_path else None


def address_of(spark: SparkSession, parts: Sequence[str]) -> Address | None:
    """Where a table of ours is; None for other tables, for views, and if there is no such table.

    What a table's columns carry is copied along with them into views and other tables: the catalog
    tells whether the table itself is ours.
    """
    path = named_path(parts)
    if path is not None:
        return Address(path)
    name = quoted_name(parts)
    try:
        fields = spark.table(name).schema.fields
        options = fields[0].metadata.get(OPTIONS_METADATA, {}) if fields else {}
        if not options.get("path") or not _is_ours(spark, name):
            return None
    except PySparkException:
        return None
    return Address(str(options["path"]), storage_options(options))


def _is_ours(spark: SparkSession, name: str) -> bool:
    """Whether a name is that of a table of ours, not of a view, or of a table of another format.

    Spark tells the format of all tables but those of a Python source.
    """
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    told = [row.col_name for row in rows]
    if _DETAILS not in told:
        return False
    details = {row.col_name: row.data_type for row in rows[told.index(_DETAILS) :]}
    if "VIEW" in str(details.get("Type", "")).upper():
        return False
    return str(details.get("Provider") or FORMATS[0]).lower() in FORMATS


def require_address(spark: SparkSession, text: str) -> Address:
    """Where the table is that a procedure names as db.table; InvalidError if it is not ours."""
    parts = [part.strip().strip("`") for part in text.split(".")]
    found = address_of(spark, parts) if all(parts) and len(parts) <= 3 else None
    if found is None:
        raise InvalidError(
            "there is no table of the hudi format with this name: register one with CREATE TABLE "
            "... USING hudi LOCATION '...', or give path => '...'",
            table=text,
        )
    return found
