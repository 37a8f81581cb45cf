"""The options of a write: which ones are known, and what they mean for a table.

A write refuses those Hudi options that would change the rows, the files or the table, or disable
something a user relies on, if they were ignored. It warns about all other options that are neither
supported nor listed here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lakewright.errors import InvalidError
from lakewright.metrics.options import MetricsSettings
from lakewright.model import table_config as keys
from lakewright.model.file_group import are_bucket_file_ids, bucket_of_group
from lakewright.model.table_config import (
    MERGE_PROPERTY,
    IndexType,
    TableConfig,
    csv,
    option_value,
    same_fields,
)
from lakewright.model.ttl import PREFIX as TTL_PREFIX
from lakewright.model.ttl import validated_settings
from lakewright.options import HUDI_OPTIONS, ignored_options, option_keys, parse_bool, settings_from
from lakewright.storage.factory import storage_option_names
from lakewright.table.create import TableSpec, is_table_option
from lakewright.table.freshness_options import FreshnessSettings
from lakewright.table.options import PLAN_KEYS, HeartbeatSettings, LockSettings, TransactionSettings
from lakewright.write.write_config import WRITE_KEYS, WriteSettings

# Each with the value that has the same effect as leaving it out, in lower case.
REFUSED_WRITE_OPTIONS = {
    # other rows, or other versions of them
    "hoodie.allow.operation.metadata.field": "false",
    "hoodie.combine.before.upsert": "true",
    "hoodie.merge.allow.duplicate.on.inserts": "true",
    "hoodie.static.overwrite.partition.paths": "",
    "hoodie.table.partial.update.mode": "",
    "hoodie.write.concat.handle.class": "org.apache.hudi.io.hoodieconcathandle",
    "hoodie.write.merge.handle.class": "org.apache.hudi.io.filegroupreaderbasedmergehandle",
    "hoodie.write.partial.update.schema": "",
    "hoodie.write.record.merge.custom.implementation.classes": "",
    "hoodie.datasource.write.record.merger.impls": "",
    # another schema
    "hoodie.avro.schema": "",
    "hoodie.avro.schema.external.transformation": "false",
    "hoodie.avro.schema.externaltransformation": "false",
    "hoodie.bulkinsert.schema.ddl": "",
    "hoodie.datasource.write.reconcile.schema": "false",
    "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "false",
    "hoodie.internal.schema": "",
    "hoodie.schema.on.read.enable": "false",
    "hoodie.table.create.schema": "",
    "hoodie.write.schema": "",
    # other files
    "hoodie.avro.write.support.class": "org.apache.hudi.avro.hoodieavrowritesupport",
    "hoodie.base.file.format": "parquet",
    "hoodie.bootstrap.base.path": "",
    "hoodie.bulkinsert.overwrite.operation.type": "",
    "hoodie.datasource.write.drop.partition.columns": "false",
    "hoodie.parquet.outputtimestamptype": "timestamp_micros",
    "hoodie.parquet.spark.row.write.support.class": (
        "org.apache.hudi.io.storage.row.hoodierowparquetwritesupport"
    ),
    "hoodie.parquet.write.config.injector.class": "",
    "hoodie.partition.metafile.use.base.format": "false",
    "hoodie.populate.meta.fields": "true",
    "hoodie.table.base.file.format": "parquet",
    "hoodie.table.format": "native",
    "hoodie.table.log.file.format": "hoodie_log",
    "hoodie.table.multiple.base.file.formats.enable": "false",
    "hoodie.table.ro.file.format": "parquet",
    "hoodie.table.rt.file.format": "hoodie_log",
    # keys and indexes
    "hoodie.bucket.index.partition.expressions": "",
    "hoodie.datasource.write.secondarykey.column": "",
    "hoodie.index.bucket.engine": "simple",
    "hoodie.index.class": "",
    "hoodie.keygen.datetime.parser.class": ("org.apache.hudi.keygen.parser.hoodiedatetimeparser"),
    "hoodie.deltastreamer.keygen.datetime.parser.class": (
        "org.apache.hudi.keygen.parser.hoodiedatetimeparser"
    ),
    "hoodie.metadata.global.record.level.index.enable": "false",
    "hoodie.metadata.index.expression.column": "",
    "hoodie.metadata.index.secondary.column": "",
    "hoodie.metadata.record.index.enable": "false",
    "hoodie.metadata.record.level.index.enable": "false",
    "hoodie.table.secondary.indexes.metadata": "",
    # internal properties of a table
    "hoodie.archivelog.folder": "history",
    "hoodie.table.checksum": "",
    "hoodie.table.index.defs.path": "",
    "hoodie.table.initial.version": "",
    "hoodie.table.metadata.partitions": "",
    "hoodie.table.metadata.partitions.inflight": "",
    "hoodie.timeline.history.path": "history",
    "hoodie.timeline.layout.version": "2",
    "hoodie.timeline.path": "timeline",
    # side effects of a write that would not happen
    "hoodie.client.init.callback.classes": "",
    "hoodie.clustering.rollback.pending.replacecommit.on.conflict": "false",
    "hoodie.datasource.hive_sync.sync_as_datasource": "true",
    "hoodie.errortable.enable": "false",
    "hoodie.metaserver.enabled": "false",
    "hoodie.precommit.validators": "",
    "hoodie.prewrite.validators": "",
    "hoodie.table.service.manager.enabled": "false",
    "hoodie.write.commit.callback.on": "false",
    "hoodie.write.rolling.metadata.keys": "",
}

_MERGERS = frozenset(
    {
        "org.apache.hudi.hoodiesparkrecordmerger",
        "org.apache.hudi.defaultsparkrecordmerger",
        "org.apache.hudi.overwritewithlatestsparkrecordmerger",
        "org.apache.hudi.common.model.hoodieavrorecordmerger",
        "org.apache.hudi.common.model.overwritewithlatestmerger",
    }
)
_PARTITION_EXTRACTORS = frozenset(
    f"org.apache.hudi.hive.{name}"
    for name in (
        "hivestylepartitionvalueextractor",
        "multipartkeysvalueextractor",
        "nonpartitionedextractor",
        "singlepartpartitionvalueextractor",
        "slashencodeddaypartitionvalueextractor",
    )
)
# Values without effect; the merge mode decides which of Hudi's own mergers applies.
NO_OP_VALUES = {
    "hoodie.datasource.write.record.merger.impls": _MERGERS,
    "hoodie.datasource.write.row.writer.enable": frozenset({"true", "false"}),
    "hoodie.datasource.hive_sync.partition_extractor_class": _PARTITION_EXTRACTORS,
    "hoodie.datasource.hive_sync.use_jdbc": frozenset({"false"}),
    "hoodie.embed.timeline.server": frozenset({"true", "false"}),
    "hoodie.metadata.enable": frozenset({"false"}),
    "hoodie.storage.layout.type": frozenset({"default", "bucket"}),
    "hoodie.write.auto.upgrade": frozenset({"true", "false"}),
    "hoodie.write.markers.type": frozenset({"direct"}),
    "hoodie.write.merge.handle.class": frozenset({"org.apache.hudi.io.hoodiewritemergehandle"}),
    "hoodie.write.record.merge.custom.implementation.classes": _MERGERS,
}

# Options that choose the operation of a write.
OPERATION_KEYS = frozenset(
    {"hoodie.datasource.write.operation", "hoodie.datasource.write.partitions.to.delete"}
)

# Options of the table services, which have settings of their own.
SERVICE_PREFIXES = (
    "hoodie.archive.",
    "hoodie.clean.",
    "hoodie.cleaner.",
    "hoodie.clustering.",
    "hoodie.commits.archival.",
    "hoodie.compact.",
    "hoodie.compaction.",
    "hoodie.datasource.clustering.",
    "hoodie.datasource.compaction.",
    "hoodie.datasource.write.streaming.disable.compaction",
    "hoodie.fail.on.timeline.archiving",
    "hoodie.fail.writes.on.inline.table.service.exception",
    "hoodie.keep.",
    "hoodie.layout.optimize.",
    "hoodie.log.compaction.",
    "hoodie.partition.ttl.",
    "hoodie.prewrite.cleaner.",
    "hoodie.rollback.",
    "hoodie.table.services.",
    "hoodie.timeline.compaction.",
    "hoodie.timeline.manifest.",
    "hoodie.write.empty.clean.",
)

_SUPPORTED = (
    WRITE_KEYS
    | option_keys(LockSettings, HeartbeatSettings, TransactionSettings, FreshnessSettings)
    | option_keys(MetricsSettings)
    | OPERATION_KEYS
    | PLAN_KEYS
)
_COMMIT_METADATA_PREFIX = "hoodie.datasource.write.commitmeta.key.prefix"
_DROP_DUPLICATES = "hoodie.datasource.write.insert.drop.duplicates"
_DUPLICATE_POLICY = "hoodie.datasource.insert.dup.policy"

_PERSISTED = (
    keys.INDEX_TYPE,
    keys.BUCKETS,
    keys.BUCKET_HASH_FIELDS,
    keys.EVENT_TIME,
    keys.TRACK_EVENT_TIME,
)
# Hudi does not store these with the table: its writers get them with each write.
_WRITE_TIME_OPTIONS = (keys.TIMESTAMPS_AS_TEXT, keys.NEW_KEY_ENCODING)
_FLAGS = (keys.HIVE_STYLE, keys.URL_ENCODE, keys.SLASH_DATES, keys.CHANGE_DATA)
_FIXED_VALUES = (keys.EVENT_TIME, keys.TIME_ZONE, keys.CHANGE_LOGGING)
# Each write may choose between these: they look up keys in the same files.
_INTERCHANGEABLE = frozenset({IndexType.SIMPLE, IndexType.BLOOM})
_TIME_GENERATORS = (keys.TIME_GENERATOR, keys.OLD_TIME_GENERATOR)

Conflict = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options whose names were checked; Hudi's keys are in lower case, as Spark passes them.

    `ignored` have no effect here; the caller warns about them.
    """

    values: Mapping[str, str]
    ignored: tuple[str, ...]


