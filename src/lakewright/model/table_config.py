"""Table properties (`hoodie.properties`) as typed values, and the options that set them.

Tables with a version or feature that this library does not support are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from lakewright.errors import CorruptError, InvalidError, UnsupportedError

Choice = TypeVar("Choice", bound=StrEnum)

MERGE_PROPERTY = "hoodie.record.merge.property."
# The folder of the timeline, the properties and everything else that is no data.
META_FOLDER = ".hoodie"
VERSIONS = (8, 9)

# Payload classes of older writers that are equivalent to a merge mode.
_PAYLOAD_MODES = {
    "org.apache.hudi.common.model.DefaultHoodieRecordPayload": "EVENT_TIME_ORDERING",
    "org.apache.hudi.common.model.EventTimeAvroPayload": "EVENT_TIME_ORDERING",
    "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload": "COMMIT_TIME_ORDERING",
}


class TableType(StrEnum):
    """Whether updates rewrite base files or are written to log files."""

    COPY_ON_WRITE = "COPY_ON_WRITE"
    MERGE_ON_READ = "MERGE_ON_READ"


class MergeMode(StrEnum):
    """How it is decided which of two versions of a row wins."""

    EVENT_TIME = "EVENT_TIME_ORDERING"
    COMMIT_TIME = "COMMIT_TIME_ORDERING"
    CUSTOM = "CUSTOM"


@dataclass(frozen=True)
class TableConfig:
    """The parsed `hoodie.properties`, on which all readers and writers of the table agree."""

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
        """Parse and check the properties; refuse features that would change query results."""
        version = _version(properties)
        _check_features(properties)
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
        """Return a boolean property."""
        text = self.properties.get(key)
        return default if not text else text.strip().lower() == "true"

    @property
    def hive_style(self) -> bool:
        """Whether the levels of partition paths are named `field=value`."""
        return self.flag("hoodie.datasource.write.hive_style_partitioning")

    @property
    def url_encoded(self) -> bool:
        """Whether values are percent-encoded in partition paths."""
        return self.flag("hoodie.datasource.write.partitionpath.urlencode")

    @property
    def has_meta_fields(self) -> bool:
        """Whether the five meta columns are populated."""
        return self.flag("hoodie.populate.meta.fields", default=True)

    @property
    def key_generator(self) -> str:
        """The type of the key generator in upper case; empty if not recorded."""
        return self.properties.get("hoodie.table.keygenerator.type", "").upper()

    @property
    def timeline_folder(self) -> str:
        """The folder of the active timeline, relative to the base path of the table."""
        return f"{META_FOLDER}/{self.properties.get('hoodie.timeline.path', 'timeline')}"

    @property
    def history_folder(self) -> str:
        """The folder of the archived timeline, relative to the base path of the table."""
        name = self.properties.get("hoodie.timeline.history.path", "history")
        return f"{self.timeline_folder}/{name}"

    @property
    def delete_marker(self) -> tuple[str, str] | None:
        """The column and value that mark a row as deleted; None if the table has no custom ones."""
        field = self._merge_property("hoodie.payload.delete.field")
        marker = self._merge_property("hoodie.payload.delete.marker")
        return (field, marker) if field and marker else None

    def require_changes(self) -> None:
        """Raise InvalidError if rows do not record the commit that wrote them."""
        if not self.has_meta_fields:
            raise InvalidError(
                "a table without meta fields has no changes to read",
                table=self.name,
                option="hoodie.populate.meta.fields",
            )

    def require_mergeable(self) -> None:
        """Raise UnsupportedError if this library cannot merge rows of the table."""
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


_SUPPORTED_VALUES = {
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


def _check_features(properties: Mapping[str, str]) -> None:
    for key, (supported, feature) in _SUPPORTED_VALUES.items():
        value = properties.get(key, supported)
        if value.lower() != supported.lower():
            raise UnsupportedError(f"the table has {feature}", **{key: value})
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
    # Without an ordering field all versions have the same ordering value: the later one wins.
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


# The options of a table: keys, aliases and values.

TABLE_NAME = "hoodie.table.name"
DATABASE = "hoodie.database.name"
TABLE_TYPE = "hoodie.table.type"
RECORD_KEY = "hoodie.table.recordkey.fields"
PARTITION_FIELDS = "hoodie.table.partition.fields"
ORDERING = "hoodie.table.ordering.fields"
PRECOMBINE = "hoodie.table.precombine.field"
MERGE_MODE = "hoodie.record.merge.mode"
MERGE_STRATEGY = "hoodie.record.merge.strategy.id"
PAYLOAD = "hoodie.compaction.payload.class"
GENERATOR = "hoodie.table.keygenerator.type"
EXTRACTOR = "hoodie.table.partition_extractor_class"
HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
URL_ENCODE = "hoodie.datasource.write.partitionpath.urlencode"
SLASH_DATES = "hoodie.datasource.write.slash.separated.date.partitioning"
TIMESTAMPS_AS_TEXT = "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
NEW_KEY_ENCODING = "hoodie.write.complex.keygen.new.encoding"
TIME_ZONE = "hoodie.table.timeline.timezone"
CHANGE_DATA = "hoodie.table.cdc.enabled"
CHANGE_LOGGING = "hoodie.table.cdc.supplemental.logging.mode"
CREATE_SCHEMA = "hoodie.table.create.schema"
INDEX_TYPE = "hoodie.index.type"
BUCKETS = "hoodie.bucket.index.num.buckets"
BUCKET_HASH_FIELDS = "hoodie.bucket.index.hash.field"
# Hudi's services read the bucket index from hoodie.properties, but not the key that it hashes: they
# fail unless the record key is also stored under this name.
HASHED_KEY = "hoodie.datasource.write.recordkey.field"
# The event-time column is stored under the keys from which Hudi's writers read it. They preserve
# unknown keys of hoodie.properties, and apply the ones that they know.
EVENT_TIME = "hoodie.payload.event.time.field"
TRACK_EVENT_TIME = "hoodie.write.track.event.time.watermark"
DELETE_FIELD = "hoodie.payload.delete.field"
DELETE_MARKER = "hoodie.payload.delete.marker"

TIME_GENERATOR = "hoodie.keygen.timebased."
OLD_TIME_GENERATOR = "hoodie.deltastreamer.keygen.timebased."

# The write options that set a table property.
WRITE_NAMES: dict[str, tuple[str, ...]] = {
    TABLE_NAME: ("hoodie.datasource.write.table.name",),
    TABLE_TYPE: ("hoodie.datasource.write.table.type", "hoodie.datasource.write.storage.type"),
    RECORD_KEY: (HASHED_KEY,),
    PARTITION_FIELDS: ("hoodie.datasource.write.partitionpath.field",),
    ORDERING: (
        "hoodie.datasource.write.precombine.field",
        PRECOMBINE,
        "hoodie.payload.ordering.field",
    ),
    MERGE_MODE: ("hoodie.write.record.merge.mode",),
    MERGE_STRATEGY: (
        "hoodie.write.record.merge.strategy.id",
        "hoodie.datasource.write.record.merger.strategy",
        "hoodie.compaction.record.merger.strategy",
    ),
    PAYLOAD: ("hoodie.datasource.write.payload.class", "hoodie.table.legacy.payload.class"),
    GENERATOR: ("hoodie.datasource.write.keygenerator.type",),
    "hoodie.table.keygenerator.class": ("hoodie.datasource.write.keygenerator.class",),
    "hoodie.table.version": ("hoodie.write.table.version",),
    EXTRACTOR: (
        "hoodie.datasource.hive_sync.partition_extractor_class",
        "hoodie.datasource.partition_extractor_class",
    ),
    MERGE_PROPERTY + DELETE_FIELD: (DELETE_FIELD,),
    MERGE_PROPERTY + DELETE_MARKER: (DELETE_MARKER,),
}

STRATEGIES = {
    MergeMode.EVENT_TIME: "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
    MergeMode.COMMIT_TIME: "ce9acb64-bde0-424c-9b91-f6ebba25356d",
}
PAYLOADS = {
    MergeMode.EVENT_TIME: "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
    MergeMode.COMMIT_TIME: "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
}
_ORDERED_PAYLOADS = {
    **{payload: mode for mode, payload in PAYLOADS.items()},
    "org.apache.hudi.common.model.EventTimeAvroPayload": MergeMode.EVENT_TIME,
}
_GENERATOR_CLASSES = {
    "SimpleKeyGenerator": "SIMPLE",
    "SimpleAvroKeyGenerator": "SIMPLE",
    "ComplexKeyGenerator": "COMPLEX",
    "ComplexAvroKeyGenerator": "COMPLEX",
    "NonpartitionedKeyGenerator": "NON_PARTITION",
    "NonpartitionedAvroKeyGenerator": "NON_PARTITION",
    "TimestampBasedKeyGenerator": "TIMESTAMP",
    "TimestampBasedAvroKeyGenerator": "TIMESTAMP",
    "CustomKeyGenerator": "CUSTOM",
    "CustomAvroKeyGenerator": "CUSTOM",
}
_GENERATOR_PACKAGE = "org.apache.hudi.keygen."


class IndexType(StrEnum):
    """The index by which a writer finds the file group of a key."""

    SIMPLE = "SIMPLE"
    BLOOM = "BLOOM"
    BUCKET = "BUCKET"
    GLOBAL_SIMPLE = "GLOBAL_SIMPLE"
    GLOBAL_BLOOM = "GLOBAL_BLOOM"

    @property
    def is_global(self) -> bool:
        """Whether keys are unique in the whole table, not only within a partition."""
        return self.name.startswith("GLOBAL")


class CdcLoggingMode(StrEnum):
    """What CDC log files contain besides the operation and the key of each change."""

    KEYS = "OP_KEY_ONLY"
    BEFORE = "DATA_BEFORE"
    BOTH = "DATA_BEFORE_AFTER"


def cdc_logging_mode(properties: Mapping[str, str]) -> CdcLoggingMode | None:
    """Return the CDC logging mode in table properties, or in options for a new table.

    None if CDC is off.
    """
    if properties.get(CHANGE_DATA, "").strip().lower() != "true":
        return None
    mode = properties.get(CHANGE_LOGGING, "").strip().upper() or CdcLoggingMode.BOTH
    if mode not in list(CdcLoggingMode):
        raise InvalidError(
            "changes are not logged in this way",
            known=list(CdcLoggingMode),
            **{CHANGE_LOGGING: mode},
        )
    return CdcLoggingMode(mode)


_UNSUPPORTED_INDEXES = frozenset(
    {"RECORD_INDEX", "RECORD_LEVEL_INDEX", "GLOBAL_RECORD_LEVEL_INDEX", "INMEMORY", "HBASE"}
    | {"FLINK_STATE"}
)


def parse_index_type(text: str) -> IndexType:
    """Parse an index type; UnsupportedError for one that only Hudi has, ValueError for others."""
    name = text.strip().upper()
    if name in _UNSUPPORTED_INDEXES:
        raise UnsupportedError(
            "this index is not supported", index=name, known=[str(kind) for kind in IndexType]
        )
    if name not in list(IndexType):
        raise ValueError(f"one of {', '.join(IndexType)} expected")
    return IndexType(name)


def parse_table_type(text: str) -> TableType:
    """Parse a table type, given by its name or as COW or MOR."""
    name = text.strip().upper()
    abbreviations = {"COW": TableType.COPY_ON_WRITE, "MOR": TableType.MERGE_ON_READ}
    if name in abbreviations:
        return abbreviations[name]
    if name not in list(TableType):
        raise InvalidError(
            "there is no such table type", type=text, known=[*TableType, *abbreviations]
        )
    return TableType(name)


def generator_type(text: str) -> str:
    """Return the type of a key generator, given its type or its class name."""
    type_name = text.strip().upper().removesuffix("_AVRO")
    if type_name in _GENERATOR_CLASSES.values():
        return type_name
    class_name = text.strip().removeprefix(_GENERATOR_PACKAGE)
    if class_name not in _GENERATOR_CLASSES:
        types = sorted(set(_GENERATOR_CLASSES.values()))
        raise UnsupportedError("this key generator is not known", generator=text, known=types)
    return _GENERATOR_CLASSES[class_name]


def requested_merge_mode(options: Mapping[str, str]) -> MergeMode | None:
    """Return the merge mode that options request by name, strategy id or payload class.

    Raises:
        UnsupportedError: rows would be merged by a class that this library does not have.
        InvalidError: the options contradict each other.
    """
    requested: dict[str, MergeMode] = {}
    for key, text in option_value(options, MERGE_MODE).items():
        requested[key] = _merge_mode_option(text, key)
    mode_by_strategy = {strategy: mode for mode, strategy in STRATEGIES.items()}
    for modes, name in ((mode_by_strategy, MERGE_STRATEGY), (_ORDERED_PAYLOADS, PAYLOAD)):
        for key, text in option_value(options, name).items():
            if text not in modes:
                raise UnsupportedError(
                    "rows are merged by event time or by commit time, not by a class of one's own",
                    **{key: text},
                )
            requested[key] = modes[text]
    if len(set(requested.values())) > 1:
        raise InvalidError(
            "options ask for different merge modes", **{key: str(v) for key, v in requested.items()}
        )
    return next(iter(requested.values()), None)


def option_value(options: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the values that options have for a table property, by key; blank ones are ignored."""
    names = (name, *WRITE_NAMES.get(name, ()))
    return {key: options[key].strip() for key in names if options.get(key, "").strip()}


def csv(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated text."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def same_fields(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether two lists of fields are equal; the `:kind` of a CUSTOM generator ignores case."""

    def normalized(fields: Iterable[str]) -> list[tuple[str, str]]:
        return [(name, kind.upper()) for name, _, kind in (f.partition(":") for f in fields)]

    return normalized(one) == normalized(other)


def _merge_mode_option(text: str, key: str) -> MergeMode:
    name = text.upper()
    if name == MergeMode.CUSTOM:
        raise UnsupportedError("rows are not merged by a class of one's own", **{key: text})
    if name not in list(MergeMode):
        raise InvalidError("there is no such merge mode", known=list(MergeMode)[:2], **{key: text})
    return MergeMode(name)
