"""Read the rows of objects: in place by Spark's readers, or from copies and after checks.

Executors check objects, and copy those that Spark cannot open by itself; Avro is converted to
Parquet. `ObjectReader` then loads all objects of a batch as one DataFrame.
"""

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
_DECOMPRESSORS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda file: cast(BinaryIO, gzip.GzipFile(fileobj=file)),
    ".bz2": lambda file: cast(BinaryIO, bz2.BZ2File(file)),
}
_PARSE_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    zlib.error,
    csv.Error,
    pa.ArrowException,
)
# Compressed files that Spark recognizes by suffix and Python cannot open.
_UNCHECKED_SUFFIXES = (".zst", ".zstd", ".snappy", ".lz4", ".deflate", ".xz")


@dataclass(frozen=True)
class Preparation:
    """What executors do with objects before Spark reads them; serialized for executors.

    `target` is the location of copies, if Spark cannot open the objects in place; `private` if only
    this user may read it. With `checked`, each object is read completely to check it.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    target: str | None = None
    private: bool = False
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared object: the name of its copy, if any, or the reason why it cannot be read."""

    item: CloudObject
    copy: str | None = None
    problem: str | None = None


class _UnreadableError(Exception):
    """An object cannot be read; the text is the reason."""


def prepare(
    preparation: Preparation, items: Sequence[tuple[int, CloudObject]], token: WriteToken
) -> list[Prepared] | LakewrightError:
    """Prepare numbered objects; an error that does not concern a single object is returned."""
    try:
        target = (
            storage_for(preparation.target, preparation.storage_options)
            if preparation.target is not None
            else None
        )
        with private_files() if preparation.private else nullcontext():
            return [
                _prepare_one(preparation, target, f"{number:06d}-{token}", item)
                for number, item in items
            ]
    except LakewrightError as error:
        return error


def missing_of(
    preparation: Preparation, items: Sequence[CloudObject], token: WriteToken
) -> list[CloudObject] | LakewrightError:
    """Return the objects that do not exist in their store."""
    try:
        return [item for item in items if not _exists(preparation, item)]
    except LakewrightError as error:
        return error


def _exists(preparation: Preparation, item: CloudObject) -> bool:
    if _name_problem(item) is not None:
        # The store cannot be asked for such a name; reading the object reports the problem.
        return True
    return store_of(preparation, item).exists(item.path)


def store_of(preparation: Preparation, item: CloudObject) -> Storage:
    """Return the storage of the bucket of an object."""
    return storage_for(preparation.addresses[item.bucket], preparation.storage_options)


def _prepare_one(
    preparation: Preparation, target: Storage | None, name: str, item: CloudObject
) -> Prepared:
    problem = _name_problem(item)
    if problem is not None:
        return Prepared(item, problem=problem)
    source = store_of(preparation, item)
    try:
        if preparation.checked and preparation.format != "avro":
            with _parsing(OSError), source.open_input(item.path) as file:
                _CHECKS[preparation.format](preparation, item.path, file)
        if target is None:
            return Prepared(item)
        copy = name + (".parquet" if preparation.format == "avro" else _extension(item.path))
        _copy(preparation, source, item.path, target, copy)
    except MissingFileError:
        return Prepared(item, problem="it no longer exists")
    except _UnreadableError as error:
        return Prepared(item, problem=str(error))
    return Prepared(item, copy)


def _name_problem(item: CloudObject) -> str | None:
    try:
        check_path(item.path)
    except InvalidError as error:
        return f"its name cannot be used: {error.message}"
    return None


def _extension(path: str) -> str:
    """Return the file suffix, by which Spark recognizes compression."""
    name = path.rpartition("/")[2]
    suffix = "." + name.rpartition(".")[2] if "." in name else ""
    return suffix if suffix[1:].isalnum() else ""