def check_write_options(options: Mapping[str, str], *, also: Collection[str] = ()) -> WriteOptions:
    """Check the names of options other than storage options; the caller knows those in `also`.

    Raises:
        UnsupportedError: an option would change what is written, and is not supported.
        InvalidError: there is no such option.
    """
    normalized = {_normalized_key(key): str(value) for key, value in options.items()}
    metadata_prefix = normalized.get(_COMMIT_METADATA_PREFIX, "_").strip()
    unchecked = {
        key: value
        for key, value in normalized.items()
        if not (
            _needs_no_check(key, value) or (metadata_prefix and key.startswith(metadata_prefix))
        )
    }
    supported = (_SUPPORTED | set(also)) - REFUSED_WRITE_OPTIONS.keys()
    ignored = ignored_options(
        unchecked, supported, REFUSED_WRITE_OPTIONS, consumed=storage_option_names()
    )
    return WriteOptions(normalized, tuple(ignored))


def write_settings(config: TableConfig | None, options: Mapping[str, str]) -> WriteSettings:
    """Return the settings of a write: from checked options, else from the table's properties."""
    _check_duplicate_policy(options)
    properties = config.properties if config is not None else {}
    persisted = {key: properties[key] for key in _PERSISTED if properties.get(key)}
    return settings_from(WriteSettings, {**persisted, **options})


