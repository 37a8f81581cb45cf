"""The table's own properties as a typed value, and which tables this library reads at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from lakewright.errors import CorruptError, InvalidError, UnsupportedError

Choice = TypeVar("Choice", bound=StrEnum)

MERGE_PROPERTY = "hoodie.record.merge.property."
VERSIONS = (8, 9)

# Payload classes of older writers that stand for one of the two orderings.
_PAYLOAD_MODES = {
    "org.apache.hudi.common.model.DefaultHoodieRecordPayload": "EVENT_TIME_ORDERING",
    "org.apache.hudi.common.model.EventTimeAvroPayload": "EVENT_TIME_ORDERING",
    "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload": "COMMIT_TIME_ORDERING",
}


class TableType(StrEnum):
    """Whether updates rewrite base files or are written beside them."""

    COPY_ON_WRITE = "COPY_ON_WRITE"
    MERGE_ON_READ = "MERGE_ON_READ"


class MergeMode(StrEnum):
    """Which of two versions of a row wins."""

    EVENT_TIME = "EVENT_TIME_ORDERING"
    COMMIT_TIME = "COMMIT_TIME_ORDERING"
    CUSTOM = "CUSTOM"


@dataclass(frozen=True)
class TableConfig:
    """`hoodie.properties`, read once: what every reader and writer of the table must agree on."""

    name: str
    table_type: TableType
    version: int
    record_key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...]
    ordering_fields: tuple[str, ...]
    merge_mode: MergeMode
    timeline_zone: str
    properties: Mapping[str, str]

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TableConfig:
        """Type and check the properties; a feature that would change the rows is refused."""
        version = _version(properties)
        _refuse_unknown_features(properties)
        ordering = _csv(properties, "hoodie.table.ordering.fields") or _csv(
            properties, "hoodie.table.precombine.field"
        )
        return cls(
            name=_required(properties, "hoodie.table.name"),
            table_type=_choice(TableType, properties, "hoodie.table.type"),
            version=version,
            record_key_fields=_csv(properties, "hoodie.table.recordkey.fields"),
            # A custom key generator stores `field:KIND`.
            partition_fields=tuple(
                field.split(":")[0] for field in _csv(properties, "hoodie.table.partition.fields")
            ),
            ordering_fields=ordering,
            merge_mode=_merge_mode(properties, ordering),
            timeline_zone=properties.get("hoodie.table.timeline.timezone", "LOCAL"),
            properties=dict(properties),
        )

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A yes-or-no property."""
        text = self.properties.get(key)
        return default if not text else text.strip().lower() == "true"

    @property
    def hive_style(self) -> bool:
        """Whether partition folders are named `field=value`."""
        return self.flag("hoodie.datasource.write.hive_style_partitioning")

    @property
    def url_encoded(self) -> bool:
        """Whether partition values are percent-encoded in folder names."""
        return self.flag("hoodie.datasource.write.partitionpath.urlencode")

    @property
    def has_meta_fields(self) -> bool:
        """Whether the five meta columns hold values."""
        return self.flag("hoodie.populate.meta.fields", default=True)

    @property
    def key_generator(self) -> str:
        """How partition paths and keys were made, upper case; empty when not recorded."""
        return self.properties.get("hoodie.table.keygenerator.type", "").upper()

    @property
    def timeline_folder(self) -> str:
        """The folder of the active timeline, relative to the table."""
        return ".hoodie/" + self.properties.get("hoodie.timeline.path", "timeline")

    @property
    def history_folder(self) -> str:
        """The folder of the archived timeline, relative to the table."""
        name = self.properties.get("hoodie.timeline.history.path", "history")
        return f"{self.timeline_folder}/{name}"

    @property
    def delete_marker(self) -> tuple[str, str] | None:
        """The column and the value that mark a row as deleted, where the table has its own."""
        field = self._merge_property("hoodie.payload.delete.field")
        marker = self._merge_property("hoodie.payload.delete.marker")
        return (field, marker) if field and marker else None

    def require_changes(self) -> None:
        """InvalidError if rows do not carry the write that they come from."""
        if not self.has_meta_fields:
            raise InvalidError(
                "a table without meta fields has no changes to read", table=self.name
            )

    def require_mergeable(self) -> None:
        """Refuse to merge rows by rules that this library does not have."""
        if self.merge_mode is MergeMode.CUSTOM:
            raise UnsupportedError(
                "the table merges rows by a class of its own",
                merge_strategy=self.properties.get("hoodie.record.merge.strategy.id"),
                payload=self.properties.get("hoodie.compaction.payload.class"),
            )
        mode = self.properties.get("hoodie.table.partial.update.mode")
        if mode:
            raise UnsupportedError(
                "the table merges rows column by column", partial_update_mode=mode
            )
        if not self.has_meta_fields:
            raise UnsupportedError(
                "log files of a table without meta fields are not merged", table=self.name
            )

    def _merge_property(self, key: str) -> str | None:
        return self.properties.get(MERGE_PROPERTY + key) or self.properties.get(key)


