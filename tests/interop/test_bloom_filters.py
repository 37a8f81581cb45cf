"""Real Hudi with a BLOOM index on base files of ours, which have a filter of their keys or not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from real_hudi import RealHudi, RealHudiError

from lakewright.clock import SystemClock
from lakewright.format import parquet_footer
from lakewright.storage.local import LocalStorage
from support.tables import NO_SERVICES, WrittenTable, row

SCHEMA = "id STRING, day STRING, ts BIGINT, note STRING"
BLOOM = {"hoodie.index.type": "BLOOM"}
FILTER_OF_KEYS = {"hoodie.parquet.bloom.filter.enabled": "true"}
PARQUET_FILTER = {"lakewright.parquet.key.bloom.filter.enabled": "true"}
THEIRS = {
    "hoodie.table.name": "written",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.metadata.enable": "false",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.clean.automatic": "false",
}
FILTER = b"org.apache.hudi.bloomfilter"


def table_on(folder: Path, options: Mapping[str, str]) -> WrittenTable:
    """A table of ours with two file groups, whose key ranges overlap."""
    table = WrittenTable(
        LocalStorage(str(folder)), clock=SystemClock(), options={**NO_SERVICES, **options}
    ).create()
    table.upsert([row(f"k{n:03d}") for n in range(0, 100, 2)])
    table.upsert(
        [row(f"k{n:03d}") for n in range(1, 100, 2)], {"hoodie.parquet.small.file.limit": "0"}
    )
    return table


def footers(folder: Path) -> list[Mapping[bytes, bytes]]:
    return [pq.read_metadata(file).metadata for file in folder.rglob("*.parquet")]


def upserted_by_real_hudi(hudi: RealHudi, folder: Path, options: Mapping[str, str]) -> None:
    rows = [row(key, 2, "theirs") for key in ("k004", "k031", "k098", "new", "k0315")]
    hudi.write(folder, rows, SCHEMA, {**THEIRS, **options})


TABLES: Mapping[str, Mapping[str, str]] = {
    "no filter of the keys": {},
    "a filter of the keys": FILTER_OF_KEYS,
    "a filter of parquet's own": PARQUET_FILTER,
    "a bloom index": BLOOM,
}


@pytest.mark.parametrize("options", TABLES.values(), ids=list(TABLES))
def test_real_hudi_finds_the_keys_by_its_bloom_index(
    real_hudi: RealHudi, tmp_path: Path, options: Mapping[str, str]
) -> None:
    table = table_on(tmp_path, options)
    keys_are_filtered = options in (FILTER_OF_KEYS, BLOOM)
    for metadata in footers(tmp_path):
        assert (len(metadata[FILTER]) > 100) == keys_are_filtered
    upserted_by_real_hudi(real_hudi, tmp_path, BLOOM)
    ours = {record["id"]: record["note"] for record in table.rows()}
    assert len(table.rows()) == len(ours) == 102
    changed = {key for key, note in ours.items() if note == "theirs"}
    assert changed == {"k004", "k031", "k098", "new", "k0315"}
    theirs = real_hudi.read(tmp_path, {"hoodie.metadata.enable": "false"}, ["id", "note"])
    assert {record["id"]: record["note"] for record in theirs} == ours
    table.upsert([row("k031", 3, "ours"), row("k0315", 3, "ours")], BLOOM)
    assert {r["id"] for r in table.rows() if r["note"] == "ours"} == {"k031", "k0315"}
    assert len(table.rows()) == 102


def test_a_file_without_any_filter_would_stop_real_hudi(
    real_hudi: RealHudi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is why a file without a filter of its keys has one that may contain any key."""
    metadata = parquet_footer.FooterBuilder.metadata

    def without_filter(self: parquet_footer.FooterBuilder) -> dict[str, str]:
        return {k: text for k, text in metadata(self).items() if k.encode() != FILTER}

    monkeypatch.setattr(parquet_footer.FooterBuilder, "metadata", without_filter)
    table_on(tmp_path, {})
    assert all(FILTER not in stored for stored in footers(tmp_path))
    with pytest.raises(RealHudiError, match="NullPointerException"):
        upserted_by_real_hudi(real_hudi, tmp_path, BLOOM)


def test_real_hudi_writes_a_filter_of_the_keys_whatever_the_index(
    real_hudi: RealHudi, tmp_path: Path
) -> None:
    sizes = {}
    for name, options in {
        "simple": {"hoodie.index.type": "SIMPLE"},
        "simple, off": {
            "hoodie.index.type": "SIMPLE",
            "hoodie.parquet.bloom.filter.enabled": "false",
        },
        "bloom, off": {**BLOOM, "hoodie.parquet.bloom.filter.enabled": "false"},
    }.items():
        folder = tmp_path / name.replace(", ", "_")
        real_hudi.write(folder, [row("a")], SCHEMA, {**THEIRS, **options}, "overwrite")
        (stored,) = footers(folder)
        sizes[name] = (FILTER in stored, b"hoodie_min_record_key" in stored)
    assert sizes == {
        "simple": (True, True),
        "simple, off": (False, False),
        "bloom, off": (True, True),
    }
