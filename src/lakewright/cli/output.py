"""What commands print: documents as text or JSON, and rows in several formats."""

from __future__ import annotations

import base64
import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table
from rich.text import Text

from lakewright.errors import InvalidError, UnavailableError
from lakewright.utils.terminal import SafeConsole, SafeFile, say

Document = dict[str, Any]

_BYTES = "_bytes"
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")
# Of a pipe nobody knows how wide it is; a table is no wider than its text.
PIPE_WIDTH = 10_000


def show(document: Document, *, as_json: bool, one_line: bool = False) -> None:
    """Print a document; as JSON on `one_line` if many follow each other."""
    if as_json:
        say(json.dumps(document, default=str, indent=None if one_line else 2))
    else:
        _print_text(document)


def _print_text(document: Document) -> None:
    console = SafeConsole()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for name, value in document.items():
        if isinstance(value, list) and value:
            console.print(f"{_words(name)}:")
            console.print(_table(value))
        else:
            console.print(f"{_words(name)}: {_cell(name, value)}")


def _table(rows: Sequence[Document]) -> Table:
    """Rows as a table; what is nested in them is left to JSON."""
    keys = {key: None for row in rows for key in row}
    shown = [key for key in keys if not any(isinstance(row.get(key), dict) for row in rows)]
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    for key in shown:
        table.add_column(Text(_words(key)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(key, row.get(key))) for key in shown))
    return table


def _words(name: str) -> str:
    return name.replace(_BYTES, "_size").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return str(len(value)) if value else "none"
    if name.endswith(_BYTES) and isinstance(value, int):
        return size_text(value)
    return "-" if value is None or value == "" else str(value)


def size_text(count: int) -> str:
    """A number of bytes, in the unit that people would choose."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} bytes"


Sink = Callable[[pa.RecordBatch], None]

_WIDEST_CELL = 60


@dataclass(frozen=True)
class OutputSummary:
    """What is told beside the rows; so many are `shown` in a table, and an option gives `more`."""

    head: dict[str, Any] = field(default_factory=dict)
    shown: int | None = None
    more: str = ""


@contextmanager
def writing(form: str, out: str | None, schema: pa.Schema, told: OutputSummary) -> Iterator[Sink]:
    """What takes batches and writes them in a format, to a new file or to stdout."""
    if out is None:
        # A table is drawn by a console, which sees to it by itself.
        shown = sys.stdout.isatty() and form != "table"
        with FORMATS[form](SafeFile(sys.stdout) if shown else sys.stdout, schema, told) as sink:
            yield sink
        return
    with (
        _new_file(out, binary=form == "parquet") as file,
        FORMATS[form](file, schema, told) as sink,
    ):
        yield sink


@contextmanager
def _new_file(path: str, *, binary: bool) -> Iterator[IO[Any]]:
    """A file that appears under its name once it is whole; nothing that is there is replaced."""
    unfinished = f"{path}.part"
    try:
        if os.path.lexists(path):
            raise InvalidError("there is a file of this name", out=path)
        with (
            open(unfinished, "xb")
            if binary
            else open(unfinished, "x", encoding="utf-8", newline="")
        ) as file:
            yield file
        os.rename(unfinished, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError("the file cannot be written", out=path, reason=reason) from error
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


@contextmanager
def _write_table(file: IO[str], schema: pa.Schema, told: OutputSummary) -> Iterator[Sink]:
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    for name in schema.names:
        table.add_column(Text(name), overflow="ellipsis", no_wrap=True)
    count = 0

    def sink(batch: pa.RecordBatch) -> None:
        nonlocal count
        for row in _rows(batch):
            count += 1
            if told.shown is None or count <= told.shown:
                table.add_row(*(Text(_value_cell(value)) for value in row.values()))

    yield sink
    console = SafeConsole(file=file)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    for name, value in told.head.items():
        if name != "table" and value is not None:
            text = ", ".join(value) or "none" if isinstance(value, list) else value
            say(f"{name}: {text}", err=True)
    if told.shown is not None and count > told.shown:
        say(f"the first {told.shown} rows; {told.more} gives more", err=True)


@contextmanager
def _json(file: IO[str], schema: pa.Schema, told: OutputSummary) -> Iterator[Sink]:
    """One document; rows come last, so that it can be written before all of them are known."""
    head = {name: value for name, value in told.head.items() if value is not None}
    file.write("{")
    file.writelines(f"{json.dumps(name)}: {json.dumps(head[name])}, " for name in head)
    file.write('"rows": [')
    before = ""

    def sink(batch: pa.RecordBatch) -> None:
        nonlocal before
        for row in _rows(batch):
            file.write(f"{before}\n{_line(row)}")
            before = ","

    yield sink
    file.write("\n]}\n")


@contextmanager
def _lines(file: IO[str], schema: pa.Schema, told: OutputSummary) -> Iterator[Sink]:
    def sink(batch: pa.RecordBatch) -> None:
        file.writelines(f"{_line(row)}\n" for row in _rows(batch))

    yield sink
    _tell_head(told)


@contextmanager
def _csv(file: IO[str], schema: pa.Schema, told: OutputSummary) -> Iterator[Sink]:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(schema.names)

    def sink(batch: pa.RecordBatch) -> None:
        writer.writerows([_plain(value) for value in row.values()] for row in _rows(batch))

    yield sink
    _tell_head(told)


@contextmanager
def _parquet(file: IO[bytes], schema: pa.Schema, told: OutputSummary) -> Iterator[Sink]:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:

        def sink(batch: pa.RecordBatch) -> None:
            writer.write_batch(batch)

        yield sink
    _tell_head(told)


FORMATS: dict[str, Any] = {
    "table": _write_table,
    "json": _json,
    "jsonl": _lines,
    "csv": _csv,
    "parquet": _parquet,
}


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return found


def _tell_head(told: OutputSummary) -> None:
    """What the format has no room for, and who reads changes must know."""
    if "checkpoint" in told.head:
        say(f"checkpoint: {told.head['checkpoint']}", err=True)


def _line(value: Any) -> str:
    return json.dumps(_jsonable(value), ensure_ascii=False)


def _jsonable(value: Any) -> Any:
    """A value as JSON has it; what JSON lacks is text, as Spark writes it."""
    if isinstance(value, dict):
        return {str(_plain(key)): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | timedelta) else value


def _plain(value: Any) -> Any:
    """A value as it stands in one field of text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple):
        return _line(value)
    return _jsonable(value)


def _value_cell(value: Any) -> str:
    text = "-" if value is None else str(_plain(value))
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _WIDEST_CELL else f"{text[: _WIDEST_CELL - 1]}…"
