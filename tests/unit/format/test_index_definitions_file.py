"""The file with the definitions of indexes, and damaged ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.index_definitions import format_index_definitions, parse_index_definitions
from lakewright.model.index_definitions import (
    IndexDefinition,
    IndexDefinitions,
    column_stats_definition,
    record_index_definition,
)

# As Hudi 1.2.0 wrote it.
STORED = """{
  "indexDefinitions" : {
    "record_index" : {
      "indexName" : "record_index",
      "indexType" : "record_index",
      "indexFunction" : "",
      "sourceFields" : [ ],
      "indexOptions" : {
        "isPartitioned" : "false"
      },
      "version" : "V1"
    },
    "column_stats" : {
      "indexName" : "column_stats",
      "indexType" : "column_stats",
      "indexFunction" : "column_stats",
      "sourceFields" : [ "_hoodie_commit_time", "ä\\"b" ],
      "indexOptions" : { },
      "version" : "V2"
    }
  }
}""".encode()


def test_new_definitions_are_written_as_hudi_writes_them() -> None:
    definitions = (
        IndexDefinitions()
        .plus(record_index_definition(is_partitioned=False))
        .plus(column_stats_definition(("_hoodie_commit_time", 'ä"b'), 9))
    )
    assert format_index_definitions(definitions) == STORED
    assert parse_index_definitions(STORED) == definitions


def test_a_table_may_have_no_definitions() -> None:
    for stored in (b"{}", b'{"indexDefinitions": null}', b'{"indexDefinitions": {}}'):
        assert parse_index_definitions(stored) == IndexDefinitions()


def test_what_other_writers_store_beside_stays() -> None:
    stored = json.dumps({"indexDefinitions": {"x": {"indexName": "x", "later": [1, {"a": None}]}}})
    definitions = parse_index_definitions(stored.encode())
    assert definitions.by_name["x"] == IndexDefinition(
        name="x", index_type="", extra={"later": [1, {"a": None}]}
    )
    again = json.loads(format_index_definitions(definitions))
    assert again["indexDefinitions"]["x"]["later"] == [1, {"a": None}]
    assert "version" not in again["indexDefinitions"]["x"]


def of_x(**values: object) -> dict[str, Any]:
    return {"indexDefinitions": {"x": {"indexName": "x", **values}}}


DAMAGED: dict[str, Any] = {
    "no object": [],
    "definitions that are no object": {"indexDefinitions": []},
    "a definition that is no object": {"indexDefinitions": {"x": 1}},
    "a definition of another index": of_x(indexName="y"),
    "fields that are no list": of_x(sourceFields="a"),
    "a field that is no text": of_x(sourceFields=[1]),
    "options that are no object": of_x(indexOptions=1),
    "an option that is no text": of_x(indexOptions={"a": 1}),
    "a type that is no text": of_x(indexType=1),
}


@pytest.mark.parametrize("stored", DAMAGED.values(), ids=list(DAMAGED))
def test_another_form_is_damage(stored: object) -> None:
    with pytest.raises(CorruptError):
        parse_index_definitions(json.dumps(stored).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", STORED[:100], b"[" * 100_000])
def test_what_is_not_json_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptError):
        parse_index_definitions(data)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        parse_index_definitions(STORED.replace(b"V2", b"V3"))
