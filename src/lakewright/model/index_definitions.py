"""Definitions of the indexes in a metadata table: what an index is made of, and its version.

Definitions belong to the table, not to its metadata table. An index may be defined before it is
built, and partitions without settings, such as the listing of files, have no definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.model.metadata_partitions import (
    IndexVersion,
    MetadataPartitionType,
    partition_type,
)

# Where tables keep the file, relative to their base path, unless their properties name another one.
DEFINITIONS_FILE = ".hoodie/.index_defs/index.json"
DEFINITIONS_PROPERTY = "hoodie.table.index.defs.path"

_IS_PARTITIONED = "isPartitioned"
_FIRST_VERSION_WITH_V2 = 9
# The indexes that version 2 encodes in another way.
_WITH_V2 = (
    MetadataPartitionType.COLUMN_STATS,
    MetadataPartitionType.PARTITION_STATS,
    MetadataPartitionType.EXPRESSION_INDEX,
    MetadataPartitionType.SECONDARY_INDEX,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition:
    """One index; `name` is its partition of the metadata table.

    `source_fields` names the indexed columns: of column statistics, readers prune by these only.
    `extra` holds what other writers store beside.
    """

    name: str
    index_type: str
    function: str = ""
    source_fields: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: IndexVersion | None = None
    extra: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def is_partitioned(self) -> bool:
        """Whether a record index has shards for each partition of the table."""
        return self.options.get(_IS_PARTITIONED, "false").lower() == "true"


@dataclass(frozen=True, slots=True)
class IndexDefinitions:
    """All definitions of a table by the name of the index."""

    by_name: Mapping[str, IndexDefinition] = field(default_factory=dict, hash=False)

    def plus(self, definition: IndexDefinition) -> IndexDefinitions:
        """Return these definitions with another one, which replaces one of the same name."""
        return IndexDefinitions({**self.by_name, definition.name: definition})

    def without(self, name: str) -> IndexDefinitions:
        """Return these definitions without that of an index."""
        return IndexDefinitions({n: d for n, d in self.by_name.items() if n != name})

    def version(self, folder: str, table_version: int) -> IndexVersion:
        """Return the version of the index in a partition, which decides how it is encoded.

        A table that was upgraded keeps indexes of the older version.

        Raises:
            CorruptError: the definition lacks the version that this version of tables demands.
            UnsupportedError: the table is too old for the version of the index.
        """
        kind = partition_type(folder)
        # Both statistics are written from the same values, and only one of them is defined.
        is_stats = kind is MetadataPartitionType.PARTITION_STATS
        definition = self.by_name.get(MetadataPartitionType.COLUMN_STATS if is_stats else folder)
        if definition is None:
            return default_version(kind, table_version)
        if definition.version is None:
            if table_version >= _FIRST_VERSION_WITH_V2:
                raise CorruptError("the definition of an index has no version", index=folder)
            return default_version(kind, table_version)
        is_secondary = kind is MetadataPartitionType.SECONDARY_INDEX
        if is_secondary and definition.version > default_version(kind, table_version):
            raise UnsupportedError(
                "an index of a version that the table does not have",
                index=folder,
                version=definition.version,
            )
        return definition.version


def default_version(kind: MetadataPartitionType, table_version: int) -> IndexVersion:
    """Return the version of an index that is built now."""
    has_v2 = kind in _WITH_V2 and table_version >= _FIRST_VERSION_WITH_V2
    return IndexVersion.V2 if has_v2 else IndexVersion.V1


def column_stats_definition(source_fields: tuple[str, ...], table_version: int) -> IndexDefinition:
    """Return the definition of column statistics of these columns."""
    kind = MetadataPartitionType.COLUMN_STATS
    return IndexDefinition(
        name=kind,
        index_type=kind,
        function=kind,
        source_fields=source_fields,
        version=default_version(kind, table_version),
    )


def record_index_definition(*, is_partitioned: bool) -> IndexDefinition:
    """Return the definition of a record index."""
    kind = MetadataPartitionType.RECORD_INDEX
    return IndexDefinition(
        name=kind,
        index_type=kind,
        options={_IS_PARTITIONED: str(is_partitioned).lower()},
        version=IndexVersion.V1,
    )
