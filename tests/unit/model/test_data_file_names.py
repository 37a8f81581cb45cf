from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import CorruptError, LakewrightError, UnsupportedError
from lakewright.model.file_group import BaseFile, LogFile, parse_data_file

AT = "20260101000000001"
ID = "8b727f8e-d54a-4327-a6f9-f50f2419789e-0"

FILES = {
    f"{ID}_2-1011-2089_{AT}.parquet": BaseFile(ID, "2-1011-2089", AT),
    f"{ID}_1-0-1_{AT}.orc": BaseFile(ID, "1-0-1", AT, ".orc"),
    f".{ID}_{AT}.log.1_2-1026-2118": LogFile(ID, AT, 1, "2-1026-2118"),
    f".{ID}_{AT}.log.12_2-1026-2118.cdc": LogFile(ID, AT, 12, "2-1026-2118", cdc=True),
    f".{ID}_{AT}.log.3": LogFile(ID, AT, 3, None),
}


@pytest.mark.parametrize(("name", "file"), FILES.items(), ids=list(FILES))
def test_a_name_is_the_file_and_the_file_is_the_name(name: str, file: BaseFile | LogFile) -> None:
    assert parse_data_file(name) == file
    assert file.name == name


@pytest.mark.parametrize(
    "name",
    [
        ".hoodie_partition_metadata",
        "_SUCCESS",
        "notes.txt",
        f".{ID}_2-1011-2089_{AT}.parquet.crc",
        f"..{ID}_{AT}.log.1_2-1026-2118.crc",
    ],
)
def test_other_files_are_passed_over(name: str) -> None:
    assert parse_data_file(name) is None


@pytest.mark.parametrize("name", ["foreign.parquet", "part-0000.snappy.parquet", f".{ID}.log.1_x"])
def test_a_foreign_data_file_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(CorruptError, match="move it away") as caught:
        parse_data_file(name)
    assert caught.value.facts == {"file_name": name}


def test_an_external_file_is_not_supported() -> None:
    with pytest.raises(UnsupportedError):
        parse_data_file(f"data.parquet_{AT}_hudiext")


def test_log_files_are_merged_by_instant_version_and_token_as_numbers() -> None:
    names = [
        f".f_{AT}.log.{v}_{t}"
        for v, t in [(10, "0-1-1"), (9, "0-1-1"), (9, "0-1-10"), (9, "0-1-2")]
    ]
    logs = [log for name in names if isinstance(log := parse_data_file(name), LogFile)]
    assert [(log.version, log.token) for log in sorted(logs, key=lambda log: log.order)] == [
        (9, "0-1-1"),
        (9, "0-1-2"),
        (9, "0-1-10"),
        (10, "0-1-1"),
    ]


FILE_ID = st.from_regex(r"\A[a-zA-Z0-9-]+\Z")
TOKEN = st.tuples(*[st.integers(0, 10**6)] * 3).map(lambda t: "-".join(map(str, t)))
DIGITS = st.from_regex(r"\A[0-9]{17}\Z")


@given(FILE_ID, TOKEN, DIGITS)
def test_any_base_file_survives_the_round_trip(file_id: str, token: str, at: str) -> None:
    file = BaseFile(file_id, token, at)
    assert parse_data_file(file.name) == file


@given(FILE_ID, DIGITS, st.integers(0, 10**6), TOKEN, st.booleans())
def test_any_log_file_survives_the_round_trip(
    file_id: str, at: str, version: int, token: str, cdc: bool
) -> None:
    file = LogFile(file_id, at, version, token, cdc)
    assert parse_data_file(file.name) == file


@given(st.text())
def test_any_text_is_a_file_or_passed_over_or_an_error_of_ours(name: str) -> None:
    try:
        file = parse_data_file(name)
    except LakewrightError:
        return
    assert file is None or file.name == name