def _version(properties: Mapping[str, str]) -> int:
    text = _required(properties, "hoodie.table.version")
    if not (text.isascii() and text.isdigit()):
        raise CorruptError("the table version is no number", version=text)
    if int(text) not in VERSIONS:
        raise UnsupportedError(
            "this table version is not known; versions before 8 can be upgraded with Hudi 1.x",
            version=int(text),
            known=VERSIONS,
        )
    return int(text)


_REFUSED = {
    "hoodie.timeline.layout.version": ("2", "a timeline of another layout"),
    "hoodie.table.base.file.format": ("PARQUET", "base files that are not parquet"),
    "hoodie.table.log.file.format": ("HOODIE_LOG", "log files of another format"),
    "hoodie.table.format": ("native", "a table format plugin"),
    "hoodie.table.multiple.base.file.formats.enable": ("false", "several base file formats"),
    "hoodie.datasource.write.drop.partition.columns": (
        "false",
        "data files without their partition columns",
    ),
}


def _refuse_unknown_features(properties: Mapping[str, str]) -> None:
    for key, (known, meaning) in _REFUSED.items():
        value = properties.get(key, known)
        if value.lower() != known.lower():
            raise UnsupportedError(f"the table has {meaning}", **{key: value})
    if properties.get("hoodie.bootstrap.base.path"):
        raise UnsupportedError(
            "bootstrapped tables are not read", base=properties["hoodie.bootstrap.base.path"]
        )


def _merge_mode(properties: Mapping[str, str], ordering: tuple[str, ...]) -> MergeMode:
    text = properties.get("hoodie.record.merge.mode")
    if not text:
        payload = properties.get("hoodie.compaction.payload.class", "")
        inferred = MergeMode.EVENT_TIME if ordering else MergeMode.COMMIT_TIME
        return MergeMode(_PAYLOAD_MODES.get(payload, "CUSTOM")) if payload else inferred
    mode = _choice(MergeMode, properties, "hoodie.record.merge.mode")
    # Without an ordering field every version carries the same ordering value: the later one wins.
    return MergeMode.COMMIT_TIME if mode is MergeMode.EVENT_TIME and not ordering else mode


def _required(properties: Mapping[str, str], key: str) -> str:
    value = properties.get(key)
    if not value:
        raise CorruptError("hoodie.properties lacks a property that every table has", property=key)
    return value


def _choice(kind: type[Choice], properties: Mapping[str, str], key: str) -> Choice:
    text = _required(properties, key)
    try:
        return kind(text.upper())
    except ValueError as error:
        raise CorruptError(
            "a table property has a value that does not exist",
            property=key,
            value=text,
            known=[str(choice) for choice in kind],
        ) from error


def _csv(properties: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in properties.get(key, "").split(",") if part.strip())
