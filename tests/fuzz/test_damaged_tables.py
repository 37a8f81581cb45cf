"""Golden tables with random damage: the right rows, or an error of ours; nothing else ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lakewright.errors import LakewrightError
from lakewright.scan.planner import plan_changes, plan_snapshot
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from support.golden import GoldenTables, as_json, queries
from support.soak import sized

pytestmark = pytest.mark.sampled(2)

TABLES = ("mor_avro", "mor_parquet", "cow_archived", "mor_logcompacted", "cow_overwrite")
ROUNDS = sized(40, soak=5_000)  # for each table, half of them without checksum files

Damage = Callable[[bytes, random.Random], bytes]


def flip(data: bytes, chance: random.Random) -> bytes:
    spoilt = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        spoilt[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(spoilt)


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def blank(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    size = min(chance.randrange(1, 64), len(data) - at)
    return data[:at] + bytes(size) + data[at + size :]


def repeat(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[: at + chance.randrange(64)] + data[at:]


def extend(data: bytes, chance: random.Random) -> bytes:
    return data + chance.randbytes(chance.randrange(1, 200))


DAMAGES: tuple[Damage, ...] = (flip, flip, flip, cut, blank, repeat, extend)


def rows(table: Path) -> tuple[list[str], list[str]]:
    storage = storage_for(table)
    snapshot = load_snapshot(storage)
    plans = (plan_snapshot(snapshot), plan_changes(snapshot, since="20260101000000000").plan)
    snapshot_rows, changes = (read_plan(storage, plan).to_pylist() for plan in plans)
    return sorted(map(as_json, snapshot_rows)), sorted(map(as_json, changes))


def damageable(table: Path) -> list[Path]:
    """Files that a query reads: bytes elsewhere prove nothing."""
    return sorted(
        path
        for path in table.rglob("*")
        if path.is_file() and not path.name.endswith((".crc", ".requested", ".inflight"))
    )


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("checked", [True, False], ids=["checksums", "bare"])
def test_damage_is_reported_or_harmless(
    name: str, checked: bool, golden: GoldenTables, tmp_path: Path
) -> None:
    """With checksum files no row is ever wrong; without them no error is ever foreign.

    The format cannot detect a flipped bit within a value of a file without a checksum.
    """
    table = GoldenTables(tmp_path)[name]
    if not checked:
        for path in table.rglob(".*.crc"):
            path.unlink()
    expected = rows(table)
    assert expected[0] == sorted(queries(name)[0].rows or ())
    files = damageable(table)
    chance = random.Random(f"{name} {checked}")
    errors: list[LakewrightError] = []
    for number in range(ROUNDS // 2):
        file, damage = chance.choice(files), chance.choice(DAMAGES)
        whole = file.read_bytes()
        if not whole:
            continue
        file.write_bytes(damage(whole, chance))
        try:
            read = rows(table)
        except LakewrightError as error:
            errors.append(error)
        else:
            assert not checked or read == expected, f"{number}: {damage.__name__} of {file}"
        finally:
            file.write_bytes(whole)
    assert len(errors) > ROUNDS // 20
    assert [error for error in errors if not error.facts] == []