def _copy(preparation: Preparation, source: Storage, path: str, target: Storage, copy: str) -> None:
    with target.open_output(copy) as output, source.open_input(path) as file:
        if preparation.format == "avro":
            # An OSError may be a full disk, so it does not count as damage of the object.
            with _parsing():
                _to_parquet(file, output)
        else:
            shutil.copyfileobj(file, output, _COPY_BYTES)


def _to_parquet(file: pa.NativeFile, output: BinaryIO) -> None:
    reader = fastavro.reader(io.BufferedReader(file))
    table_schema = query_schema(arrow_schema(json.dumps(reader.writer_schema)))
    schema = pa.schema([column for column in table_schema if column.name not in META_COLUMNS])
    with pq.ParquetWriter(output, schema) as writer:
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
        [{f.name: _arrow_value(row.get(f.name), f.type) for f in schema} for row in rows], schema
    )


def _arrow_value(value: Any, data_type: pa.DataType) -> Any:
    """Return a value as Arrow expects it: maps as lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(data_type):
        return [(key, _arrow_value(item, data_type.item_type)) for key, item in value.items()]
    if pa.types.is_struct(data_type):
        return {f.name: _arrow_value(value.get(f.name), f.type) for f in data_type}
    if pa.types.is_list(data_type):
        return [_arrow_value(item, data_type.value_type) for item in value]
    return value


@contextmanager
def _parsing(*more_errors: type[Exception]) -> Iterator[None]:
    """Convert parse errors to `_UnreadableError`; errors of the store pass unchanged."""
    try:
        yield
    except (MissingFileError, InvalidError, UnavailableError):
        raise
    except LakewrightError as error:
        raise _UnreadableError(str(error)) from error
    except (*_PARSE_ERRORS, *more_errors) as error:
        raise _UnreadableError(f"{type(error).__name__}: {str(error)[:200]}") from error


def _check_parquet(preparation: Preparation, path: str, file: pa.NativeFile) -> None:
    for _ in pq.ParquetFile(file).iter_batches():
        pass


def _check_orc(preparation: Preparation, path: str, file: pa.NativeFile) -> None:
    orc_file = orc.ORCFile(file)
    for stripe in range(orc_file.nstripes):
        orc_file.read_stripe(stripe)


def _check_json(preparation: Preparation, path: str, file: pa.NativeFile) -> None:
    for text in _texts(preparation, path, file):
        value = json.loads(text)
        rows = value if isinstance(value, list) else [value]
        if not all(isinstance(row, dict) for row in rows):
            raise _UnreadableError("a value in it is no JSON object")


def _check_csv(preparation: Preparation, path: str, file: pa.NativeFile) -> None:
    options = {key.lower(): value for key, value in preparation.options.items()}
    rows = csv.reader(
        _texts(preparation, path, file),
        delimiter=options.get("sep", options.get("delimiter", ",")),
        quotechar=options.get("quote", '"'),
        escapechar=options.get("escape", "\\"),
    )
    widths = {len(row) for row in rows if row}
    if len(widths) > 1:
        raise _UnreadableError(f"its lines have different numbers of fields: {sorted(widths)}")


def _texts(preparation: Preparation, path: str, file: pa.NativeFile) -> Iterator[str]:
    """Yield the lines of a text, or the whole text if a value may span several lines."""
    if path.endswith(_UNCHECKED_SUFFIXES):
        return
    options = {key.lower(): value for key, value in preparation.options.items()}
    opener = next((open_ for end, open_ in _DECOMPRESSORS.items() if path.endswith(end)), None)
    raw: Any = io.BufferedReader(file)
    encoding = options.get("encoding", options.get("charset", "utf-8-sig"))
    with io.TextIOWrapper(opener(raw) if opener else raw, encoding, newline="") as text:
        if preparation.format == "json" and options.get("multiline", "false").lower() == "true":
            yield text.read()
            return
        yield from (line for line in text if line.strip())


_CHECKS: dict[str, Callable[[Preparation, str, pa.NativeFile], None]] = {
    "csv": _check_csv,
    "json": _check_json,
    "orc": _check_orc,
    "parquet": _check_parquet,
}


# The rows of objects on Spark, by its own readers: in place, or from copies.

Item = TypeVar("Item")
Answer = TypeVar("Answer")

SOURCE_PATH = "_hoodie_cloud_source_path"

_FILE = "_lakewright_file"
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme|ClassNotFoundException|Class \S+ not found")
_BUCKET_NOT_ALLOWED = f"its bucket is not one of those in {BUCKETS}"
_UNKNOWN_FILE = "lakewright: a row comes from a file that is no object of the batch"
_READ_ERRORS = re.compile(
    r"PATH_NOT_FOUND|FAILED_READ_FILE|MALFORMED|CANNOT_MERGE|CANNOT_INFER|UNABLE_TO_INFER"
)


@dataclass(frozen=True)
class ObjectRows:
    """The rows of objects, and the unreadable objects; `delete_copies` deletes the copies."""

    rows: DataFrame | None
    unreadable: tuple[Prepared, ...] = ()
    delete_copies: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class ObjectReader:
    """Reads objects of one store.

    `address` is the location of a bucket, with `{bucket}` for its name; `storage_options` are
    storage options. `buckets` are the ones that may be read; None for all that the job may read.
    """

    spark: SparkSession
    settings: ObjectSettings
    address: str
    storage_options: Mapping[str, str]
    clock: Clock
    unreadable_policy: UnreadablePolicy = UnreadablePolicy.ERROR
    buckets: frozenset[str] | None = None

    def missing(self, objects: Sequence[CloudObject]) -> list[CloudObject]:
        """Return the objects that no longer exist; executors send a request for each."""
        allowed = [item for item in objects if self._may_read(item)]
        find_missing = partial(missing_of, self._preparation(allowed))
        return _run_on_workers(self.spark, find_missing, allowed, lambda _: 1)

    def read(self, objects: Sequence[CloudObject]) -> ObjectRows:
        """Return the rows of objects, lazily; objects that must be copied or checked are read now.

        If unreadable objects are errors, the error is raised here or when the rows are evaluated.
        """
        refused = tuple(
            Prepared(i, problem=_BUCKET_NOT_ALLOWED) for i in objects if not self._may_read(i)
        )
        if refused and self.unreadable_policy is UnreadablePolicy.ERROR:
            raise InvalidError(
                "an event names a bucket that may not be read: add it to those that may, or have "
                "such objects passed over",
                object=self._name(refused[0].item),
                options=[BUCKETS, "lakewright.source.bad.objects"],
            )
        allowed = [item for item in objects if self._may_read(item)]
        preparation = self._preparation(allowed)
        copied = [item for item in allowed if not self._opens(preparation, item)]
        folder = self._folder() if copied else None
        try:
            objects_read = self._read(preparation, allowed, copied, folder)
        except LakewrightError:
            if folder is not None:
                folder.remove()
            raise
        return replace(objects_read, unreadable=(*refused, *objects_read.unreadable))

    def _may_read(self, item: CloudObject) -> bool:
        return self.buckets is None or item.bucket in self.buckets

    def _read(
        self,
        preparation: Preparation,
        objects: Sequence[CloudObject],
        copied: Sequence[CloudObject],
        folder: CopyFolder | None,
    ) -> ObjectRows:
        prepared = self._prepare_objects(preparation, copied, folder)
        copied_set = set(copied)
        native = [item for item in objects if item not in copied_set]
        if self.unreadable_policy is UnreadablePolicy.ERROR:
            prepared += [Prepared(item) for item in native]
        else:
            prepared += self._prepare_objects(preparation, native, None)
        unreadable_objects = tuple(entry for entry in prepared if entry.problem is not None)
        if unreadable_objects and self.unreadable_policy is UnreadablePolicy.ERROR:
            raise unreadable(
                unreadable_objects[0].problem or "", self._name(unreadable_objects[0].item)
            )
        readable = sorted((p for p in prepared if p.problem is None), key=lambda p: p.item.position)
        rows = self._load(preparation, readable, folder) if readable else None
        return (
            ObjectRows(rows, unreadable_objects)
            if folder is None
            else ObjectRows(rows, unreadable_objects, folder.remove)
        )

    def _preparation(self, objects: Iterable[CloudObject]) -> Preparation:
        buckets = {item.bucket for item in objects}
        return Preparation(
            format=self.settings.format,
            options=dict(self.settings.options),
            addresses={bucket: self._bucket(bucket) for bucket in buckets},
            storage_options=self.storage_options,
            checked=self.unreadable_policy is not UnreadablePolicy.ERROR,
        )

    def _name(self, item: CloudObject) -> str:
        return f"{self._bucket(item.bucket)}/{item.path}"

    def _bucket(self, name: str) -> str:
        return self.address.replace("{bucket}", name)

    def _opens(self, preparation: Preparation, item: CloudObject) -> bool:
        """Whether Spark can read an object in place, with the file systems that it has.

        Spark ignores files whose names start with a dot or an underscore, even if they are named.
        """
        name = item.path.rpartition("/")[2]
        hidden = name.startswith((".", "_")) or name.endswith("._COPYING_")
        return (
            preparation.format != "avro"
            and not hidden
            and self._can_open(store_of(preparation, item).root)
        )

    def _can_open(self, root: str) -> bool:
        scheme = root.partition(":")[0]
        if scheme == "file":
            return True
        key = f"spark.lakewright.opens.{scheme}"
        if not self.spark.conf.get(key, ""):
            self.spark.conf.set(key, str(_has_file_system(self.spark, root)).lower())
        return self.spark.conf.get(key, "") == "true"

    def _folder(self) -> CopyFolder:
        """Create a folder for copies that all workers can access."""
        work_folder = self.settings.work_folder
        if work_folder is None:
            if not (self.spark.conf.get("spark.master", "") or "").startswith("local"):
                raise InvalidError(
                    "Spark cannot open these objects by itself: name a folder for copies that all "
                    "of its workers see",
                    option="lakewright.source.work.folder",
                )
            return private_folder(self.clock.now_ms())
        name = f"{PREFIX}{self.clock.new_id()}"
        delete = partial(storage_for(work_folder, self.storage_options).delete_folder, name)
        return CopyFolder(f"{work_folder.rstrip('/')}/{name}", delete)

    def _prepare_objects(
        self, preparation: Preparation, objects: Sequence[CloudObject], folder: CopyFolder | None
    ) -> list[Prepared]:
        if folder is not None:
            preparation = replace(preparation, target=folder.address, private=folder.private)
        task = partial(prepare, preparation)
        numbered = list(enumerate(objects))
        return _run_on_workers(self.spark, task, numbered, lambda pair: pair[1].size)

    def _load(
        self, preparation: Preparation, readable: Sequence[Prepared], folder: CopyFolder | None
    ) -> DataFrame:
        copies = storage_for(folder.address, self.storage_options) if folder is not None else None
        urls = [
            copies.url(entry.copy)
            if copies is not None and entry.copy is not None
            else store_of(preparation, entry.item).url(entry.item.path)
            for entry in readable
        ]
        reader = self.spark.read.format(self._spark_format).options(**self._options())
        if self.settings.schema is not None:
            reader = reader.schema(self.settings.schema)
        try:
            frame = reader.load([literal(url) for url in urls])
            needs_names = self.settings.path_fields or self.settings.source_path
            return self._with_names(frame, urls, readable) if needs_names else frame
        except SPARK_ERRORS as error:
            text = str(error)
            if _READ_ERRORS.search(text):
                raise unreadable(text[:500]) from error
            raise UnavailableError("Spark cannot read objects", reason=text[:500]) from error

    @property
    def _spark_format(self) -> str:
        return "parquet" if self.settings.format == "avro" else self.settings.format

    def _options(self) -> dict[str, str]:
        """Return the reader options: damaged objects are errors, unless users choose otherwise."""
        user_options = dict(self.settings.options)
        lower_options = {key.lower(): value for key, value in user_options.items()}
        defaults = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
        if self.settings.format == "avro":
            # Workers have converted it to Parquet.
            defaults = dict(NATIVE_OPTIONS)
        if self._spark_format in ("json", "csv"):
            defaults["mode"] = "FAILFAST"
        elif self.settings.merge_schema:
            defaults["mergeSchema"] = "true"
        if self._spark_format == "csv" and lower_options.get("header", "").lower() == "true":
            # Otherwise Spark matches columns by position, even if other objects have other names.
            defaults["enforceSchema"] = "false"
        added = {key: value for key, value in defaults.items() if key.lower() not in lower_options}
        return {**user_options, **added}

    def _with_names(
        self, frame: DataFrame, urls: Sequence[str], readable: Sequence[Prepared]
    ) -> DataFrame:
        """Add the columns that are derived from the names of objects."""
        names = {_FILE: [_one_slash(url) for url in urls]}
        if self.settings.source_path:
            names[SOURCE_PATH] = [self._name(entry.item) for entry in readable]
        for column in self.settings.path_fields:
            names[column] = [path_value(entry.item.path, column) or "" for entry in readable]
        lookup = self.spark.createDataFrame(pa.table(names).cast(_text_columns(names)))
        # Spark reports escaped URIs, and those of local files with one slash or three.
        decoded = "url_decode(replace(_metadata.file_path, '+', '%2B'))"
        file = f"regexp_replace({decoded}, '^file:/+', 'file:/')"
        added = [name for name in names if name != _FILE]
        rows = frame.withColumn(_FILE, F.expr(file)).drop(*added)
        other_columns = [name for name in frame.columns if name not in added]
        joined = rows.join(
            F.broadcast(lookup.withColumn("_lakewright_known", F.lit(1))), _FILE, "left"
        )
        checks = {
            name: F.expr(
                f"CASE WHEN _lakewright_known IS NULL THEN CAST(raise_error('{_UNKNOWN_FILE}') AS "
                f"STRING) ELSE nullif(`{name}`, '') END"
            )
            for name in added
        }
        return joined.withColumns(checks).select(
            *(f"`{name}`" for name in (*other_columns, *added))
        )


def path_value(path: str, field_name: str) -> str | None:
    """Return the value of a column in a path such as `country=NO/1.json`."""
    match = re.search(rf"(?:^|/){re.escape(field_name)}=([^/]*)/", path)
    return match[1] if match else None


def unreadable(reason: str, name: str | None = None) -> CorruptError:
    """Return the error for an unreadable object; it names the option to skip such objects."""
    facts = {} if name is None else {"object": name}
    return CorruptError(
        "an object of an event cannot be read; it may be passed over",
        **facts,
        reason=reason,
        option="lakewright.source.bad.objects",
    )


def _has_file_system(spark: SparkSession, root: str) -> bool:
    probe = spark.read.schema("value STRING")
    try:
        # Spark Connect checks the path only when the schema is requested.
        return probe.text(literal(join_path(root, "lakewright-probe"))).schema is not None
    except SPARK_ERRORS as error:
        return _NO_FILE_SYSTEM.search(str(error)) is None


def _run_on_workers(
    spark: SparkSession,
    task: Callable[[Sequence[Item], WriteToken], list[Answer] | LakewrightError],
    items: Sequence[Item],
    size: Callable[[Item], int],
) -> list[Answer]:
    """Run a function on workers for all items and return the results; raise an error of any."""
    try:
        results = map_on_workers(spark, task, items, size)
    except SPARK_ERRORS as error:
        raise translate_spark_error(error) from error
    collected: list[Answer] = []
    for result in results:
        if isinstance(result, LakewrightError):
            raise result
        collected += result
    return collected


def _one_slash(url: str) -> str:
    return re.sub(r"^file:/+", "file:/", url)


def _text_columns(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])
