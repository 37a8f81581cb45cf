"""Rows as text: every kind of value, in every format."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from lakewright.cli.output import FORMATS, OutputSummary, writing
from lakewright.errors import InvalidError, UnavailableError

ROW = pa.table(
    {
        "n": pa.array([None], pa.int64()),
        "x": pa.array([float("nan")]),
        "y": pa.array([float("-inf")]),
        "ok": pa.array([True]),
        "raw": pa.array([b"\x00\x01"]),
        "price": pa.array([Decimal("1.50")]),
        "day": pa.array([date(2026, 1, 31)]),
        "at": pa.array([datetime(2026, 1, 31, 1, 2, 3, tzinfo=UTC)]),
        "tags": pa.array([["a", None]]),
        "inner": pa.array([{"x": 1, "y": "æ"}]),
        "by_name": pa.array([[("k", 1.5)]], pa.map_(pa.string(), pa.float64())),
        "text": pa.array(['say "x", then\nstop']),
    }
)


def written(form: str) -> str:
    file = io.StringIO()
    with FORMATS[form](file, ROW.schema, OutputSummary({"table": "t"})) as sink:
        for batch in ROW.to_batches():
            sink(batch)
    return file.getvalue()


def test_json_has_every_value() -> None:
    document = json.loads(written("json"))
    (row,) = document["rows"]
    assert document["table"] == "t"
    assert row == json.loads(written("jsonl"))
    assert row == {
        "n": None,
        "x": "NaN",
        "y": "-Infinity",
        "ok": True,
        "raw": "AAE=",
        "price": "1.50",
        "day": "2026-01-31",
        "at": "2026-01-31T01:02:03+00:00",
        "tags": ["a", None],
        "inner": {"x": 1, "y": "æ"},
        "by_name": {"k": 1.5},
        "text": 'say "x", then\nstop',
    }


def test_csv_has_every_value() -> None:
    assert written("csv") == (
        "n,x,y,ok,raw,price,day,at,tags,inner,by_name,text\n"
        ",NaN,-Infinity,true,AAE=,1.50,2026-01-31,2026-01-31T01:02:03+00:00,"
        '"[""a"", null]","{""x"": 1, ""y"": ""æ""}","{""k"": 1.5}","say ""x"", then\nstop"\n'
    )


def test_a_table_has_one_line_for_each_row() -> None:
    head, line = written("table").splitlines()
    assert head.split()[:3] == ["n", "x", "y"]
    assert 'say "x", then stop' in line


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with writing("csv", str(path), ROW.schema, OutputSummary()) as sink:
        assert not path.exists()
        for batch in ROW.to_batches():
            sink(batch)
    assert path.read_text("utf-8") == written("csv")
    assert [file.name for file in tmp_path.iterdir()] == ["rows.csv"]


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with pytest.raises(InvalidError), writing("csv", str(path), ROW.schema, OutputSummary()):
        raise InvalidError("no rows after all")
    assert list(tmp_path.iterdir()) == []


def test_the_file_that_another_process_is_writing_stays(tmp_path: Path) -> None:
    (tmp_path / "x.csv.part").write_text("theirs")
    schema = pa.schema([pa.field("id", pa.string())])
    with (
        pytest.raises(UnavailableError),
        writing("csv", str(tmp_path / "x.csv"), schema, OutputSummary({})),
    ):
        pass
    assert (tmp_path / "x.csv.part").read_text() == "theirs"
