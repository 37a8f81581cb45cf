"""Which of Hudi's options a write refuses, and which it takes without a word.

Refused is what would change the rows, the files or the table, or lose something that a user counts
on, if it were ignored. A service that is asked for and not carried out is told by a warning. What
is neither refused, honoured nor listed here is ignored with a warning as well.
"""

from __future__ import annotations

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
AGREED = {
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
UNSERVED = frozenset(
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
