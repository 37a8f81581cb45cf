"""Creating a table: what a new table shall be, its properties as real Hudi writes them, its files.

A table exists as soon as its `hoodie.properties` exists, which appears atomically. Next to it is an
empty file `timeline/.keep`: real Hudi does not open a table whose timeline folder is missing, and a
folder exists only by its files.

The first section derives the properties from a `TableSpec`; the second one creates the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

from lakewright.clock import Clock
from lakewright.errors import ConflictError, InvalidError, UnsupportedError
from lakewright.format.schema_evolution import evolved
from lakewright.format.table_properties import format_properties, with_table_checksum
from lakewright.model import table_config as keys
from lakewright.model.event_time import event_range
from lakewright.model.partition_paths import partition_rule
from lakewright.model.record_keys import key_rule
from lakewright.model.schema import META_COLUMNS
from lakewright.model.table_config import (
    MERGE_PROPERTY,
    META_FOLDER,
    IndexType,
    MergeMode,
    TableConfig,
    TableType,
    csv,
    option_value,
    same_fields,
)
from lakewright.model.ttl import PREFIX as TTL_PREFIX
from lakewright.model.ttl import TTL_KEYS, validated_settings
from lakewright.options import HUDI_OPTIONS, OWN_OPTIONS, added_options, parse_bool, settings_from
from lakewright.storage.base import Storage
from lakewright.table.options import PLAN_KEYS, PlanSettings
from lakewright.table.properties import BACKUP, METADATA_FOLDER, PROPERTIES

# What real Hudi writes into every table, with the only values that this library supports.
_FIXED_PROPERTIES = {
    "hoodie.archivelog.folder": "history",
    "hoodie.datasource.write.drop.partition.columns": "false",
    "hoodie.partition.metafile.use.base.format": "false",
    "hoodie.populate.meta.fields": "true",
    "hoodie.table.base.file.format": "PARQUET",
    "hoodie.table.format": "native",
    "hoodie.table.multiple.base.file.formats.enable": "false",
    "hoodie.timeline.history.path": "history",
    "hoodie.timeline.layout.version": "2",
    "hoodie.timeline.path": "timeline",
}
_FLAGS = (keys.SLASH_DATES, keys.TIMESTAMPS_AS_TEXT, keys.NEW_KEY_ENCODING)
_STORED_PREFIXES = ("lakewright.",)
_TABLE_OPTIONS = frozenset(
    {
        *_FIXED_PROPERTIES,
        *_FLAGS,
        *PLAN_KEYS,
        *keys.WRITE_NAMES,
        *(name for names in keys.WRITE_NAMES.values() for name in names),
        *(keys.DATABASE, keys.HIVE_STYLE, keys.URL_ENCODE, keys.TIME_ZONE, keys.INDEX_TYPE),
        *(keys.BUCKETS, keys.BUCKET_HASH_FIELDS, keys.EVENT_TIME, keys.TRACK_EVENT_TIME),
        *(keys.CHANGE_DATA, keys.CHANGE_LOGGING),
        *(key for key in TTL_KEYS if key.startswith(TTL_PREFIX)),
    }
)
_TABLE_OPTION_PREFIXES = (keys.TIME_GENERATOR, keys.OLD_TIME_GENERATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """What a new table shall be; options may add to it, with Hudi's keys, but not contradict it.

    Without key fields the rows of a table get generated keys and can only be inserted.
    """

    name: str
    table_type: TableType = TableType.COPY_ON_WRITE
    record_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()
    event_time: str | None = None
    schema: pa.Schema | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def is_table_option(key: str) -> bool:
    """Whether an option belongs to the table, so that `create_table` takes it into account."""
    name = key.lower()
    if name.startswith(_STORED_PREFIXES):
        return name in OWN_OPTIONS or key in added_options()
    return name in _TABLE_OPTIONS or (
        name.startswith(_TABLE_OPTION_PREFIXES) and name in HUDI_OPTIONS
    )


def table_properties(spec: TableSpec) -> dict[str, str]:
    """Return the properties of the table that a spec describes, without their checksum.

    Raises:
        InvalidError: the spec is wrong.
        UnsupportedError: it asks for a feature that this library does not have.
    """
    options = {key.lower(): str(value) for key, value in spec.options.items()}
    _check_spec(spec, options)
    version = _version(options)
    properties = {
        keys.TABLE_NAME: spec.name,
        **({keys.DATABASE: options[keys.DATABASE]} if options.get(keys.DATABASE) else {}),
        keys.TABLE_TYPE: str(spec.table_type),
        "hoodie.table.version": version,
        "hoodie.table.initial.version": version,
        **({keys.RECORD_KEY: ",".join(spec.record_key)} if spec.record_key else {}),
        keys.PARTITION_FIELDS: ",".join(spec.partition_by),
        keys.TIME_ZONE: _time_zone(options),
        **_FIXED_PROPERTIES,
        **_change_data(spec, options),
        **_merging(spec, options, version),
        **_paths(spec, options),
        **_index(spec, options),
        **_event_time(spec, options),
        **_stored_options(options),
        **_ttl(spec, options),
    }
    if spec.schema is not None:
        first = evolved(None, spec.schema, name=spec.name, allow_missing=False)
        properties[keys.CREATE_SCHEMA] = first.avro
    _check_generator(spec, properties)
    return properties


def _check_spec(spec: TableSpec, options: Mapping[str, str]) -> None:
    if not spec.name.strip() or spec.name != spec.name.strip() or not spec.name.isprintable():
        raise InvalidError("a table needs a name, of characters that can be seen", name=spec.name)
    if spec.table_type is TableType.MERGE_ON_READ and not spec.record_key:
        raise InvalidError("a merge-on-read table needs a record key", table=spec.name)
    groups = {
        "record_key": spec.record_key,
        "partition_by": tuple(name.partition(":")[0] for name in spec.partition_by),
        "ordering": spec.ordering,
        "event_time": (spec.event_time,) if spec.event_time is not None else (),
    }
    for use, names in groups.items():
        _check_fields(names, use, spec.schema)
    if spec.schema is not None and spec.event_time in spec.schema.names:
        column = spec.schema.field(spec.event_time)
        event_range(pa.array([], column.type), column.name)  # refuses types without times
    _check_options_agree(spec, options)
    for key, value in _FIXED_PROPERTIES.items():
        if options.get(key, value).strip().lower() != value.lower():
            raise UnsupportedError("tables like this are not written", **{key: options[key]})


def _check_fields(names: tuple[str, ...], use: str, schema: pa.Schema | None) -> None:
    for name in names:
        if not name.strip() or "," in name or name in META_COLUMNS:
            raise InvalidError("this cannot be a column of the table", **{use: name})
        if schema is not None and not _has_field(schema, name):
            raise InvalidError("the schema lacks a column", columns=schema.names, **{use: name})
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise InvalidError("a column is named twice", **{use: duplicates})


def _has_field(schema: pa.Schema, name: str) -> bool:
    head, *inner = [name] if name in schema.names else name.split(".")
    if schema.get_field_index(head) < 0:
        return False
    kind = schema.field(head).type
    for part in inner:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return False
        kind = kind.field(part).type
    return True


def _check_options_agree(spec: TableSpec, options: Mapping[str, str]) -> None:
    """Raise InvalidError for an option that contradicts the spec."""
    specified = {
        keys.RECORD_KEY: spec.record_key,
        keys.PARTITION_FIELDS: spec.partition_by,
        keys.ORDERING: spec.ordering,
        keys.EVENT_TIME: (spec.event_time,) if spec.event_time is not None else None,
    }
    for name, value in specified.items():
        for key, text in option_value(options, name).items():
            if value is not None and not same_fields(csv(text), value):
                raise InvalidError("an option contradicts the table", option=key, value=text)
    names = {
        key: text
        for key, text in option_value(options, keys.TABLE_NAME).items()
        if text != spec.name
    }
    types = {
        key: text
        for key, text in option_value(options, keys.TABLE_TYPE).items()
        if keys.parse_table_type(text) is not spec.table_type
    }
    for key, text in (names | types).items():
        raise InvalidError("an option contradicts the table", option=key, value=text)


def _version(options: Mapping[str, str]) -> str:
    requested = set(option_value(options, "hoodie.table.version").values()) or {"9"}
    if len(requested) > 1 or not requested <= {"8", "9"}:
        raise UnsupportedError("tables are written in version 8 or 9", asked=sorted(requested))
    return requested.pop()


def _time_zone(options: Mapping[str, str]) -> str:
    name = options.get(keys.TIME_ZONE, "").strip().upper() or "UTC"
    if name not in ("UTC", "LOCAL"):
        raise InvalidError("a timeline is in UTC or in local time", **{keys.TIME_ZONE: name})
    return name


def _merging(spec: TableSpec, options: Mapping[str, str], version: str) -> dict[str, str]:
    ordered = MergeMode.EVENT_TIME if spec.ordering else MergeMode.COMMIT_TIME
    mode = keys.requested_merge_mode(options) or ordered
    if mode is MergeMode.EVENT_TIME and not spec.ordering:
        raise InvalidError("merging by event time needs an ordering column", table=spec.name)
    merging = {keys.MERGE_MODE: str(mode)}
    if spec.ordering:
        merging[keys.ORDERING] = ",".join(spec.ordering)
    marker = _delete_marker(options)
    if version == "9":
        return merging | {MERGE_PROPERTY + key: value for key, value in marker.items()}
    if len(spec.ordering) > 1:
        raise InvalidError("a table of version 8 has one ordering column", ordering=spec.ordering)
    # Hudi 1.0 reads these properties.
    old = {keys.MERGE_STRATEGY: keys.STRATEGIES[mode], keys.PAYLOAD: keys.PAYLOADS[mode]}
    return merging | old | ({keys.PRECOMBINE: spec.ordering[0]} if spec.ordering else {}) | marker


def _delete_marker(options: Mapping[str, str]) -> dict[str, str]:
    both = (keys.DELETE_FIELD, keys.DELETE_MARKER)
    values_by_key = {key: option_value(options, MERGE_PROPERTY + key) for key in both}
    marker = {key: next(iter(values.values())) for key, values in values_by_key.items() if values}
    if len(marker) == 1:
        raise InvalidError("a mark for deleted rows is a column and a value", **marker)
    return marker


def _paths(spec: TableSpec, options: Mapping[str, str]) -> dict[str, str]:
    hive_style, slashes = _flag(options, keys.HIVE_STYLE), _flag(options, keys.SLASH_DATES)
    extractors = [
        *option_value(options, keys.EXTRACTOR).values(),
        _extractor(spec, hive_style, slashes),
    ]
    return {
        keys.GENERATOR: _generator(spec, options),
        keys.EXTRACTOR: extractors[0],
        keys.HIVE_STYLE: hive_style,
        keys.URL_ENCODE: _flag(options, keys.URL_ENCODE),
    }


def _extractor(spec: TableSpec, hive_style: str, slashes: str) -> str:
    """Return the class by which catalogs read partition values from a path."""
    if not spec.partition_by:
        name = "NonPartitionedExtractor"
    elif len(spec.partition_by) > 1:
        name = "MultiPartKeysValueExtractor"
    elif hive_style == "true":
        name = "HiveStylePartitionValueExtractor"
    elif slashes == "true":
        name = "SlashEncodedDayPartitionValueExtractor"
    else:
        name = "SinglePartPartitionValueExtractor"
    return f"org.apache.hudi.hive.{name}"


def _generator(spec: TableSpec, options: Mapping[str, str]) -> str:
    requested = {
        keys.generator_type(text)
        for name in (keys.GENERATOR, "hoodie.table.keygenerator.class")
        for text in option_value(options, name).values()
    }
    if len(requested) > 1:
        raise InvalidError("options ask for different key generators", asked=sorted(requested))
    if requested:
        return requested.pop()
    if any(":" in name for name in spec.partition_by):
        return "CUSTOM"
    if not spec.partition_by:
        return "NON_PARTITION"
    return "COMPLEX" if max(len(spec.partition_by), len(spec.record_key)) > 1 else "SIMPLE"


def _check_generator(spec: TableSpec, properties: Mapping[str, str]) -> None:
    """Build the key and partition rules once: what they refuse would make the table unwritable."""
    kind, count = properties[keys.GENERATOR], len(spec.partition_by)
    max_columns = {"NON_PARTITION": 0, "SIMPLE": 1, "TIMESTAMP": 1}.get(kind, count)
    min_columns = {"SIMPLE": 1, "TIMESTAMP": 1}.get(kind, 0)
    if not min_columns <= count <= max_columns:
        raise InvalidError(
            "the key generator does not go with these partition columns",
            generator=kind,
            partition_by=spec.partition_by,
        )
    if spec.record_key:
        key_rule(kind, spec.record_key)
    partition_rule(kind, spec.partition_by, properties)
    time_options = [key for key in properties if key.startswith(keys.TIME_GENERATOR)]
    if time_options and kind not in ("TIMESTAMP", "CUSTOM"):
        raise InvalidError(
            "only the key generators TIMESTAMP and CUSTOM take these options",
            options=time_options,
            generator=kind,
        )


def _index(spec: TableSpec, options: Mapping[str, str]) -> dict[str, str]:
    """Return the index if it is not the default: a writer with another one creates duplicates."""
    text = options.get(keys.INDEX_TYPE, "SIMPLE")
    try:
        kind = keys.parse_index_type(text)
        buckets = int(options.get(keys.BUCKETS, "256"))
    except ValueError as error:
        reason = str(error)
        raise InvalidError("an index cannot be like this", index=text, reason=reason) from error
    if kind is not IndexType.BUCKET:
        return {} if kind is IndexType.SIMPLE else {keys.INDEX_TYPE: str(kind)}
    hashed = csv(options.get(keys.BUCKET_HASH_FIELDS, ""))
    if buckets < 1 or not spec.record_key or not set(hashed) <= set(spec.record_key):
        raise InvalidError(
            "a bucket index needs a number of buckets and columns of the record key",
            buckets=buckets,
            hash_fields=hashed,
            record_key=spec.record_key,
        )
    return {
        keys.INDEX_TYPE: str(kind),
        keys.BUCKETS: str(buckets),
        keys.HASHED_KEY: ",".join(spec.record_key),
        **({keys.BUCKET_HASH_FIELDS: ",".join(hashed)} if hashed else {}),
    }


def _change_data(spec: TableSpec, options: Mapping[str, str]) -> dict[str, str]:
    captured = _flag(options, keys.CHANGE_DATA)
    logging = keys.cdc_logging_mode({**options, keys.CHANGE_DATA: captured})
    if logging is None:
        return {keys.CHANGE_DATA: captured}
    if not spec.record_key:
        raise InvalidError(
            "changes are logged by key: give the table a record key", table=spec.name
        )
    return {keys.CHANGE_DATA: captured, keys.CHANGE_LOGGING: str(logging)}


def _event_time(spec: TableSpec, options: Mapping[str, str]) -> dict[str, str]:
    if spec.event_time is not None:
        return {keys.EVENT_TIME: spec.event_time, keys.TRACK_EVENT_TIME: "true"}
    column = options.get(keys.EVENT_TIME, "").strip()
    tracked = _flag(options, keys.TRACK_EVENT_TIME)
    return {keys.EVENT_TIME: column, keys.TRACK_EVENT_TIME: tracked} if column else {}


def _stored_options(options: Mapping[str, str]) -> dict[str, str]:
    settings_from(PlanSettings, options)  # refuses values that no writer could use later
    stored = {key: _flag(options, key) for key in _FLAGS if key in options}
    for key, value in options.items():
        if key.startswith(keys.OLD_TIME_GENERATOR):
            name = keys.TIME_GENERATOR + key.removeprefix(keys.OLD_TIME_GENERATOR)
            stored.setdefault(name, value)
        elif key in PLAN_KEYS or key.startswith((keys.TIME_GENERATOR, *_STORED_PREFIXES)):
            stored[key] = value
    return stored


def _ttl(spec: TableSpec, options: Mapping[str, str]) -> dict[str, str]:
    ttl_options = {key: value for key, value in options.items() if key.startswith(TTL_PREFIX)}
    return validated_settings(
        ttl_options, partitioned=bool(spec.partition_by), keyed=bool(spec.record_key)
    )


def _flag(options: Mapping[str, str], key: str) -> str:
    try:
        return "true" if parse_bool(options.get(key, "false")) else "false"
    except ValueError as error:
        raise InvalidError("an option is neither true nor false", **{key: options[key]}) from error


# Creating the table.


KEEP = f"{META_FOLDER}/timeline/.keep"

_DATA_SUFFIXES = (".parquet", ".orc", ".hfile", ".lance", "_hudiext")
_ALLOWED_LEFTOVERS = (f"{META_FOLDER}/timeline/", f"{METADATA_FOLDER}/")


def create_table(storage: Storage, clock: Clock, spec: TableSpec) -> TableConfig:
    """Create a table; options that do not belong to a table are ignored.

    Other files may exist at the location already, but none that a reader would take for the table's
    own.

    Raises:
        InvalidError: the spec is wrong, or there is a table or data already.
        UnsupportedError: it asks for a feature that this library does not have.
    """
    properties = with_table_checksum(table_properties(spec))
    config = TableConfig.from_properties(properties)
    _check_location(storage)
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    data = format_properties(properties, [f"Properties saved on {now.isoformat()}"])
    # The file may be left by a process that crashed right here, or belong to a concurrent one.
    with suppress(ConflictError):
        storage.create(KEEP, b"")
    try:
        storage.create(PROPERTIES, data)
    except ConflictError as error:
        raise _already_exists(storage) from error
    return config


def _check_location(storage: Storage) -> None:
    """Refuse a location with a table, or with files that readers would take for the new table's.

    A foreign data file in the folder of a partition makes every reader fail; instants of a deleted
    table would be taken for instants of the new one.
    """
    for path in (PROPERTIES, BACKUP):
        if storage.exists(path):
            raise _already_exists(storage)
    for file in storage.list_tree(""):
        if file.path.startswith(_ALLOWED_LEFTOVERS) and file.path != KEEP:
            raise InvalidError("there are remains of a table", path=storage.root, file=file.path)
        if _looks_like_data(file.name) and not file.path.startswith(f"{META_FOLDER}/"):
            raise InvalidError("there are data files already", path=storage.root, file=file.path)


def _looks_like_data(name: str) -> bool:
    is_log = name.startswith(".") and ".log." in name and not name.endswith((".crc", ".tmp"))
    return is_log or name.endswith(_DATA_SUFFIXES)


def _already_exists(storage: Storage) -> InvalidError:
    return InvalidError("there is a table already", path=storage.root)
