"""Options as people give them to a write: which are known, and what they mean for a table."""

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

# Each with the value that says the same as leaving it out, in lower case.
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
    # what a table keeps for itself
    "hoodie.archivelog.folder": "history",
    "hoodie.table.checksum": "",
    "hoodie.table.index.defs.path": "",
    "hoodie.table.initial.version": "",
    "hoodie.table.metadata.partitions": "",
    "hoodie.table.metadata.partitions.inflight": "",
    "hoodie.timeline.history.path": "history",
    "hoodie.timeline.layout.version": "2",
    "hoodie.timeline.path": "timeline",
    # what happens beside a write and would not happen
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
_EXTRACTORS = frozenset(
    f"org.apache.hudi.hive.{name}"
    for name in (
        "hivestylepartitionvalueextractor",
        "multipartkeysvalueextractor",
        "nonpartitionedextractor",
        "singlepartpartitionvalueextractor",
        "slashencodeddaypartitionvalueextractor",
    )
)
# Values that say what is so anyway; the merge mode decides which of Hudi's own mergers is meant.
NO_OP_VALUES = {
    "hoodie.datasource.write.record.merger.impls": _MERGERS,
    "hoodie.datasource.write.row.writer.enable": frozenset({"true", "false"}),
    "hoodie.datasource.hive_sync.partition_extractor_class": _EXTRACTORS,
    "hoodie.datasource.hive_sync.use_jdbc": frozenset({"false"}),
    "hoodie.embed.timeline.server": frozenset({"true", "false"}),
    "hoodie.metadata.enable": frozenset({"false"}),
    "hoodie.storage.layout.type": frozenset({"default", "bucket"}),
    "hoodie.write.auto.upgrade": frozenset({"true", "false"}),
    "hoodie.write.markers.type": frozenset({"direct"}),
    "hoodie.write.merge.handle.class": frozenset({"org.apache.hudi.io.hoodiewritemergehandle"}),
    "hoodie.write.record.merge.custom.implementation.classes": _MERGERS,
}

# What a write is told beside its settings: which operation it is.
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

# What asks for a service beside the write, by the word "true", and is not carried out.
ASYNC_SERVICE_KEYS = frozenset(
    {
        "hoodie.clustering.async.enabled",
        "hoodie.datasource.clustering.async.enable",
    }
)

# Options of the services that only this library has.
OWN_KEYS = frozenset(
    {
        "hoodie.compaction.event.time.exact.split",
        "hoodie.compaction.event.time.floor",
        "hoodie.compaction.event.time.lateness",
        "hoodie.compaction.event.time.threshold",
    }
)


# ------------------------------------------------------------------------------------------------
# Which of Hudi's options a write refuses, and which it takes without a word.
#
# Refused is what would change the rows, the files or the table, or lose something that a user
# counts
# on, if it were ignored. A service that is asked for and not carried out is told by a warning.
# What
# is neither refused, honoured nor listed here is ignored with a warning as well.


_HONOURED = (
    WRITE_KEYS
    | option_keys(LockSettings, HeartbeatSettings, TransactionSettings, FreshnessSettings)
    | option_keys(MetricsSettings)
    | OPERATION_KEYS
    | OWN_KEYS
    | PLAN_KEYS
)
_NOTES_PREFIX = "hoodie.datasource.write.commitmeta.key.prefix"
_DROP_DUPLICATES = "hoodie.datasource.write.insert.drop.duplicates"
_DUPLICATE_POLICY = "hoodie.datasource.insert.dup.policy"

_PERSISTED = (
    keys.INDEX_TYPE,
    keys.BUCKETS,
    keys.BUCKET_HASH_FIELDS,
    keys.EVENT_TIME,
    keys.TRACK_EVENT_TIME,
)
# Real Hudi does not store these with the table: its writers are told each time.
_WRITE_TIME_OPTIONS = (keys.TIMESTAMPS_AS_TEXT, keys.NEW_KEY_ENCODING)
_FLAGS = (keys.HIVE_STYLE, keys.URL_ENCODE, keys.SLASH_DATES, keys.CHANGE_DATA)
_WORDS = (keys.EVENT_TIME, keys.TIME_ZONE, keys.CHANGE_LOGGING)
# Between these a writer may choose: they look for keys in the same files.
_LIKE_SIMPLE = frozenset({IndexType.SIMPLE, IndexType.BLOOM})
_TIME_GENERATORS = (keys.TIME_GENERATOR, keys.OLD_TIME_GENERATOR)

