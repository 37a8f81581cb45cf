"""Objects in the hands of a worker: fetch one, check it, turn Avro into what Spark can read."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from lakewright.core.meta_columns import META_COLUMNS
from lakewright.core.schema import query_schema
from lakewright.errors import InvalidError, LakewrightError, UnavailableError
from lakewright.format.avro_arrow import arrow_schema
from lakewright.sources.cloud.objects.copies import private_files
from lakewright.sources.cloud.selection import CloudObject
from lakewright.storage.base import MissingFileError, Storage, check_path
from lakewright.storage.locate import storage_for
from lakewright.write.task import Token

_COPY_BYTES = 8 << 20
_AVRO_ROWS = 10_000
_OPENERS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda file: cast(BinaryIO, gzip.GzipFile(fileobj=file)),
    ".bz2": lambda file: cast(BinaryIO, bz2.BZ2File(file)),
}
_DAMAGE = (ValueError, LookupError, TypeError, EOFError, zlib.error, csv.Error, pa.ArrowException)
# Compressions that Spark opens by the name and Python does not.
_UNCHECKED = (".zst", ".zstd", ".snappy", ".lz4", ".deflate", ".xz")


@dataclass(frozen=True)
class Preparation:
    """What is to be done with objects before Spark reads them; plain data that travels.

    `target` is where they are put, if Spark cannot open them where they are; `private`, if nobody
    but this user may read them there. `checked` has each read through.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict, repr=False)
    target: str | None = None
    private: bool = False
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of one object: the name of its copy, if there is one, or what is wrong."""

    item: CloudObject
    copy: str | None = None
    problem: str | None = None


class _UnreadableError(Exception):
    """An object cannot be read, for the reason given."""


def prepare(
    what: Preparation, items: Sequence[tuple[int, CloudObject]], token: Token
) -> list[Prepared] | LakewrightError:
    """Prepare some numbered objects; an error that says nothing about one comes back as a value."""
    try:
        target = storage_for(what.target, what.places) if what.target is not None else None
        with private_files() if what.private else nullcontext():
            return [_prepared(what, target, f"{n:06d}-{token}", item) for n, item in items]
    except LakewrightError as error:
        return error


def missing_of(
    what: Preparation, items: Sequence[CloudObject], token: Token
) -> list[CloudObject] | LakewrightError:
    """Those objects that are not in their store."""
    try:
        return [item for item in items if not _is_there(what, item)]
    except LakewrightError as error:
        return error


def _is_there(what: Preparation, item: CloudObject) -> bool:
    if _bad_name(item) is not None:
        # Whether it is there cannot be asked; who reads it says what is wrong.
        return True
    return store_of(what, item).exists(item.path)


def store_of(what: Preparation, item: CloudObject) -> Storage:
    """The bucket of an object."""
    return storage_for(what.addresses[item.bucket], what.places)


def _prepared(what: Preparation, target: Storage | None, name: str, item: CloudObject) -> Prepared:
    bad = _bad_name(item)
    if bad is not None:
        return Prepared(item, problem=bad)
    source = store_of(what, item)
    try:
        if what.checked and what.format != "avro":
            with _reading(OSError), source.open_input(item.path) as file:
                _CHECKS[what.format](what, item.path, file)
        if target is None:
            return Prepared(item)
        copy = name + (".parquet" if what.format == "avro" else _extension(item.path))
        _copy(what, source, item.path, target, copy)
    except MissingFileError:
        return Prepared(item, problem="it is not there any more")
    except _UnreadableError as error:
        return Prepared(item, problem=str(error))
    return Prepared(item, copy)


def _bad_name(item: CloudObject) -> str | None:
    try:
        check_path(item.path)
    except InvalidError as error:
        return f"its name cannot be used: {error.message}"
    return None


def _extension(path: str) -> str:
    """What Spark tells compressions by."""
    name = path.rpartition("/")[2]
    suffix = "." + name.rpartition(".")[2] if "." in name else ""
    return suffix if suffix[1:].isalnum() else ""


def _copy(what: Preparation, source: Storage, path: str, target: Storage, copy: str) -> None:
    with target.open_output(copy) as sink, source.open_input(path) as file:
        if what.format == "avro":
            # Not an OSError: that may be a disk that is full.
            with _reading():
                _to_parquet(file, sink)
        else:
            shutil.copyfileobj(file, sink, _COPY_BYTES)


def _to_parquet(file: pa.NativeFile, sink: BinaryIO) -> None:
    reader = fastavro.reader(io.BufferedReader(file))
    known = query_schema(arrow_schema(json.dumps(reader.writer_schema)))
    schema = pa.schema([column for column in known if column.name not in META_COLUMNS])
    with pq.ParquetWriter(sink, schema) as writer:
        for table in _avro_tables(reader, schema):
            writer.write_table(table)


def _avro_tables(reader: Any, schema: pa.Schema) -> Iterator[pa.Table]:
    rows: list[dict[str, Any]] = []
    for record in reader:
        rows.append(record)
        if len(rows) == _AVRO_ROWS:
            yield _table(rows, schema)
            rows = []
    if rows:
        yield _table(rows, schema)


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(
        [{f.name: _plain(row.get(f.name), f.type) for f in schema} for row in rows], schema
    )


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value as Arrow takes it: maps are lists of pairs there."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _plain(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_struct(kind):
        return {f.name: _plain(value.get(f.name), f.type) for f in kind}
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    return value


@contextmanager
def _reading(*also: type[Exception]) -> Iterator[None]:
    """Tell what goes wrong with an object's bytes from what goes wrong with the store."""
    try:
        yield
    except (MissingFileError, InvalidError, UnavailableError):
        raise
    except LakewrightError as error:
        raise _UnreadableError(str(error)) from error
    except (*_DAMAGE, *also) as error:
        raise _UnreadableError(f"{type(error).__name__}: {str(error)[:200]}") from error