def properties_to_persist(config: TableConfig, settings: WriteSettings) -> dict[str, str]:
    """Return the properties that the table does not have, and must have after a write.

    A later write with another index type or another number of buckets would create duplicates. Hudi
    does not store the index in the table's properties, so the first write with a bucket or global
    index does.
    """
    if settings.index_type in _INTERCHANGEABLE:
        return {}
    required = {keys.INDEX_TYPE: str(settings.index_type)}
    if settings.index_type is IndexType.BUCKET:
        required[keys.BUCKETS] = str(settings.buckets)
        required[keys.HASHED_KEY] = ",".join(config.record_key_fields)
        if settings.bucket_hash_fields:
            required[keys.BUCKET_HASH_FIELDS] = ",".join(settings.bucket_hash_fields)
    return {key: value for key, value in required.items() if not config.properties.get(key)}


def with_write_time_options(config: TableConfig, options: Mapping[str, str]) -> TableConfig:
    """Return the table's config with the options that Hudi does not store in a table."""
    added = {
        _current_name(key): value
        for key, value in options.items()
        if key in _WRITE_TIME_OPTIONS or key.startswith(_TIME_GENERATORS)
    }
    added = {key: value for key, value in added.items() if key not in config.properties}
    return replace(config, properties={**config.properties, **added}) if added else config


def check_index(settings: WriteSettings, file_ids: Iterable[str]) -> None:
    """Raise if file groups were created with another index type.

    A Hudi table does not store its index type; the file ids of a bucket index show it.
    """
    ids = list(file_ids)
    numbers = [number for file_id in ids if (number := bucket_of_group(file_id)) is not None]
    if settings.index_type is not IndexType.BUCKET:
        if are_bucket_file_ids(ids):
            raise InvalidError(
                "the file groups are those of a bucket index: say so, and how many buckets it has",
                option=keys.INDEX_TYPE,
                also=keys.BUCKETS,
            )
    elif len(numbers) < len(ids):
        raise InvalidError(
            "the file groups are not those of a bucket index: write with another, such as SIMPLE",
            option=keys.INDEX_TYPE,
            file_ids=ids[:3],
        )
    elif numbers and max(numbers) >= settings.buckets:
        raise InvalidError(
            "the table has more buckets: give the number that it was first written with",
            option=keys.BUCKETS,
            buckets=settings.buckets,
            greatest_bucket=max(numbers),
        )


