"""Real Hudi's own classes read HFiles and metadata tables whose bytes are ours."""

from __future__ import annotations

import json
import math
import re
import shutil
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from real_hudi import RealHudi

from lakewright.format.bloom_filter import BloomSettings, build_bloom, format_bloom
from lakewright.format.hfile.layout import Codec, HFileEntries
from lakewright.format.hfile.writer import format_hfile
from lakewright.format.metadata_table.column_values import Wrapper
from lakewright.format.metadata_table.files import DeletedKeys, format_base_file, format_log_file
from lakewright.format.metadata_table.listing import listed_files
from lakewright.format.metadata_table.merging import merge_records
from lakewright.format.metadata_table.record_index import record_locations
from lakewright.format.metadata_table.record_schema import BLOOM_FILTERS, COLUMN_STATS, RecordKind
from lakewright.format.metadata_table.records import encode_records
from lakewright.model.instant import format_time, moment_ms
from lakewright.model.metadata_keys import ALL_PARTITIONS, bloom_filter_keys, column_stats_keys
from lakewright.model.metadata_partitions import shard_file_id, shard_numbers
from support.hfiles import hfile_entries, pairs_of
from support.metadata_records import WIDENED, listing
from support.metadata_tables import unpack_history

JOB = Path(__file__).with_name("metadata_table_job.py")
INSTANTS = ("20261117220947580", "20261117221041658", "20261117221110360")
BUILT = {"files": 0, "column_stats": 1, "bloom_filters": 2, "record_index": 3}
KEYS = 50_000
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
RANDOM = Random(20260101)

# -- HFiles

LONG_KEY = "k" * 126
SPECIAL = [
    "a",
    "é",
    "ü" * 70,
    LONG_KEY,
    LONG_KEY + "x",
    "k" * 5000,
    "z",
    "\ue000",
    "\uffff",
    "😀",
    "😀x",
]
HFILES: dict[str, HFileEntries] = {
    "special": hfile_entries(*((key, key.encode()[:9]) for key in sorted(SPECIAL, key=str.encode))),
    "empty": hfile_entries(),
    "numbers": hfile_entries(*((f"{n:06d}", RANDOM.randbytes(n % 50)) for n in range(1500))),
}
FORMS: dict[str, dict[str, Any]] = {
    "small blocks": {"block_bytes": 100},
    "small blocks, plain": {"block_bytes": 100, "codec": Codec.NONE},
    "large blocks": {},
    "large blocks, plain": {"codec": Codec.NONE},
    "with a filter": {"meta": {"bloomFilter": b"xyz"}},
}


def asked_keys(entries: HFileEntries) -> list[str]:
    """Some keys of a file and some between them, ascending: Hudi's reader seeks forward only."""
    keys = [key.decode() for key, _ in pairs_of(entries)]
    some = keys if len(keys) < 50 else [*keys[::25], *keys[-3:]]
    return sorted({*some, *(f"{key}!" for key in some), "0", "~"}, key=str.encode)


def write_hfiles(folder: Path) -> dict[str, list[str]]:
    asked = {}
    for name, entries in HFILES.items():
        for form, options in FORMS.items():
            data = format_hfile(entries, '"bytes"', 0, **options)
            path = folder / f"{name}, {form}.hfile"
            path.write_bytes(data)
            asked[path.name] = asked_keys(entries)
    return asked


# -- a metadata table

Numbers = npt.NDArray[np.int64]


def located(numbers: Numbers) -> tuple[pa.Array, pa.Array]:
    """Record keys and file ids of some numbers: no two of them share a file group."""
    own = numbers.tolist()
    keys = [str(UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)) for n in own]
    file_ids = [f"{UUID(int=n * 0xC2B2AE3D27D4EB4F165667B19E3779F9 % 2**128)}-{n % 7}" for n in own]
    return pa.array(keys), pa.array(file_ids)


def locations(numbers: Numbers) -> HFileEntries:
    keys, file_ids = located(numbers)
    partitions = pa.array([f"p{number % 3}" for number in numbers.tolist()])
    times = pa.array(numbers + moment_ms(FIRST))
    records = record_locations(keys, partitions, file_ids, times)
    return encode_records(RecordKind.RECORD_INDEX, records)


LISTINGS: tuple[dict[str, dict[str, int]], ...] = (
    {
        ALL_PARTITIONS: dict.fromkeys(["p1", "p2", "p3", "p4", "back", "gone", "ä b"], 0),
        "back": {"a": 1},
        "p1": {"a": 5, "b": 6},
        "p2": {"a": 5},
        "p3": {"a": 5},
        "gone": {"a": 1},
        "ä b": {"é😀": 7},
    },
    {"p1": {"a": -1, "c": 2**40}, "p2": {"b": 7}, "p3": {"x": -1}},
    {"p1": {"d": 4}, "p2": {"b": 9}, "p3": {"x": 3}, "back": {"b": 2}},
    {ALL_PARTITIONS: {"gone": -1, "new": 0}, "new": {"a": 8}},
)

# The keys that each log file deletes.
DELETED: tuple[tuple[str, ...], ...] = (("back",), (), ("gone",))


