"""`format("hudi")` and SQL on a session: wraps a few methods of the session's own classes.

Spark asks a Python data source for all columns and passes it no path for catalog tables, lets it
know nothing of save modes, and on classic Spark readers and writers keep nothing of what they were
told on the Python side. So their methods note what they are told, and `load`, `save` and `start`
hand over to the library where the format is ours.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from lakewright.api.factory import open_table
from lakewright.client.save import save
from lakewright.client.stream_sink import StreamSink
from lakewright.datasource.source import (
    FORMATS,
    planned,
    register_source,
    session_storage_options,
    struct_of,
)
from lakewright.datasource.stream_source import stream_schema
from lakewright.errors import InvalidError
from lakewright.scan.options import NEW_COLUMNS, ignored_stream_options
from lakewright.spark.reader import scan
from lakewright.spark.worker_environment import require_workers
from lakewright.sql.dispatch import run_sql
from lakewright.sql.session import Session
from lakewright.storage.base import Storage
from lakewright.storage.factory import other_options, storage_for, storage_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INSTALLED = "spark.lakewright.installed"
_ORIGINAL = "_lakewright_original"
_ASKED = "_lakewright_asked"
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
# What a method notes: where, and what Spark calls its argument.
_NOTED = {
    "format": ("format", "source"),
    "schema": ("schema", "schema"),
    "mode": ("mode", "saveMode"),
    "outputMode": ("output_mode", "outputMode"),
    "queryName": ("query_name", "queryName"),
}


def install(spark: SparkSession) -> None:
    """Make `format("hudi")` and SQL over tables work on this session; twice is harmless.

    Raises:
        InvalidError: Spark's workers run a Python without this library, or with another version.
    """
    require_workers(spark)
    register_source(spark)
    spark.conf.set(_INSTALLED, "true")
    reader = type(spark.read)
    for name in ("format", "schema", "option", "options"):
        _wrap(reader, name, _noting(name))
    _wrap(reader, "load", _load)
    source = type(spark.readStream)
    for name in ("format", "schema", "option", "options"):
        _wrap(source, name, _noting(name))
    _wrap(source, "load", _load_stream)
    empty = spark.range(0)
    writer = type(empty.write)
    for name in ("format", "option", "options", "mode", "partitionBy"):
        _wrap(writer, name, _noting(name))
    _wrap(writer, "save", _save)
    stream = type(spark.readStream.format("rate").load().writeStream)
    for name in ("format", "option", "options", "partitionBy", "outputMode", "queryName"):
        _wrap(stream, name, _noting(name))
    _wrap(stream, "start", _start)
    _wrap(type(spark), "sql", _sql)


def uninstall(spark: SparkSession) -> None:
    """Undo `install` for this session; the classes' methods then pass everything through."""
    spark.conf.unset(_INSTALLED)


@dataclass
class _CapturedOptions:
    """What a reader or writer was told so far."""

    format: str | None = None
    schema: T.StructType | str | None = None
    mode: str | None = None
    output_mode: str | None = None
    query_name: str | None = None
    partition_by: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)


def _wrap(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name)
    if not hasattr(original, _ORIGINAL):
        wrapped = functools.wraps(original)(make(original))
        setattr(wrapped, _ORIGINAL, original)
        setattr(owner, name, wrapped)


