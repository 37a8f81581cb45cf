"""`format("hudi")` and SQL on a session: wraps a few methods of the session's own classes.

Spark asks a Python data source for all columns and passes it no path for catalog tables, and on
classic Spark the reader keeps nothing of what it was told on the Python side. So the reader's
methods note what they are told, and `load` hands over to `Table` where the format is ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from lakewright.errors import InvalidError
from lakewright.interfaces.datasource import (
    FORMATS,
    HudiSource,
    planned,
    session_storage_options,
)
from lakewright.interfaces.sql import parse_statement, run_statement
from lakewright.read.run import PUSHDOWN, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INSTALLED = "spark.lakewright.installed"
_ORIGINAL = "_lakewright_original"
_ASKED = "_lakewright_asked"


def install(spark: SparkSession) -> None:
    """Make `format("hudi")` and SQL over tables work on this session; twice is harmless."""
    spark.dataSource.register(HudiSource)
    spark.conf.set(PUSHDOWN, "true")
    spark.conf.set(_INSTALLED, "true")
    reader = type(spark.read)
    for name in ("format", "schema", "option", "options"):
        _wrap(reader, name, _noting(name))
    _wrap(reader, "load", _load)
    _wrap(type(spark), "sql", _sql)


def uninstall(spark: SparkSession) -> None:
    """Undo `install` for this session; the classes' methods then pass everything through."""
    spark.conf.unset(_INSTALLED)


@dataclass
class _Asked:
    """What a reader was told so far."""

    format: str | None = None
    schema: T.StructType | str | None = None
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


def _asked(reader: Any) -> _Asked:
    asked: _Asked = reader.__dict__.setdefault(_ASKED, _Asked())
    return asked


def _note(asked: _Asked, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name == "format":
        asked.format = args[0] if args else kwargs["source"]
    elif name == "schema":
        asked.schema = args[0] if args else kwargs["schema"]
    elif name == "option":
        told = dict(zip(("key", "value"), args, strict=False)) | kwargs
        asked.options[told["key"]] = _text(told["value"])
    else:
        asked.options.update({key: _text(value) for key, value in kwargs.items()})


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
        return _read(spark, path or told.get("path"), told, schema or asked.schema)

    return load


def _read(
    spark: SparkSession, path: object, options: dict[str, str], schema: T.StructType | str | None
) -> DataFrame:
    if not isinstance(path, str) or not path:
        raise InvalidError("one path of a table expected", path=path)
    columns = None if schema is None else _struct(schema).names
    session = session_storage_options(spark)
    return scan(spark, *planned({**options, "path": path}, columns, session=session))


def _struct(schema: T.StructType | str) -> T.StructType:
    parsed = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, T.StructType):
        raise InvalidError("a schema of columns expected", schema=str(schema))
    return parsed


def _sql(original: Callable[..., Any]) -> Callable[..., Any]:
    def sql(self: Any, sqlQuery: str, *args: Any, **kwargs: Any) -> Any:
        statement = parse_statement(sqlQuery)
        if statement is None or not _is_installed(self):
            return original(self, sqlQuery, *args, **kwargs)
        return run_statement(self, statement)

    return sql


def _is_installed(spark: SparkSession) -> bool:
    return spark.conf.get(_INSTALLED, "") == "true"