@dataclass
class MetadataTable:
    """A metadata table made by hand, with the timelines of a golden one."""

    table: Path

    def __post_init__(self) -> None:
        for folder in BUILT:
            shutil.rmtree(self._folder(folder))
            self._folder(folder).mkdir()
        properties = self.table / ".hoodie/hoodie.properties"
        lines = properties.read_text().splitlines()
        kept = [line for line in lines if "table.metadata.partitions" not in line]
        named = f"hoodie.table.metadata.partitions={','.join(sorted(BUILT))}"
        properties.write_text("\n".join([*kept, named, ""]))

    def _folder(self, folder: str) -> Path:
        return self.table / ".hoodie/metadata" / folder

    def write_base(self, folder: str, entries: HFileEntries, shards: int = 1) -> None:
        instant = f"{BUILT[folder]:017d}"
        for number, part in enumerate(by_shard(entries, shards)):
            name = f"{shard_file_id(folder, number)}_0-0-0_{instant}.hfile"
            (self._folder(folder) / name).write_bytes(format_base_file(part, 0))

    def write_log(
        self,
        folder: str,
        instant: str,
        entries: HFileEntries,
        deleted: pa.Array | None = None,
        shards: int = 1,
    ) -> None:
        deletes = pa.array([], pa.string()) if deleted is None else deleted
        places = shard_numbers(deletes, shards)
        for number, part in enumerate(by_shard(entries, shards)):
            own = deletes.filter(pa.array(places == number))
            if len(part) or len(own):
                name = f".{shard_file_id(folder, number)}_{instant}.log.1_1-0-1"
                data = format_log_file(folder, instant, 0, part, own)
                (self._folder(folder) / name).write_bytes(data)


def by_shard(entries: HFileEntries, shards: int) -> Iterator[HFileEntries]:
    numbers = shard_numbers(entries.keys.cast(pa.string()), shards)
    for number in range(shards):
        rows = pa.array(np.flatnonzero(numbers == number))
        yield HFileEntries(entries.keys.take(rows), entries.values.take(rows))


def write_statistics(table: MetadataTable) -> None:
    for side, write in (
        ("older", lambda entries: table.write_base("column_stats", entries, 2)),
        ("newer", lambda entries: table.write_log("column_stats", INSTANTS[0], entries, shards=2)),
    ):
        rows = []
        for number, case in enumerate(WIDENED.values()):
            name = f"{number}.parquet"
            parts = (pa.array([text]) for text in ("v", "p1", name))
            key = column_stats_keys(*parts)[0].as_py()
            rows.append(getattr(case, side) | {"key": key, "file_name": name, "type": 3})
        records = pa.Table.from_pylist(rows, COLUMN_STATS)
        write(encode_records(RecordKind.COLUMN_STATS, records))