def _noting(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            _note(_asked(self), name, args, kwargs)
            return original(self, *args, **kwargs)

        return wrapped

    return make


def _asked(reader: Any) -> _CapturedOptions:
    asked: _CapturedOptions = reader.__dict__.setdefault(_ASKED, _CapturedOptions())
    return asked


def _note(
    asked: _CapturedOptions, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if name in _NOTED:
        attribute, argument = _NOTED[name]
        setattr(asked, attribute, args[0] if args else kwargs[argument])
    elif name == "partitionBy":
        asked.partition_by = _flat(args)
    elif name == "option":
        told = dict(zip(("key", "value"), args, strict=False)) | kwargs
        asked.options[told["key"]] = _text(told["value"])
    else:
        asked.options.update({key: _text(value) for key, value in kwargs.items()})


def _flat(columns: tuple[Any, ...]) -> tuple[str, ...]:
    """Column names that were given one by one or as a list."""
    listed = columns[0] if len(columns) == 1 and isinstance(columns[0], (list, tuple)) else columns
    return tuple(listed)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(
        self: Any, path: Any = None, format: str | None = None, schema: Any = None, **options: Any
    ) -> Any:
        asked = _asked(self)
        spark = getattr(self, "_spark", None) or self._client
        if (format or asked.format) not in FORMATS or not _is_installed(spark):
            return original(self, path, format, schema, **options)
        told = {**asked.options, **{key: _text(value) for key, value in options.items()}}
        return _read(spark, path, told, schema or asked.schema)

    return load


def _read(
    spark: SparkSession, path: object, options: dict[str, str], schema: T.StructType | str | None
) -> DataFrame:
    columns = None if schema is None else struct_of(schema).names
    session = session_storage_options(spark)
    table = {**options, "path": _one_path(path, options)}
    return scan(spark, *planned(table, columns, session=session))


def _one_path(path: object, options: dict[str, str]) -> str:
    """The path of the table that is to be read."""
    found = path or options.get("path")
    if not isinstance(found, str) or not found:
        raise InvalidError(
            "one path of a table expected: give it to load; several tables are read one by one",
            path=found,
        )
    return found


def _load_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(
        self: Any, path: Any = None, format: str | None = None, schema: Any = None, **options: Any
    ) -> Any:
        asked = _asked(self)
        spark = getattr(self, "_spark", None) or self._client
        if (format or asked.format) not in FORMATS or not _is_installed(spark):
            return original(self, path, format, schema, **options)
        told = {**asked.options, **{key: _text(value) for key, value in options.items()}}
        for key in ignored_stream_options(told):
            warnings.warn(f"option {key} has no effect on a stream", stacklevel=2)
        named = schema or asked.schema
        # Who names columns wants no others, also if the table gets some.
        told = {**({NEW_COLUMNS: "ignore"} if named else {}), **told}
        told = {**told, "path": _one_path(path, told)}
        # What the session says about storage travels with the source, not as options.
        register_source(spark)
        known = {**session_storage_options(spark), **told}
        columns = stream_schema(known, struct_of(named) if named else None)
        return original(self, told.pop("path"), FORMATS[0], columns, **told)

    return load


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    def save_frame(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> Any:
        asked = _asked(self)
        if (format or asked.format) not in FORMATS or not _is_installed(self._spark):
            return original(self, path, format, mode, partitionBy, **options)
        told = {**asked.options, **{key: _text(value) for key, value in options.items()}}
        by = _flat((partitionBy,)) if partitionBy else asked.partition_by
        storage, rest = _target(self._spark, path, told)
        save(storage, _frame_of(self), rest, mode or asked.mode or "error", by)
        return None

    return save_frame


def _frame_of(writer: Any) -> DataFrame:
    """The DataFrame that a writer was made from; on Spark Connect it keeps only its plan."""
    kind = type(writer._spark.range(0))
    frame: DataFrame = (
        writer._df if isinstance(writer._df, kind) else kind(writer._df, writer._spark)
    )
    return frame


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Any:
        asked = _asked(self)
        spark = getattr(self, "_spark", None) or self._session
        if (format or asked.format) not in FORMATS or not _is_installed(spark):
            return original(self, path, format, outputMode, partitionBy, queryName, **options)
        told = {**asked.options, **{key: _text(value) for key, value in options.items()}}
        by = _flat((partitionBy,)) if partitionBy else asked.partition_by
        storage, rest = _target(spark, path, told)
        kept = {key: rest.pop(key) for key in list(rest) if key.lower() == "checkpointlocation"}
        name = queryName or asked.query_name
        checkpoint = _checkpoint(spark, next(iter(kept.values()), None), name)
        sink = StreamSink(
            storage,
            rest,
            by,
            checkpoint,
            places={**session_storage_options(spark), **storage_options(told)},
            fresh=checkpoint is None,
            complete=(outputMode or asked.output_mode or "").lower() == "complete",
        )
        query = self.foreachBatch(sink)
        return original(query, outputMode=outputMode, queryName=queryName, **kept)

    return start


def _checkpoint(spark: SparkSession, told: str | None, name: str | None) -> str | None:
    """Where Spark keeps the checkpoint of a query; None if in a place that is used this once."""
    if told is not None:
        return told
    folder = spark.conf.get(_CHECKPOINTS, "")
    return f"{folder.rstrip('/')}/{name}" if folder and name else None


def _target(
    spark: SparkSession, path: str | None, options: dict[str, str]
) -> tuple[Storage, dict[str, str]]:
    """Where a write goes, and the options that are not about that."""
    address = path or next((v for k, v in options.items() if k.lower() == "path"), None)
    if not address:
        raise InvalidError(
            "the table's path is missing: give it to save or start, or as an option", option="path"
        )
    places = {**session_storage_options(spark), **storage_options(options)}
    rest = {key: value for key, value in other_options(options).items() if key.lower() != "path"}
    return storage_for(address, places), rest


def _sql(original: Callable[..., Any]) -> Callable[..., Any]:
    def sql(self: Any, sqlQuery: str, *args: Any, **kwargs: Any) -> Any:
        if not _is_installed(self):
            return original(self, sqlQuery, *args, **kwargs)
        told = {key: value for key, value in kwargs.items() if key != "args"}
        markers = args[0] if args else kwargs.get("args")
        opened = functools.partial(open_table, spark=self)
        session = Session(self, functools.partial(original, self), opened, markers, told)
        done = run_sql(session, sqlQuery)
        return original(self, sqlQuery, *args, **kwargs) if done is None else done

    return sql


def _is_installed(spark: SparkSession) -> bool:
    return spark.conf.get(_INSTALLED, "") == "true"