def _check_parquet(what: Preparation, path: str, file: pa.NativeFile) -> None:
    for _ in pq.ParquetFile(file).iter_batches():
        pass


def _check_orc(what: Preparation, path: str, file: pa.NativeFile) -> None:
    found = orc.ORCFile(file)
    for stripe in range(found.nstripes):
        found.read_stripe(stripe)


def _check_json(what: Preparation, path: str, file: pa.NativeFile) -> None:
    for text in _texts(what, path, file):
        found = json.loads(text)
        rows = found if isinstance(found, list) else [found]
        if not all(isinstance(row, dict) for row in rows):
            raise _UnreadableError("a value in it is no JSON object")


def _check_csv(what: Preparation, path: str, file: pa.NativeFile) -> None:
    told = {key.lower(): value for key, value in what.options.items()}
    rows = csv.reader(
        _texts(what, path, file),
        delimiter=told.get("sep", told.get("delimiter", ",")),
        quotechar=told.get("quote", '"'),
        escapechar=told.get("escape", "\\"),
    )
    widths = {len(row) for row in rows if row}
    if len(widths) > 1:
        raise _UnreadableError(f"its lines have different numbers of fields: {sorted(widths)}")


def _texts(what: Preparation, path: str, file: pa.NativeFile) -> Iterator[str]:
    """The lines of a text, or all of it where a value may take several lines."""
    if path.endswith(_UNCHECKED):
        return
    told = {key.lower(): value for key, value in what.options.items()}
    opener = next((open_ for end, open_ in _OPENERS.items() if path.endswith(end)), None)
    raw: Any = io.BufferedReader(file)
    encoding = told.get("encoding", told.get("charset", "utf-8-sig"))
    with io.TextIOWrapper(opener(raw) if opener else raw, encoding, newline="") as text:
        if what.format == "json" and told.get("multiline", "false").lower() == "true":
            yield text.read()
            return
        yield from (line for line in text if line.strip())


_CHECKS: dict[str, Callable[[Preparation, str, pa.NativeFile], None]] = {
    "csv": _check_csv,
    "json": _check_json,
    "orc": _check_orc,
    "parquet": _check_parquet,
}
