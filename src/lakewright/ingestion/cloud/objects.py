"""Objects in the hands of a worker: fetch one, check it, turn Avro into what Spark can read."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from lakewright.clock import Clock
from lakewright.errors import CorruptError, InvalidError, LakewrightError, UnavailableError
from lakewright.format.avro.schema import arrow_schema
from lakewright.ingestion.cloud.local_copies import (
    PREFIX,
    CopyFolder,
    private_files,
    private_folder,
)
from lakewright.ingestion.cloud.options import BUCKETS, ObjectSettings, UnreadablePolicy
from lakewright.ingestion.cloud.selection import CloudObject
from lakewright.model.schema import META_COLUMNS, query_schema
from lakewright.spark.reader import NATIVE_OPTIONS, literal
from lakewright.spark.worker_environment import SPARK_ERRORS
from lakewright.spark.writer import map_on_workers, translate_spark_error
from lakewright.storage.base import MissingFileError, Storage, check_path, join_path
from lakewright.storage.factory import storage_for
from lakewright.write.task import WriteToken

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    what: Preparation, items: Sequence[tuple[int, CloudObject]], token: WriteToken
) -> list[Prepared] | LakewrightError:
    """Prepare some numbered objects; an error that says nothing about one comes back as a value."""
    try:
        target = storage_for(what.target, what.places) if what.target is not None else None
        with private_files() if what.private else nullcontext():
            return [_prepared(what, target, f"{n:06d}-{token}", item) for n, item in items]
    except LakewrightError as error:
        return error


def missing_of(
    what: Preparation, items: Sequence[CloudObject], token: WriteToken
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


# ------------------------------------------------------------------------------------------------
# The rows of objects on Spark, by its own readers: where objects are, or from copies of them.


Item = TypeVar("Item")
Answer = TypeVar("Answer")

SOURCE_PATH = "_hoodie_cloud_source_path"

_FILE = "_lakewright_file"
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme|ClassNotFoundException|Class \S+ not found")
_REFUSED = f"its bucket is not one of those in {BUCKETS}"
_STRANGER = "lakewright: a row comes from a file that is no object of the batch"
_UNREADABLE = re.compile(
    r"PATH_NOT_FOUND|FAILED_READ_FILE|MALFORMED|CANNOT_MERGE|CANNOT_INFER|UNABLE_TO_INFER"
)


@dataclass(frozen=True)
class ObjectRows:
    """The rows of some objects, and those that could not be read; `done` takes copies away."""

    rows: DataFrame | None
    bad: tuple[Prepared, ...] = ()
    done: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class ObjectReader:
    """Reads objects of one store; `address` says where a bucket is, `places` how to get there.

    `buckets` are those that may be read; None for all that the job itself may read.
    """

    spark: SparkSession
    settings: ObjectSettings
    address: str
    places: Mapping[str, str]
    clock: Clock
    bad: UnreadablePolicy = UnreadablePolicy.ERROR
    buckets: frozenset[str] | None = None

    def missing(self, objects: Sequence[CloudObject]) -> list[CloudObject]:
        """Those that are not in their store any more; a request for each, from workers."""
        asked = [item for item in objects if self._may_read(item)]
        ask = partial(missing_of, self._preparation(asked))
        return _asked(self.spark, ask, asked, lambda _: 1)

    def read(self, objects: Sequence[CloudObject]) -> ObjectRows:
        """The rows of objects; nothing but what must be copied or checked is read yet.

        With `bad` being an error, an object that cannot be read is one here, or when rows are
        asked for.
        """
        refused = tuple(Prepared(i, problem=_REFUSED) for i in objects if not self._may_read(i))
        if refused and self.bad is UnreadablePolicy.ERROR:
            raise InvalidError(
                "an event names a bucket that may not be read: add it to those that may, or have "
                "such objects passed over",
                object=self._name(refused[0].item),
                options=[BUCKETS, "lakewright.source.bad.objects"],
            )
        allowed = [item for item in objects if self._may_read(item)]
        what = self._preparation(allowed)
        copied = [item for item in allowed if not self._opens(what, item)]
        folder = self._folder() if copied else None
        try:
            found = self._read(what, allowed, copied, folder)
        except LakewrightError:
            if folder is not None:
                folder.remove()
            raise
        return replace(found, bad=(*refused, *found.bad))

    def _may_read(self, item: CloudObject) -> bool:
        return self.buckets is None or item.bucket in self.buckets

    def _read(
        self,
        what: Preparation,
        objects: Sequence[CloudObject],
        copied: Sequence[CloudObject],
        folder: CopyFolder | None,
    ) -> ObjectRows:
        prepared = self._prepared(what, copied, folder)
        known = set(copied)
        native = [item for item in objects if item not in known]
        if self.bad is UnreadablePolicy.ERROR:
            prepared += [Prepared(item) for item in native]
        else:
            prepared += self._prepared(what, native, None)
        bad = tuple(each for each in prepared if each.problem is not None)
        if bad and self.bad is UnreadablePolicy.ERROR:
            raise unreadable(bad[0].problem or "", self._name(bad[0].item))
        good = sorted((p for p in prepared if p.problem is None), key=lambda p: p.item.place)
        rows = self._loaded(what, good, folder) if good else None
        return ObjectRows(rows, bad) if folder is None else ObjectRows(rows, bad, folder.remove)

    def _preparation(self, objects: Iterable[CloudObject]) -> Preparation:
        buckets = {item.bucket for item in objects}
        return Preparation(
            format=self.settings.format,
            options=dict(self.settings.options),
            addresses={bucket: self._bucket(bucket) for bucket in buckets},
            places=self.places,
            checked=self.bad is not UnreadablePolicy.ERROR,
        )

    def _name(self, item: CloudObject) -> str:
        return f"{self._bucket(item.bucket)}/{item.path}"

    def _bucket(self, name: str) -> str:
        return self.address.replace("{bucket}", name)

    def _opens(self, what: Preparation, item: CloudObject) -> bool:
        """Whether Spark reads an object where it is, without a JAR that is not there.

        It passes over names that begin with a dot or an underscore, whoever asks for them.
        """
        name = item.path.rpartition("/")[2]
        hidden = name.startswith((".", "_")) or name.endswith("._COPYING_")
        return what.format != "avro" and not hidden and self._can_open(store_of(what, item).root)

    def _can_open(self, root: str) -> bool:
        scheme = root.partition(":")[0]
        if scheme == "file":
            return True
        known = f"spark.lakewright.opens.{scheme}"
        if not self.spark.conf.get(known, ""):
            self.spark.conf.set(known, str(_has_file_system(self.spark, root)).lower())
        return self.spark.conf.get(known, "") == "true"

    def _folder(self) -> CopyFolder:
        """A fresh folder for copies, which all workers see."""
        named = self.settings.work_folder
        if named is None:
            if not (self.spark.conf.get("spark.master", "") or "").startswith("local"):
                raise InvalidError(
                    "Spark cannot open these objects by itself: name a folder for copies that all "
                    "of its workers see",
                    option="lakewright.source.work.folder",
                )
            return private_folder(self.clock.now_ms())
        name = f"{PREFIX}{self.clock.new_id()}"
        delete = partial(storage_for(named, self.places).delete_folder, name)
        return CopyFolder(f"{named.rstrip('/')}/{name}", delete)

    def _prepared(
        self, what: Preparation, objects: Sequence[CloudObject], folder: CopyFolder | None
    ) -> list[Prepared]:
        if folder is not None:
            what = replace(what, target=folder.address, private=folder.private)
        do = partial(prepare, what)
        numbered = list(enumerate(objects))
        return _asked(self.spark, do, numbered, lambda each: each[1].size)

    def _loaded(
        self, what: Preparation, good: Sequence[Prepared], folder: CopyFolder | None
    ) -> DataFrame:
        copies = storage_for(folder.address, self.places) if folder is not None else None
        urls = [
            copies.url(each.copy)
            if copies is not None and each.copy is not None
            else store_of(what, each.item).url(each.item.path)
            for each in good
        ]
        reader = self.spark.read.format(self._kind).options(**self._options())
        if self.settings.schema is not None:
            reader = reader.schema(self.settings.schema)
        try:
            frame = reader.load([literal(url) for url in urls])
            named = self.settings.path_fields or self.settings.source_path
            return self._with_names(frame, urls, good) if named else frame
        except SPARK_ERRORS as error:
            text = str(error)
            if _UNREADABLE.search(text):
                raise unreadable(text[:500]) from error
            raise UnavailableError("Spark cannot read objects", reason=text[:500]) from error

    @property
    def _kind(self) -> str:
        return "parquet" if self.settings.format == "avro" else self.settings.format

    def _options(self) -> dict[str, str]:
        """The reader's options: what is damaged is an error, unless users say otherwise."""
        told = dict(self.settings.options)
        given = {key.lower(): value for key, value in told.items()}
        usual = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
        if self.settings.format == "avro":
            # Workers have made Parquet of it.
            usual = dict(NATIVE_OPTIONS)
        if self._kind in ("json", "csv"):
            usual["mode"] = "FAILFAST"
        elif self.settings.merge_schema:
            usual["mergeSchema"] = "true"
        if self._kind == "csv" and given.get("header", "").lower() == "true":
            # Else Spark takes columns by their numbers, whatever their names are in other objects.
            usual["enforceSchema"] = "false"
        added = {key: value for key, value in usual.items() if key.lower() not in given}
        return {**told, **added}

    def _with_names(
        self, frame: DataFrame, urls: Sequence[str], good: Sequence[Prepared]
    ) -> DataFrame:
        """Rows with what the name of their object tells."""
        names = {_FILE: [_one_slash(url) for url in urls]}
        if self.settings.source_path:
            names[SOURCE_PATH] = [self._name(each.item) for each in good]
        for column in self.settings.path_fields:
            names[column] = [path_value(each.item.path, column) or "" for each in good]
        known = self.spark.createDataFrame(pa.table(names).cast(_text_columns(names)))
        # Spark writes a file's URI with escapes, and that of a local one with one slash or three.
        decoded = "url_decode(replace(_metadata.file_path, '+', '%2B'))"
        file = f"regexp_replace({decoded}, '^file:/+', 'file:/')"
        added = [name for name in names if name != _FILE]
        rows = frame.withColumn(_FILE, F.expr(file)).drop(*added)
        kept = [name for name in frame.columns if name not in added]
        joined = rows.join(
            F.broadcast(known.withColumn("_lakewright_known", F.lit(1))), _FILE, "left"
        )
        checks = {
            name: F.expr(
                f"CASE WHEN _lakewright_known IS NULL THEN CAST(raise_error('{_STRANGER}') AS "
                f"STRING) ELSE nullif(`{name}`, '') END"
            )
            for name in added
        }
        return joined.withColumns(checks).select(*(f"`{name}`" for name in (*kept, *added)))