def write_record_index(table: MetadataTable) -> None:
    """All keys: some in the base files, then in a log file, and every tenth one deleted at last."""
    numbers = np.arange(KEYS)
    table.write_base("record_index", locations(numbers[: KEYS // 2]), 2)
    table.write_log("record_index", INSTANTS[0], locations(numbers[KEYS // 2 :]), shards=2)
    gone, _ = located(numbers[::10])
    table.write_log("record_index", INSTANTS[1], hfile_entries(), gone, shards=2)


def write_listing(table: MetadataTable) -> None:
    base, *logs = (encode_records(RecordKind.FILES, listing(**part)) for part in LISTINGS)
    table.write_base("files", base)
    for instant, entries, deleted in zip(INSTANTS, logs, DELETED, strict=True):
        table.write_log("files", instant, entries, pa.array(deleted, pa.string()))


def write_bloom_filter(table: MetadataTable, file: tuple[str, str]) -> None:
    bloom = build_bloom(pa.array(["a", "b"]), BloomSettings(entries=100))
    key = bloom_filter_keys(*(pa.array([text]) for text in file))[0].as_py()
    row = {
        "key": key,
        "filter_type": bloom.kind.value,
        "timestamp": INSTANTS[0],
        "bloom_filter": b64encode(format_bloom(bloom)),
        "is_deleted": False,
    }
    entries = encode_records(RecordKind.BLOOM_FILTERS, pa.Table.from_pylist([row], BLOOM_FILTERS))
    table.write_base("bloom_filters", hfile_entries(), 4)
    table.write_log("bloom_filters", INSTANTS[0], entries, shards=4)


@pytest.fixture(scope="module")
def found(real_hudi: RealHudi, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What real Hudi reads, all in one request."""
    folder = tmp_path_factory.mktemp("metadata")
    unpack_history("c9", folder)
    shutil.move(folder / "c9/03-delete", folder / "table")
    table = MetadataTable(folder / "table")
    write_listing(table)
    write_statistics(table)
    write_record_index(table)
    write_bloom_filter(table, ("p1", "a.parquet"))
    asked = {
        "hfiles": write_hfiles(folder),
        "stats": [f"{number}.parquet" for number in range(len(WIDENED))],
        "bloom": {"file": ["p1", "a.parquet"], "keys": ["a", "b", "c"]},
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    keys = [*located(np.arange(KEYS))[0].to_pylist(), "unknown"]
    (folder / "record_keys.txt").write_text("\n".join(keys))
    answers: dict[str, Any] = real_hudi.job(JOB, folder)
    return answers | {"asked": asked["hfiles"]}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", HFILES)
def test_hudi_finds_every_key_of_an_hfile(name: str, form: str, found: dict[str, Any]) -> None:
    asked = list(found["asked"])
    file = f"{name}, {form}.hfile"
    answer = found["hfiles"][0][asked.index(file)]
    values = {key.decode(): value.hex() for key, value in pairs_of(HFILES[name])}
    assert answer == {
        "entries": len(values),
        "scanned": len(values),
        "values": [values.get(key) for key in found["asked"][file]],
        "meta": "xyz" if form == "with a filter" else None,
    }


# How Java writes a pair of a key and its location.
LOCATION = re.compile(
    r"\(([^\s,]+),[^\s,=]+=[^\s,=]+=(\d+), fileId=([^\s,]+), position=-1\), "
    r"partitionPath=([^\s,]*)\)\)"
)


def test_hudi_finds_every_record_key(found: dict[str, Any]) -> None:
    ((text,),) = found["locations"]
    answer = {key: tuple(place) for key, *place in LOCATION.findall(text)}
    numbers = np.array([number for number in range(KEYS) if number % 10])
    keys, file_ids = located(numbers)
    own = numbers.tolist()
    # The process of real Hudi has its clock in UTC.
    instants = [format_time(FIRST + timedelta(milliseconds=number)) for number in own]
    partitions = [f"p{number % 3}" for number in own]
    places = zip(instants, file_ids.to_pylist(), partitions, strict=True)
    assert answer == dict(zip(keys.to_pylist(), places, strict=True))


def own_listing() -> dict[str, dict[str, int]]:
    base, *logs = LISTINGS
    sources: list[pa.Table | DeletedKeys] = [listing(**base)]
    for part, deleted in zip(logs, DELETED, strict=True):
        sources += [listing(**part), DeletedKeys(pa.array(deleted, pa.string()))]
    return listed_files(merge_records(RecordKind.FILES, sources))


def test_hudi_lists_the_same_files(found: dict[str, Any]) -> None:
    ((listed,),) = found["listed"]
    own = own_listing()
    assert listed | {"back": None} == own | {"back": None}
    assert own["p1"] == {"b": 6, "c": 2**40, "d": 4}
    assert (own["p3"], own["p4"]) == ({"a": 5, "x": 3}, {})
    assert "gone" not in own


def test_hudi_forgets_the_delete_of_a_listing_that_comes_again(found: dict[str, Any]) -> None:
    """It merges log files first: then the newer record hides the delete from the base file.

    So a writer that empties a partition is to delete its files one by one, as a clean does.
    """
    ((listed,),) = found["listed"]
    assert listed["back"] == {"a": 1, "b": 2}
    assert own_listing()["back"] == {"b": 2}


@pytest.mark.parametrize("name", WIDENED)
def test_hudi_widens_statistics_to_the_same(name: str, found: dict[str, Any]) -> None:
    number, case = list(WIDENED).index(name), WIDENED[name]
    answer = found["stats"][0][number]
    if case.fails is not None and "becomes" not in case.fails:
        assert answer is None
        return
    sources = [pa.Table.from_pylist([r], COLUMN_STATS) for r in (case.older, case.newer)]
    (expected,) = merge_records(RecordKind.COLUMN_STATS, sources).to_pylist()
    stored = json.loads(answer)
    for side, field in (("min", "minValue"), ("max", "maxValue")):
        own = plain_value(expected[f"{side}_wrapper"], expected[f"{side}_value"])
        theirs = None if stored[field] is None else stored[field]["value"]
        is_wrong = case.fails is not None and side == "max"
        assert (repr(theirs) == repr(own)) is not is_wrong
    counts = {"valueCount": "value_count", "nullCount": "null_count", "totalSize": "total_size"}
    assert {name: stored[name] for name in counts} == {
        name: expected[own] for name, own in counts.items()
    }
    value_type = stored["valueType"] or {"typeOrdinal": None, "additionalInfo": None}
    assert value_type == {
        "typeOrdinal": expected["value_type"],
        "additionalInfo": expected["value_type_info"],
    }


def plain_value(wrapper: int, value: bytes) -> object:
    """A stored value as Avro writes it in JSON, where bytes are characters."""
    if wrapper == Wrapper.NULL:
        return None
    kind = PLAIN_TYPES.get(Wrapper(wrapper), Wrapper(wrapper).name.lower())
    plain = fastavro.schemaless_reader(BytesIO(value), kind, None)
    if isinstance(plain, float) and math.isnan(plain):
        return "NaN"
    return plain.decode("latin-1") if isinstance(plain, bytes) else plain


PLAIN_TYPES = {Wrapper.DATE: "int", Wrapper.DECIMAL: "bytes"}


def test_hudi_reads_a_bloom_filter(found: dict[str, Any]) -> None:
    assert found["bloom"] == [[True, True, False]]
