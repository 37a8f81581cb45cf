"""Options of catalog sync, with Hudi's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lakewright.errors import InvalidError
from lakewright.options import at_least, option, option_keys, parse_bool, parse_word, settings_from

_GLUE_TOOL = "awsgluecatalogsynctool"
_HIVE_TOOL = "hivesynctool"


class SyncMode(StrEnum):
    """The kind of catalog."""

    HMS = "HMS"
    GLUE = "GLUE"
    SPARK = "SPARK"


class TableStrategy(StrEnum):
    """Which views of a merge-on-read table are registered."""

    ALL = "ALL"
    RO = "RO"
    RT = "RT"


def _mode(text: str) -> SyncMode:
    name = text.strip().upper()
    if name in ("JDBC", "HIVEQL"):
        raise ValueError("a Hive server is not asked: use hms, with the metastore's address")
    if name not in list(SyncMode):
        raise ValueError("hms, glue or spark expected")
    return SyncMode(name)


def _tool(text: str) -> SyncMode:
    names = [name.strip().rpartition(".")[2].lower() for name in text.split(",") if name.strip()]
    if names == [_GLUE_TOOL]:
        return SyncMode.GLUE
    if names == [_HIVE_TOOL]:
        return SyncMode.HMS
    raise ValueError("HiveSyncTool or AwsGlueCatalogSyncTool expected")


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    lines = [line.partition("=") for line in text.splitlines() if line.strip()]
    if any(not key.strip() or not equals for key, equals, _ in lines):
        raise ValueError("key=value expected, one on each line")
    return tuple((key.strip(), value.strip()) for key, _, value in lines)


def _name(text: str) -> str:
    name = text.strip()
    if not name or not all(char.isalnum() or char == "_" for char in name):
        raise ValueError("letters, digits and underscores expected")
    return name.lower()


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Where a table is registered, and under which name."""

    enabled: bool = option(
        "hoodie.datasource.meta.sync.enable",
        False,
        parse=parse_bool,
        aliases=("hoodie.meta.sync.enable", "hoodie.datasource.hive_sync.enable"),
        doc="Whether a write is followed by a sync of the catalog.",
    )
    mode: SyncMode | None = option(
        "hoodie.datasource.hive_sync.mode",
        None,
        parse=_mode,
        doc="hms: a Hive metastore; glue: AWS Glue; spark: the catalog of the Spark session. "
        "Unset: what the other options name, else spark.",
    )
    tool: SyncMode | None = option(
        "hoodie.meta.sync.client.tool.class",
        None,
        parse=_tool,
        doc="Hudi's class for the same: AwsGlueCatalogSyncTool is glue, HiveSyncTool is hms.",
    )
    database: str = option(
        "hoodie.datasource.hive_sync.database",
        "default",
        parse=_name,
        doc="The database in the catalog.",
    )
    table: str | None = option(
        "hoodie.datasource.hive_sync.table",
        None,
        parse=_name,
        doc="The name in the catalog. Unset: the table's own.",
    )
    uris: tuple[str, ...] = option(
        "hoodie.datasource.hive_sync.metastore.uris",
        (),
        parse=_names,
        doc="hms: where the metastore listens, such as thrift://host:9083; of several, separated "
        "by commas, the first that answers.",
    )
    partition_fields: tuple[str, ...] = option(
        "hoodie.datasource.hive_sync.partition_fields",
        (),
        parse=_names,
        doc="Only checked: they must be the partition columns of the table.",
    )
    create_database: bool = option(
        "hoodie.datasource.hive_sync.auto_create_database",
        True,
        parse=parse_bool,
        doc="Whether to create a missing database.",
    )
    properties: tuple[tuple[str, str], ...] = option(
        "hoodie.datasource.hive_sync.table_properties",
        (),
        parse=_pairs,
        doc="Further table properties, key=value on lines of their own.",
    )
    omit_meta_columns: bool = option(
        "hoodie.datasource.hive_sync.omit_metadata_fields",
        False,
        parse=parse_bool,
        doc="Whether the five _hoodie_ columns stay out of the catalog.",
    )
    strategy: TableStrategy = option(
        "hoodie.datasource.hive_sync.table.strategy",
        TableStrategy.ALL,
        parse=parse_word(TableStrategy),
        doc="Merge-on-read: ALL registers name, name_rt and name_ro; RT and RO only name, as "
        "snapshot or read-optimized.",
    )
    batch: int = option(
        "hoodie.datasource.hive_sync.batch_num",
        1000,
        parse=at_least(1),
        doc="How many partitions are changed in one call.",
    )
    incremental: bool = option(
        "hoodie.meta.sync.incremental",
        True,
        parse=parse_bool,
        doc="Whether changed partitions are read from the timeline since the last sync; otherwise "
        "all are listed and compared.",
    )
    ignore_errors: bool = option(
        "hoodie.datasource.hive_sync.ignore_exceptions",
        True,
        parse=parse_bool,
        doc="Whether a sync that fails after a write is a warning. If false it is an error, "
        "although the write has completed; in Hudi that is the default.",
    )
    region: str | None = option(
        "lakewright.sync.glue.region",
        None,
        parse=str.strip,
        doc="glue: the region. Unset: what the AWS configuration says.",
    )
    endpoint: str | None = option(
        "lakewright.sync.glue.endpoint",
        None,
        parse=str.strip,
        doc="glue: another address than Amazon's.",
    )

    @property
    def kind(self) -> SyncMode:
        """The kind of catalog."""
        if self.mode is not None:
            return self.mode
        if self.uris:
            return SyncMode.HMS
        return self.tool or SyncMode.SPARK


SYNC_KEYS = option_keys(SyncSettings)


def sync_settings(options: Mapping[str, str]) -> SyncSettings:
    """Parse the sync options."""
    settings = settings_from(SyncSettings, options)
    if settings.enabled and settings.kind is SyncMode.HMS and not settings.uris:
        raise InvalidError(
            "a sync to a Hive metastore needs its address: give the option",
            option="hoodie.datasource.hive_sync.metastore.uris",
        )
    return settings
