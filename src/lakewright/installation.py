"""`format("hudi")` and SQL on a Spark session, by wrapping methods of the session's classes.

Spark asks a Python data source for all columns, passes it no path for catalog tables, and does not
support save modes for it. Readers and writers of classic Spark do not keep their options on the
Python side. So the wrapped methods record their arguments, and `load`, `save` and `start` call this
library if the format is `hudi`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
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
_CAPTURED_ATTRIBUTE = "_lakewright_asked"
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
# For each captured method, the attribute of _CapturedOptions and Spark's name of the argument.
_CAPTURED_ARGUMENTS = {
    "format": ("format", "source"),
    "schema": ("schema", "schema"),
    "mode": ("mode", "saveMode"),
    "outputMode": ("output_mode", "outputMode"),
    "queryName": ("query_name", "queryName"),
}


def install(spark: SparkSession) -> None:
    """Enable `format("hudi")`, SQL and `CALL` procedures for Hudi tables on a Spark session.

    Call this once after the session was started; repeating the call has no effect.

    Args:
        spark: The Spark session, classic or Spark Connect.

    Raises:
        InvalidError: The Python workers of Spark do not have this library, or another version of
            it.

    Example:
        ```python
        lw.install(spark)
        df.write.format("hudi").options(**hudi_options).mode("append").save("s3a://lake/trips")
        spark.read.format("hudi").load("s3a://lake/trips").show()
        spark.sql("CALL show_freshness(path => 's3a://lake/trips')").show()
        ```
    """
    require_workers(spark)
    register_source(spark)
    spark.conf.set(_INSTALLED, "true")
    reader = type(spark.read)
    for name in ("format", "schema", "option", "options"):
        _wrap(reader, name, _capturing(name))
    _wrap(reader, "load", _load)
    stream_reader = type(spark.readStream)
    for name in ("format", "schema", "option", "options"):
        _wrap(stream_reader, name, _capturing(name))
    _wrap(stream_reader, "load", _load_stream)
    empty_frame = spark.range(0)
    writer = type(empty_frame.write)
    for name in ("format", "option", "options", "mode", "partitionBy"):
        _wrap(writer, name, _capturing(name))
    _wrap(writer, "save", _save)
    stream_writer = type(spark.readStream.format("rate").load().writeStream)
    for name in ("format", "option", "options", "partitionBy", "outputMode", "queryName"):
        _wrap(stream_writer, name, _capturing(name))
    _wrap(stream_writer, "start", _start)
    _wrap(type(spark), "sql", _sql)


def uninstall(spark: SparkSession) -> None:
    """Undo `install` for a session: Spark handles `format("hudi")` and SQL by itself again.

    Args:
        spark: The Spark session.

    Example:
        ```python
        lw.uninstall(spark)
        ```
    """
    spark.conf.unset(_INSTALLED)


@dataclass
class _CapturedOptions:
    """The settings that were passed to a reader or writer."""

    format: str | None = None
    schema: T.StructType | str | None = None
    mode: str | None = None
    output_mode: str | None = None
    query_name: str | None = None
    partition_by: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)

    def all_options(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the options set before, and those given to the call that reads or writes."""
        return {**self.options, **{key: _text(value) for key, value in given.items()}}