def spec_from_options(options: Mapping[str, str], *, partition_by: Sequence[str] = ()) -> TableSpec:
    """Return the new table that the options of a first write describe.

    `partition_by` are the columns of a DataFrame's `partitionBy`; options may name them as well.
    """
    name = _first_value(options, keys.TABLE_NAME)
    if not name:
        raise InvalidError(
            "a new table needs a name: give it by the option", option=keys.TABLE_NAME
        )
    partitions = csv(_first_value(options, keys.PARTITION_FIELDS))
    if partition_by and partitions and not same_fields(partitions, partition_by):
        raise InvalidError(
            "rows are partitioned in two ways: leave out partitionBy, or the option",
            options=partitions,
            partition_by=partition_by,
        )
    return TableSpec(
        name=name,
        table_type=keys.parse_table_type(_first_value(options, keys.TABLE_TYPE) or "COPY_ON_WRITE"),
        record_key=csv(_first_value(options, keys.RECORD_KEY)),
        partition_by=partitions or tuple(partition_by),
        ordering=csv(_first_value(options, keys.ORDERING)),
        options=options,
    )


def check_options_match_table(
    config: TableConfig, options: Mapping[str, str], *, partition_by: Sequence[str] = ()
) -> None:
    """Raise if options contradict the table's properties.

    Raises:
        InvalidError: with all of them, each with the given value and the table's.
    """
    conflicts = find_conflicts(config, options, partition_by=partition_by)
    if conflicts:
        raise InvalidError(
            "Config conflict (key, current value, existing value): leave these out, or say what "
            "the table is",
            conflicts=conflicts,
        )


def find_conflicts(
    config: TableConfig, options: Mapping[str, str], *, partition_by: Sequence[str] = ()
) -> list[Conflict]:
    """Return where options, or the columns of `partitionBy`, contradict the table.

    Raises:
        InvalidError: a value is invalid, for this table or for any.
    """
    ttl = {key: value for key, value in options.items() if key.startswith(TTL_PREFIX)}
    partitioned, keyed = bool(config.partition_fields), bool(config.record_key_fields)
    validated_settings(ttl, partitioned=partitioned, keyed=keyed)
    return [
        *_written_by_conflicts(config, tuple(partition_by)),
        *_name_conflicts(config, options),
        *_field_conflicts(config, options),
        *_rule_conflicts(config, options),
        *_index_conflicts(config, options),
        *_stored_conflicts(config, options),
    ]


def _written_by_conflicts(config: TableConfig, columns: tuple[str, ...]) -> Iterator[Conflict]:
    stored = config.properties.get(keys.PARTITION_FIELDS, "")
    if columns and not _same_partitions(columns, csv(stored)):
        yield "partitionBy", ",".join(columns), stored


def _name_conflicts(config: TableConfig, options: Mapping[str, str]) -> Iterator[Conflict]:
    names = {keys.TABLE_NAME: config.name, keys.DATABASE: config.properties.get(keys.DATABASE)}
    for name, stored in names.items():
        for key, value in option_value(options, name).items():
            if stored and value.lower() != stored.lower():
                yield key, value, stored
    for key, value in option_value(options, keys.TABLE_TYPE).items():
        if keys.parse_table_type(value) is not config.table_type:
            yield key, value, str(config.table_type)


def _field_conflicts(config: TableConfig, options: Mapping[str, str]) -> Iterator[Conflict]:
    fields = {keys.RECORD_KEY: config.record_key_fields, keys.ORDERING: config.ordering_fields}
    for name, stored in fields.items():
        for key, value in option_value(options, name).items():
            if csv(value) != stored:
                yield key, value, ",".join(stored)
    partitions = config.properties.get(keys.PARTITION_FIELDS, "")
    for key in (keys.PARTITION_FIELDS, *keys.WRITE_NAMES[keys.PARTITION_FIELDS]):
        # An empty value is significant: it says that the table has no partitions.
        if key in options and not _same_partitions(csv(options[key]), csv(partitions)):
            yield key, options[key], partitions


def _same_partitions(configured: tuple[str, ...], stored: tuple[str, ...]) -> bool:
    names_only = tuple(name.partition(":")[0] for name in stored)
    return same_fields(configured, stored) or configured == names_only