Conflict = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options whose names were checked: keys of Hudi's are in lower case, as Spark takes them.

    `ignored` have no effect here; `async_services` ask for asynchronous services, which do not run.
    The caller warns about both.
    """

    values: Mapping[str, str]
    ignored: tuple[str, ...]
    async_services: tuple[str, ...] = ()


def check_write_options(options: Mapping[str, str], *, also: Collection[str] = ()) -> WriteOptions:
    """Check the names of options, those of storage left out; `also` are known to the caller.

    Raises:
        UnsupportedError: one would change what is written, and is not supported.
        InvalidError: there is no such option.
    """
    given = {_plain(key): str(value) for key, value in options.items()}
    noted = given.get(_NOTES_PREFIX, "_").strip()
    open_ = {
        key: value
        for key, value in given.items()
        if not (_passes(key, value) or (noted and key.startswith(noted)))
    }
    honoured = (_HONOURED | set(also)) - REFUSED_WRITE_OPTIONS.keys()
    ignored = ignored_options(
        open_, honoured, REFUSED_WRITE_OPTIONS, elsewhere=storage_option_names()
    )
    unserved = [
        key for key in given if key in ASYNC_SERVICE_KEYS and given[key].strip().lower() == "true"
    ]
    return WriteOptions(given, tuple(ignored), tuple(unserved))


def write_settings(config: TableConfig | None, options: Mapping[str, str]) -> WriteSettings:
    """The settings of a write: what checked options say, else what the table remembers."""
    _check_duplicate_policy(options)
    stored = config.properties if config is not None else {}
    remembered = {key: stored[key] for key in _PERSISTED if stored.get(key)}
    return settings_from(WriteSettings, {**remembered, **options})


def properties_to_persist(config: TableConfig, settings: WriteSettings) -> dict[str, str]:
    """Properties that a table lacks and must have once it was written with these settings.

    Who writes to a bucket index with another index, or another number of buckets, makes
    duplicates; tables of real Hudi do not tell, so the first write does.
    """
    if settings.index_type in _LIKE_SIMPLE:
        return {}
    wanted = {keys.INDEX_TYPE: str(settings.index_type)}
    if settings.index_type is IndexType.BUCKET:
        wanted[keys.BUCKETS] = str(settings.buckets)
        wanted[keys.HASHED_KEY] = ",".join(config.record_key_fields)
        if settings.bucket_hash_fields:
            wanted[keys.BUCKET_HASH_FIELDS] = ",".join(settings.bucket_hash_fields)
    return {key: value for key, value in wanted.items() if not config.properties.get(key)}


def with_write_time_options(config: TableConfig, options: Mapping[str, str]) -> TableConfig:
    """The table's properties, with what real Hudi's writers are told each time and do not store."""
    added = {
        _new_name(key): value
        for key, value in options.items()
        if key in _WRITE_TIME_OPTIONS or key.startswith(_TIME_GENERATORS)
    }
    added = {key: value for key, value in added.items() if key not in config.properties}
    return replace(config, properties={**config.properties, **added}) if added else config


def check_index(settings: WriteSettings, file_ids: Iterable[str]) -> None:
    """Refuse to write to file groups that were made by another index.

    A table of real Hudi does not say which index it has; the names of a bucket index's file groups
    do.
    """
    ids = list(file_ids)
    numbers = [number for each in ids if (number := bucket_of_group(each)) is not None]
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
    """The new table that the options of a first write describe.

    `partition_by` are the columns that a DataFrame is written by; options may name them as well.
    """
    name = _first(options, keys.TABLE_NAME)
    if not name:
        raise InvalidError(
            "a new table needs a name: give it by the option", option=keys.TABLE_NAME
        )
    partitions = csv(_first(options, keys.PARTITION_FIELDS))
    if partition_by and partitions and not same_fields(partitions, partition_by):
        raise InvalidError(
            "rows are partitioned in two ways: leave out partitionBy, or the option",
            options=partitions,
            partition_by=partition_by,
        )
    return TableSpec(
        name=name,
        table_type=keys.parse_table_type(_first(options, keys.TABLE_TYPE) or "COPY_ON_WRITE"),
        record_key=csv(_first(options, keys.RECORD_KEY)),
        partition_by=partitions or tuple(partition_by),
        ordering=csv(_first(options, keys.ORDERING)),
        options=options,
    )


def check_options_match_table(
    config: TableConfig, options: Mapping[str, str], *, partition_by: Sequence[str] = ()
) -> None:
    """Refuse options that say otherwise than the table.

    Raises:
        InvalidError: with all of them, each with the value that is given and the table's own.
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
    """Where options, or the columns that a DataFrame is written by, contradict the table.

    Raises:
        InvalidError: a value makes no sense, for this table or any other.
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
        for key, text in option_value(options, name).items():
            if stored and text.lower() != stored.lower():
                yield key, text, stored
    for key, text in option_value(options, keys.TABLE_TYPE).items():
        if keys.parse_table_type(text) is not config.table_type:
            yield key, text, str(config.table_type)


def _field_conflicts(config: TableConfig, options: Mapping[str, str]) -> Iterator[Conflict]:
    fields = {keys.RECORD_KEY: config.record_key_fields, keys.ORDERING: config.ordering_fields}
    for name, stored in fields.items():
        for key, text in option_value(options, name).items():
            if csv(text) != stored:
                yield key, text, ",".join(stored)
    partitions = config.properties.get(keys.PARTITION_FIELDS, "")
    for key in (keys.PARTITION_FIELDS, *keys.WRITE_NAMES[keys.PARTITION_FIELDS]):
        # Here nothing says something: that the table has no partitions.
        if key in options and not _same_partitions(csv(options[key]), csv(partitions)):
            yield key, options[key], partitions


def _same_partitions(given: tuple[str, ...], stored: tuple[str, ...]) -> bool:
    plain = tuple(name.partition(":")[0] for name in stored)
    return same_fields(given, stored) or given == plain


def _rule_conflicts(config: TableConfig, options: Mapping[str, str]) -> Iterator[Conflict]:
    generator = config.key_generator.removesuffix("_AVRO")
    for name in (keys.GENERATOR, "hoodie.table.keygenerator.class"):
        for key, text in option_value(options, name).items():
            if generator and keys.generator_type(text) != generator:
                yield key, text, generator
    for key in _FLAGS:
        if options.get(key, "").strip() and _flag(options, key) != config.flag(key):
            yield key, options[key], str(config.flag(key)).lower()
    mode = keys.requested_merge_mode(options)
    # Without an ordering field the mode in effect is another than the one that is stored.
    if mode not in (None, config.merge_mode, config.properties.get(keys.MERGE_MODE)):
        yield keys.MERGE_MODE, str(mode), str(config.merge_mode)
    marker = config.delete_marker or ("", "")
    for name, stored in zip((keys.DELETE_FIELD, keys.DELETE_MARKER), marker, strict=True):
        for key, text in option_value(options, MERGE_PROPERTY + name).items():
            if text != stored:
                yield key, text, stored


def _index_conflicts(config: TableConfig, options: Mapping[str, str]) -> Iterator[Conflict]:
    told_one, stored_one = (
        settings_from(WriteSettings, {key: each[key] for key in _PERSISTED if each.get(key)})
        for each in (options, config.properties)
    )
    one, other = told_one.index_type, stored_one.index_type
    both = options.get(keys.INDEX_TYPE) and config.properties.get(keys.INDEX_TYPE)
    if both and one is not other and not {one, other} <= _LIKE_SIMPLE:
        yield keys.INDEX_TYPE, str(one), str(other)
    both = options.get(keys.BUCKETS) and config.properties.get(keys.BUCKETS)
    if both and told_one.buckets != stored_one.buckets:
        yield keys.BUCKETS, str(told_one.buckets), str(stored_one.buckets)
    hashed = stored_one.bucket_hash_fields or config.record_key_fields
    if other is IndexType.BUCKET and told_one.bucket_hash_fields not in ((), hashed):
        yield keys.BUCKET_HASH_FIELDS, options[keys.BUCKET_HASH_FIELDS], ",".join(hashed)


def _stored_conflicts(config: TableConfig, options: Mapping[str, str]) -> Iterator[Conflict]:
    """Options that must be what the table has, where it has them at all."""
    for key, text in options.items():
        name = _new_name(key)
        stored = config.properties.get(name)
        is_rule = name.startswith(keys.TIME_GENERATOR) or name in _WRITE_TIME_OPTIONS
        if not (is_rule or name in _WORDS) or not stored:
            continue
        # Formats of dates tell upper from lower case, and so do columns.
        exact = name.startswith(keys.TIME_GENERATOR) or name == keys.EVENT_TIME
        if text.strip() != stored and (exact or text.strip().lower() != stored.lower()):
            yield key, text, stored


def _new_name(key: str) -> str:
    old = keys.OLD_TIME_GENERATOR
    return keys.TIME_GENERATOR + key.removeprefix(old) if key.startswith(old) else key


def _plain(key: str) -> str:
    """Hudi's keys have no case; others, such as those of a commit's own metadata, keep theirs."""
    return key.lower() if key.lower().startswith("hoodie.") else key


def _passes(key: str, value: str) -> bool:
    """Whether an option is known and says nothing that is to be checked here."""
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


def _first(options: Mapping[str, str], name: str) -> str:
    return next(iter(option_value(options, name).values()), "")
