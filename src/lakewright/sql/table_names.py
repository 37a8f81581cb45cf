"""Resolution of table names to Hudi tables: names in Spark's catalog, and hudi.`/data/trips`."""

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

_DETAILS_HEADER = "# Detailed Table Information"


@dataclass(frozen=True)
class Address:
    """The path of a table, and the storage options that the catalog stores with its name."""

    path: str
    options: Mapping[str, str] = field(default_factory=dict)


def quoted_name(parts: Sequence[str]) -> str:
    """Return a qualified name with its parts in backquotes."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def named_path(parts: Sequence[str]) -> str | None:
    """Return the path in a name such as hudi.`/data/trips`, None for other names."""
    is_path = len(parts) == 2 and parts[0].lower() in FORMATS and "/" in parts[1]
    return parts[1] if is_path else None


def address_of(spark: SparkSession, parts: Sequence[str]) -> Address | None:
    """Return the address of a Hudi table; None for other tables, views and unknown names.

    The path is in the metadata of a column, which Spark copies into views and other tables. So the
    catalog has to confirm that the name is that of a Hudi table.
    """
    path = named_path(parts)
    if path is not None:
        return Address(path)
    name = quoted_name(parts)
    try:
        fields = spark.table(name).schema.fields
        options = fields[0].metadata.get(OPTIONS_METADATA, {}) if fields else {}
        if not options.get("path") or not _is_hudi_table(spark, name):
            return None
    except PySparkException:
        return None
    return Address(str(options["path"]), storage_options(options))


def _is_hudi_table(spark: SparkSession, name: str) -> bool:
    """Whether a name is that of a Hudi table, not of a view or of a table of another format."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    labels = [row.col_name for row in rows]
    if _DETAILS_HEADER not in labels:
        return False
    details = {row.col_name: row.data_type for row in rows[labels.index(_DETAILS_HEADER) :]}
    if "VIEW" in str(details.get("Type", "")).upper():
        return False
    # Spark reports no provider for tables of a Python data source.
    return str(details.get("Provider") or FORMATS[0]).lower() in FORMATS


def require_address(spark: SparkSession, text: str) -> Address:
    """Return the address of the table `db.table`; InvalidError if it is not a Hudi table."""
    parts = [part.strip().strip("`") for part in text.split(".")]
    address = address_of(spark, parts) if all(parts) and len(parts) <= 3 else None
    if address is None:
        raise InvalidError(
            "there is no table of the hudi format with this name: register one with CREATE TABLE "
            "... USING hudi LOCATION '...', or give path => '...'",
            table=text,
        )
    return address
