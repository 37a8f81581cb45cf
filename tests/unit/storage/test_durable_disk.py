from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.storage.durable_disk import is_sidecar, matches, sidecar_name
from lakewright.testing.checksums import sidecar_of

GOLDEN = Path(__file__).parents[2] / "golden"
DATA = bytes(range(256)) * 5
GOOD = sidecar_of(DATA)

SIDECARS = {
    "the sums of these bytes match": (DATA, GOOD, True),
    "an empty file has a header and no sums": (b"", b"crc\0\0\0\2\0", True),
    "a chunk of another size is read from the header": (DATA, sidecar_of(DATA, chunk=100), True),
    "a header that is not written yet says nothing": (DATA, b"", True),
    "half a header says nothing": (DATA, GOOD[:7], True),
    "a changed byte does not match": (DATA[:700] + b"!" + DATA[701:], GOOD, False),
    "a file that was cut does not match": (DATA[:512], GOOD, False),
    "a file that grew does not match": (DATA + b"more" * 200, GOOD, False),
    "a sum that was cut does not match": (DATA, GOOD[:-1], False),
    "other magic does not match": (DATA, b"crc\1" + GOOD[4:], False),
    "a chunk of no bytes does not match": (DATA, b"crc\0" + bytes(4) + GOOD[8:], False),
    "a chunk of negative size does not match": (DATA, b"crc\0" + b"\xff" * 4 + GOOD[8:], False),
}


@pytest.mark.parametrize(("data", "sidecar", "expected"), SIDECARS.values(), ids=list(SIDECARS))
def test_matching(data: bytes, sidecar: bytes, expected: bool) -> None:
    assert matches(data, sidecar) is expected


@given(data=st.binary(max_size=2000), chunk=st.integers(1, 600))
def test_the_sidecar_of_any_bytes_matches_them_and_no_others(data: bytes, chunk: int) -> None:
    sidecar = sidecar_of(data, chunk=chunk)
    assert matches(data, sidecar)
    assert not matches(data + b"\1" * chunk, sidecar)


def test_what_hadoop_wrote_matches_and_is_what_we_would_write() -> None:
    sidecars = 0
    for path in sorted(GOLDEN.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                folder, _, name = entry.rpartition("/")
                if is_sidecar(name):
                    data = archive.read(f"{folder}/{name[1:-4]}")
                    assert matches(data, archive.read(entry)), entry
                    assert sidecar_of(data) == archive.read(entry)
                    sidecars += 1
    assert sidecars > 500


def test_the_name_is_hidden_and_ends_in_crc() -> None:
    assert sidecar_name(".hoodie_partition_metadata") == "..hoodie_partition_metadata.crc"
    assert is_sidecar(sidecar_name("a"))
    assert not is_sidecar("a.crc")
