"""Definitions of indexes: which version an index has."""

from __future__ import annotations

import pytest

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.model.index_definitions import (
    IndexDefinition,
    IndexDefinitions,
    column_stats_definition,
    record_index_definition,
)
from lakewright.model.metadata_partitions import IndexVersion

V1, V2 = IndexVersion.V1, IndexVersion.V2
DEFAULTS = {
    "files": (V1, V1),
    "column_stats": (V1, V2),
    "partition_stats": (V1, V2),
    "bloom_filters": (V1, V1),
    "record_index": (V1, V1),
    "secondary_index_x": (V1, V2),
    "expr_index_x": (V1, V2),
}


@pytest.mark.parametrize("folder", DEFAULTS)
def test_the_table_says_the_version_of_an_index_without_definition(folder: str) -> None:
    versions = tuple(IndexDefinitions().version(folder, table) for table in (8, 9))
    assert versions == DEFAULTS[folder]


def defined(name: str, version: IndexVersion | None) -> IndexDefinitions:
    return IndexDefinitions().plus(IndexDefinition(name=name, index_type=name, version=version))


def test_an_upgraded_table_keeps_the_version_of_its_statistics() -> None:
    definitions = defined("column_stats", V1)
    assert definitions.version("column_stats", 9) is V1
    assert definitions.version("partition_stats", 9) is V1
    assert definitions.version("secondary_index_x", 9) is V2


def test_a_definition_may_have_no_version_in_older_tables() -> None:
    definitions = defined("column_stats", None)
    assert definitions.version("column_stats", 8) is V1
    with pytest.raises(CorruptError):
        definitions.version("column_stats", 9)


def test_older_tables_have_no_secondary_index_of_version_2() -> None:
    definitions = defined("secondary_index_x", V2)
    assert definitions.version("secondary_index_x", 9) is V2
    with pytest.raises(UnsupportedError):
        definitions.version("secondary_index_x", 8)


def test_a_definition_is_replaced_and_removed() -> None:
    first = column_stats_definition(("a",), 9)
    second = column_stats_definition(("a", "b"), 9)
    definitions = IndexDefinitions().plus(first).plus(record_index_definition(is_partitioned=True))
    assert definitions.plus(second).by_name["column_stats"].source_fields == ("a", "b")
    assert list(definitions.without("column_stats").by_name) == ["record_index"]
    assert definitions.by_name["record_index"].is_partitioned
    assert not record_index_definition(is_partitioned=False).is_partitioned