def _wrap(
    owner: type, name: str, make_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    original = getattr(owner, name)
    if not hasattr(original, _ORIGINAL):
        wrapped = functools.wraps(original)(make_wrapper(original))
        setattr(wrapped, _ORIGINAL, original)
        setattr(owner, name, wrapped)


def _capturing(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            _capture(_captured(self), name, args, kwargs)
            return original(self, *args, **kwargs)

        return wrapped

    return make


def _captured(reader: Any) -> _CapturedOptions:
    captured: _CapturedOptions = reader.__dict__.setdefault(_CAPTURED_ATTRIBUTE, _CapturedOptions())
    return captured


def _capture(
    captured: _CapturedOptions, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if name in _CAPTURED_ARGUMENTS:
        attribute, argument = _CAPTURED_ARGUMENTS[name]
        setattr(captured, attribute, args[0] if args else kwargs[argument])
    elif name == "partitionBy":
        captured.partition_by = _flat(args)
    elif name == "option":
        pair = dict(zip(("key", "value"), args, strict=False)) | kwargs
        captured.options[pair["key"]] = _text(pair["value"])
    else:
        captured.options.update({key: _text(value) for key, value in kwargs.items()})


def _flat(columns: tuple[Any, ...]) -> tuple[str, ...]:
    """Return column names that were given one by one or as a list."""
    names = columns[0] if len(columns) == 1 and isinstance(columns[0], (list, tuple)) else columns
    return tuple(names)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(
        self: Any, path: Any = None, format: str | None = None, schema: Any = None, **options: Any
    ) -> Any:
        captured = _captured(self)
        spark = getattr(self, "_spark", None) or self._client
        if (format or captured.format) not in FORMATS or not _is_installed(spark):
            return original(self, path, format, schema, **options)
        all_options = captured.all_options(options)
        return _read(spark, path, all_options, schema or captured.schema)

    return load


def _read(
    spark: SparkSession, path: object, options: dict[str, str], schema: T.StructType | str | None
) -> DataFrame:
    columns = None if schema is None else struct_of(schema).names
    session = session_storage_options(spark)
    table = {**options, "path": _one_path(path, options)}
    return scan(spark, *planned(table, columns, session=session))


def _one_path(path: object, options: dict[str, str]) -> str:
    """Return the path of the table to read."""
    table_path = path or options.get("path")
    if not isinstance(table_path, str) or not table_path:
        raise InvalidError(
            "one path of a table expected: give it to load; several tables are read one by one",
            path=table_path,
        )
    return table_path


def _load_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(
        self: Any, path: Any = None, format: str | None = None, schema: Any = None, **options: Any
    ) -> Any:
        captured = _captured(self)
        spark = getattr(self, "_spark", None) or self._client
        if (format or captured.format) not in FORMATS or not _is_installed(spark):
            return original(self, path, format, schema, **options)
        all_options = captured.all_options(options)
        for key in ignored_stream_options(all_options):
            warnings.warn(f"option {key} has no effect on a stream", stacklevel=2)
        requested_schema = schema or captured.schema
        # A stream with a schema keeps its columns even if the table gets new ones.
        all_options = {**({NEW_COLUMNS: "ignore"} if requested_schema else {}), **all_options}
        all_options = {**all_options, "path": _one_path(path, all_options)}
        # Storage options of the session are passed with the data source, not as options.
        register_source(spark)
        source_options = {**session_storage_options(spark), **all_options}
        columns = stream_schema(
            source_options, struct_of(requested_schema) if requested_schema else None
        )
        return original(self, all_options.pop("path"), FORMATS[0], columns, **all_options)

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
        captured = _captured(self)
        if (format or captured.format) not in FORMATS or not _is_installed(self._spark):
            return original(self, path, format, mode, partitionBy, **options)
        all_options = captured.all_options(options)
        partition_columns = _flat((partitionBy,)) if partitionBy else captured.partition_by
        storage, write_options = _target(self._spark, path, all_options)
        save(
            storage,
            _frame_of(self),
            write_options,
            mode or captured.mode or "error",
            partition_columns,
        )
        return None

    return save_frame


def _frame_of(writer: Any) -> DataFrame:
    """Return the DataFrame of a writer; a Spark Connect writer holds only its plan."""
    frame_type = type(writer._spark.range(0))
    frame: DataFrame = (
        writer._df if isinstance(writer._df, frame_type) else frame_type(writer._df, writer._spark)
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
        captured = _captured(self)
        spark = getattr(self, "_spark", None) or self._session
        if (format or captured.format) not in FORMATS or not _is_installed(spark):
            return original(self, path, format, outputMode, partitionBy, queryName, **options)
        all_options = captured.all_options(options)
        partition_columns = _flat((partitionBy,)) if partitionBy else captured.partition_by
        storage, write_options = _target(spark, path, all_options)
        checkpoint_options = {
            key: write_options.pop(key)
            for key in list(write_options)
            if key.lower() == "checkpointlocation"
        }
        name = queryName or captured.query_name
        checkpoint = _checkpoint(spark, next(iter(checkpoint_options.values()), None), name)
        sink = StreamSink(
            storage,
            write_options,
            partition_columns,
            checkpoint,
            storage_options={**session_storage_options(spark), **storage_options(all_options)},
            fresh=checkpoint is None,
            complete=(outputMode or captured.output_mode or "").lower() == "complete",
        )
        query = self.foreachBatch(sink)
        return original(query, outputMode=outputMode, queryName=queryName, **checkpoint_options)

    return start


def _checkpoint(spark: SparkSession, location: str | None, name: str | None) -> str | None:
    """Return the checkpoint location of a query; None if Spark uses a temporary one."""
    if location is not None:
        return location
    folder = spark.conf.get(_CHECKPOINTS, "")
    return f"{folder.rstrip('/')}/{name}" if folder and name else None


def _target(
    spark: SparkSession, path: str | None, options: dict[str, str]
) -> tuple[Storage, dict[str, str]]:
    """Return the storage of the table to write to, and the options that are not for the storage."""
    address = path or next((v for k, v in options.items() if k.lower() == "path"), None)
    if not address:
        raise InvalidError(
            "the table's path is missing: give it to save or start, or as an option", option="path"
        )
    all_storage_options = {**session_storage_options(spark), **storage_options(options)}
    write_options = {
        key: value for key, value in other_options(options).items() if key.lower() != "path"
    }
    return storage_for(address, all_storage_options), write_options


def _sql(original: Callable[..., Any]) -> Callable[..., Any]:
    def sql(self: Any, sqlQuery: str, *args: Any, **kwargs: Any) -> Any:
        if not _is_installed(self):
            return original(self, sqlQuery, *args, **kwargs)
        named_arguments = {key: value for key, value in kwargs.items() if key != "args"}
        parameters = args[0] if args else kwargs.get("args")
        open_with_session = functools.partial(open_table, spark=self)
        session = Session(
            self, functools.partial(original, self), open_with_session, parameters, named_arguments
        )
        result = run_sql(session, sqlQuery)
        return original(self, sqlQuery, *args, **kwargs) if result is None else result

    return sql


def _is_installed(spark: SparkSession) -> bool:
    return spark.conf.get(_INSTALLED, "") == "true"