def path_value(path: str, field_name: str) -> str | None:
    """The value that a path tells for a column, as in `country=NO/1.json`."""
    found = re.search(rf"(?:^|/){re.escape(field_name)}=([^/]*)/", path)
    return found[1] if found else None


def unreadable(reason: str, name: str | None = None) -> CorruptError:
    """An object cannot be read; the option says how to go on without it."""
    told = {} if name is None else {"object": name}
    return CorruptError(
        "an object that an event tells of cannot be read; it may be passed over",
        **told,
        reason=reason,
        option="lakewright.source.bad.objects",
    )


def _has_file_system(spark: SparkSession, root: str) -> bool:
    probe = spark.read.schema("value STRING")
    try:
        # On Spark Connect nothing is looked at before somebody asks for the schema.
        return probe.text(literal(join_path(root, "lakewright-probe"))).schema is not None
    except SPARK_ERRORS as error:
        return _NO_FILE_SYSTEM.search(str(error)) is None


def _asked(
    spark: SparkSession,
    do: Callable[[Sequence[Item], WriteToken], list[Answer] | LakewrightError],
    items: Sequence[Item],
    size: Callable[[Item], int],
) -> list[Answer]:
    """What workers answer to all items; an error that one of them met is raised here."""
    try:
        answers = map_on_workers(spark, do, items, size)
    except SPARK_ERRORS as error:
        raise translate_spark_error(error) from error
    found: list[Answer] = []
    for answer in answers:
        if isinstance(answer, LakewrightError):
            raise answer
        found += answer
    return found


def _one_slash(url: str) -> str:
    return re.sub(r"^file:/+", "file:/", url)


def _text_columns(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])
