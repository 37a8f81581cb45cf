"""The output of commands: documents as text or JSON, and rows in several formats."""

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

_BYTES_SUFFIX = "_bytes"
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")
# A pipe has no width; tables are as wide as their text.
PIPE_WIDTH = 10_000
_MAX_CELL_WIDTH = 60

Sink = Callable[[pa.RecordBatch], None]


def show(document: Document, *, as_json: bool, one_line: bool = False) -> None:
    """Print a document as text or JSON; `one_line` is for a sequence of JSON documents."""
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
            console.print(f"{_label(name)}:")
            console.print(_table(value))
        else:
            console.print(f"{_label(name)}: {_text(name, value)}")


def _table(rows: Sequence[Document]) -> Table:
    """Return rows as a table, without columns of nested values, which only JSON shows."""
    keys = {key: None for row in rows for key in row}
    columns = [key for key in keys if not any(isinstance(row.get(key), dict) for row in rows)]
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    for key in columns:
        table.add_column(Text(_label(key)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(key, row.get(key))) for key in columns))
    return table


def _label(name: str) -> str:
    return name.replace(_BYTES_SUFFIX, "_size").replace("_", " ")


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return str(len(value)) if value else "none"
    if name.endswith(_BYTES_SUFFIX) and isinstance(value, int):
        return size_text(value)
    return "-" if value is None or value == "" else str(value)


def size_text(count: int) -> str:
    """Return a number of bytes as text with a unit: `1.5 MB`."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} bytes"


@dataclass(frozen=True)
class OutputSummary:
    """What is printed besides the rows.

    Attributes:
        head: Facts on the result, by name.
        shown: The number of rows that the table format shows; None for all.
        more_option: The option that shows more rows.
    """

    head: dict[str, Any] = field(default_factory=dict)
    shown: int | None = None
    more_option: str = ""


@contextmanager
def writing(
    format: str, out: str | None, schema: pa.Schema, summary: OutputSummary
) -> Iterator[Sink]:
    """Return a sink that writes batches in a format, to a new file or to stdout."""
    if out is None:
        # `_write_table` prints through a console, which escapes control characters itself.
        escaped = sys.stdout.isatty() and format != "table"
        with FORMATS[format](
            SafeFile(sys.stdout) if escaped else sys.stdout, schema, summary
        ) as sink:
            yield sink
        return
    with (
        _new_file(out, binary=format == "parquet") as file,
        FORMATS[format](file, schema, summary) as sink,
    ):
        yield sink


@contextmanager
def _new_file(path: str, *, binary: bool) -> Iterator[IO[Any]]:
    """A new file, which gets its name once it is complete; never replaces an existing file."""
    temporary = f"{path}.part"
    is_created = False
    try:
        if os.path.lexists(path):
            raise InvalidError("a file of this name exists", out=path)
        with (
            open(temporary, "xb") if binary else open(temporary, "x", encoding="utf-8", newline="")
        ) as file:
            is_created = True
            yield file
        os.rename(temporary, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError("the file cannot be written", out=path, reason=reason) from error
    finally:
        # One that another process is writing stays.
        if is_created and os.path.exists(temporary):
            os.unlink(temporary)


@contextmanager
def _write_table(file: IO[str], schema: pa.Schema, summary: OutputSummary) -> Iterator[Sink]:
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    for name in schema.names:
        table.add_column(Text(name), overflow="ellipsis", no_wrap=True)
    count = 0

    def sink(batch: pa.RecordBatch) -> None:
        nonlocal count
        for row in _rows(batch):
            count += 1
            if summary.shown is None or count <= summary.shown:
                table.add_row(*(Text(_table_cell(value)) for value in row.values()))

    yield sink
    console = SafeConsole(file=file)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    for name, value in summary.head.items():
        if name != "table" and value is not None:
            text = ", ".join(value) or "none" if isinstance(value, list) else value
            say(f"{name}: {text}", err=True)
    if summary.shown is not None and count > summary.shown:
        say(f"the first {summary.shown} rows; {summary.more_option} shows more", err=True)


@contextmanager
def _write_json(file: IO[str], schema: pa.Schema, summary: OutputSummary) -> Iterator[Sink]:
    """Write one document; the rows are its last field, so that batches can be written as read."""
    head = {name: value for name, value in summary.head.items() if value is not None}
    file.write("{")
    file.writelines(f"{json.dumps(name)}: {json.dumps(head[name])}, " for name in head)
    file.write('"rows": [')
    separator = ""

    def sink(batch: pa.RecordBatch) -> None:
        nonlocal separator
        for row in _rows(batch):
            file.write(f"{separator}\n{_json_text(row)}")
            separator = ","

    yield sink
    file.write("\n]}\n")


@contextmanager
def _write_json_lines(file: IO[str], schema: pa.Schema, summary: OutputSummary) -> Iterator[Sink]:
    def sink(batch: pa.RecordBatch) -> None:
        file.writelines(f"{_json_text(row)}\n" for row in _rows(batch))

    yield sink
    _print_checkpoint(summary)


@contextmanager
def _write_csv(file: IO[str], schema: pa.Schema, summary: OutputSummary) -> Iterator[Sink]:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(schema.names)

    def sink(batch: pa.RecordBatch) -> None:
        writer.writerows([_field_value(value) for value in row.values()] for row in _rows(batch))

    yield sink
    _print_checkpoint(summary)


@contextmanager
def _write_parquet(file: IO[bytes], schema: pa.Schema, summary: OutputSummary) -> Iterator[Sink]:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:

        def sink(batch: pa.RecordBatch) -> None:
            writer.write_batch(batch)

        yield sink
    _print_checkpoint(summary)


FORMATS: dict[str, Any] = {
    "table": _write_table,
    "json": _write_json,
    "jsonl": _write_json_lines,
    "csv": _write_csv,
    "parquet": _write_parquet,
}


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return rows


def _print_checkpoint(summary: OutputSummary) -> None:
    """Print the checkpoint, which the next call needs and the format cannot contain."""
    if "checkpoint" in summary.head:
        say(f"checkpoint: {summary.head['checkpoint']}", err=True)


def _json_text(value: Any) -> str:
    return json.dumps(_jsonable(value), ensure_ascii=False)


def _jsonable(value: Any) -> Any:
    """Return a value as JSON can represent it; other values become text in the form of Spark."""
    if isinstance(value, dict):
        return {str(_field_value(key)): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | timedelta) else value


def _field_value(value: Any) -> Any:
    """Return a value as one field of text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple):
        return _json_text(value)
    return _jsonable(value)


def _table_cell(value: Any) -> str:
    text = "-" if value is None else str(_field_value(value))
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _MAX_CELL_WIDTH else f"{text[: _MAX_CELL_WIDTH - 1]}…"