def _rule_conflicts(config: TableConfig, options: Mapping[str, str]) -> Iterator[Conflict]:
    generator = config.key_generator.removesuffix("_AVRO")
    for name in (keys.GENERATOR, "hoodie.table.keygenerator.class"):
        for key, value in option_value(options, name).items():
            if generator and keys.generator_type(value) != generator:
                yield key, value, generator
    for key in _FLAGS:
        if options.get(key, "").strip() and _flag(options, key) != config.flag(key):
            yield key, options[key], str(config.flag(key)).lower()
    mode = keys.requested_merge_mode(options)
    # Without an ordering field the effective mode differs from the stored one.
    if mode not in (None, config.merge_mode, config.properties.get(keys.MERGE_MODE)):
        yield keys.MERGE_MODE, str(mode), str(config.merge_mode)
    marker = config.delete_marker or ("", "")
    for name, stored in zip((keys.DELETE_FIELD, keys.DELETE_MARKER), marker, strict=True):
        for key, value in option_value(options, MERGE_PROPERTY + name).items():
            if value != stored:
                yield key, value, stored


def _index_conflicts(config: TableConfig, options: Mapping[str, str]) -> Iterator[Conflict]:
    configured, existing = (
        settings_from(WriteSettings, {key: source[key] for key in _PERSISTED if source.get(key)})
        for source in (options, config.properties)
    )
    configured_index, existing_index = configured.index_type, existing.index_type
    both_set = options.get(keys.INDEX_TYPE) and config.properties.get(keys.INDEX_TYPE)
    if (
        both_set
        and configured_index is not existing_index
        and not {configured_index, existing_index} <= _INTERCHANGEABLE
    ):
        yield keys.INDEX_TYPE, str(configured_index), str(existing_index)
    both_set = options.get(keys.BUCKETS) and config.properties.get(keys.BUCKETS)
    if both_set and configured.buckets != existing.buckets:
        yield keys.BUCKETS, str(configured.buckets), str(existing.buckets)
    hash_fields = existing.bucket_hash_fields or config.record_key_fields
    if existing_index is IndexType.BUCKET and configured.bucket_hash_fields not in (
        (),
        hash_fields,
    ):
        yield keys.BUCKET_HASH_FIELDS, options[keys.BUCKET_HASH_FIELDS], ",".join(hash_fields)


def _stored_conflicts(config: TableConfig, options: Mapping[str, str]) -> Iterator[Conflict]:
    """Return options that differ from the table's property, if the table has it."""
    for key, value in options.items():
        name = _current_name(key)
        stored = config.properties.get(name)
        is_rule = name.startswith(keys.TIME_GENERATOR) or name in _WRITE_TIME_OPTIONS
        if not (is_rule or name in _FIXED_VALUES) or not stored:
            continue
        # Date formats and column names are case-sensitive.
        exact = name.startswith(keys.TIME_GENERATOR) or name == keys.EVENT_TIME
        if value.strip() != stored and (exact or value.strip().lower() != stored.lower()):
            yield key, value, stored


def _current_name(key: str) -> str:
    old = keys.OLD_TIME_GENERATOR
    return keys.TIME_GENERATOR + key.removeprefix(old) if key.startswith(old) else key


def _normalized_key(key: str) -> str:
    """Return a Hudi key in lower case, and any other key, such as of commit metadata, as it is."""
    return key.lower() if key.lower().startswith("hoodie.") else key


def _needs_no_check(key: str, value: str) -> bool:
    """Whether an option is known and has no value to check here."""
    if value.strip().lower() in NO_OP_VALUES.get(key, ()):
        return True
    if key in REFUSED_WRITE_OPTIONS:
        return False
    return is_table_option(key) or (key.startswith(SERVICE_PREFIXES) and key in HUDI_OPTIONS)


def _check_duplicate_policy(options: Mapping[str, str]) -> None:
    policy = options.get(_DUPLICATE_POLICY, "").strip().lower()
    if policy and policy != "drop" and _flag(options, _DROP_DUPLICATES):
        raise InvalidError(
            "two options say different things about duplicates: leave one of them out",
            **{_DUPLICATE_POLICY: policy, _DROP_DUPLICATES: "true"},
        )


def _flag(options: Mapping[str, str], key: str) -> bool:
    try:
        return parse_bool(options.get(key, "false"))
    except ValueError as error:
        raise InvalidError("an option is neither true nor false", **{key: options[key]}) from error


def _first_value(options: Mapping[str, str], name: str) -> str:
    return next(iter(option_value(options, name).values()), "")
