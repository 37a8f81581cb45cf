"""The properties of a metadata table, which is a table of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.table_properties import (
    TABLE_NAME,
    check_table_properties,
    format_properties,
    parse_properties,
    with_table_checksum,
)

_SUFFIX = "_metadata"
_VERSION, _INITIAL_VERSION = "hoodie.table.version", "hoodie.table.initial.version"
# The same in all metadata tables.
_FIXED = {
    "hoodie.archivelog.folder": "history",
    "hoodie.compaction.payload.class": "org.apache.hudi.metadata.HoodieMetadataPayload",
    "hoodie.datasource.write.drop.partition.columns": "false",
    "hoodie.populate.meta.fields": "false",
    "hoodie.record.merge.mode": "CUSTOM",
    "hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000",
    "hoodie.table.base.file.format": "HFILE",
    "hoodie.table.keygenerator.type": "HOODIE_TABLE_METADATA",
    "hoodie.table.recordkey.fields": "key",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.timeline.history.path": "history",
    "hoodie.timeline.layout.version": "2",
    "hoodie.timeline.path": "timeline",
}
# Readers of metadata tables rely on these.
_NEEDED = (
    "hoodie.compaction.payload.class",
    "hoodie.populate.meta.fields",
    "hoodie.table.base.file.format",
    "hoodie.table.type",
    "hoodie.timeline.layout.version",
)


@dataclass(frozen=True, slots=True)
class MetadataTableProperties:
    """What differs between metadata tables.

    `initial_version` is the version of the table when its metadata table was made.
    """

    table_name: str
    version: int
    initial_version: int


def parse_metadata_properties(data: bytes) -> MetadataTableProperties:
    """Parse the properties of a metadata table.

    Raises:
        CorruptError: a property is missing, or the checksum is wrong.
        UnsupportedError: the metadata table is of another form, which Hudi builds anew.
    """
    values = parse_properties(data)
    check_table_properties(values)
    differing = {key: values.get(key) for key in _NEEDED if values.get(key) != _FIXED[key]}
    if differing or not values[TABLE_NAME].endswith(_SUFFIX):
        raise UnsupportedError("a metadata table of another form", properties=differing)
    version = values[_VERSION]
    initial = values.get(_INITIAL_VERSION, version)
    if not (version.isdecimal() and initial.isdecimal()):
        raise CorruptError("a metadata table has a wrong version", version=version, initial=initial)
    return MetadataTableProperties(
        values[TABLE_NAME].removesuffix(_SUFFIX), int(version), int(initial)
    )


def format_metadata_properties(
    properties: MetadataTableProperties, comments: Sequence[str] = ()
) -> bytes:
    """Return the bytes of the properties of a metadata table."""
    own = {
        TABLE_NAME: properties.table_name + _SUFFIX,
        _VERSION: str(properties.version),
        _INITIAL_VERSION: str(properties.initial_version),
    }
    return format_properties(with_table_checksum(dict(sorted((_FIXED | own).items()))), comments)
