"""Two-way mappings between decoded Avro and values: one declaration gives both directions.

The format allows null nearly everywhere. These shapes read null collections as empty ones and write
empty ones, because real readers follow collections without asking whether they are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakewright.errors import CorruptError


@dataclass(frozen=True, slots=True)
class Shape:
    """A pair of inverse functions: from decoded Avro to a value, and back."""

    parse: Callable[[Any], Any]
    format: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a field of a value is kept: its name on disk and its shape there."""

    name: str
    shape: Shape


def _same(value: Any) -> Any:
    return value


PLAIN = Shape(_same, _same)
TEXTS = Shape(lambda stored: tuple(stored or ()), list)
MAP = Shape(lambda stored: dict(stored or {}), dict)


def stored(name: str, shape: Shape = PLAIN) -> Stored:
    """A field kept under `name`."""
    return Stored(name, shape)


def or_else(default: Any) -> Shape:
    """A plain value that is `default` where the file says null."""
    return Shape(lambda stored: default if stored is None else stored, _same)


def required(what: str, shape: Shape = PLAIN) -> Shape:
    """A value that the format allows to be null but that means nothing without it."""

    def parse(stored: Any) -> Any:
        if stored is None:
            raise CorruptError(f"the metadata lacks {what}")
        return shape.parse(stored)

    return Shape(parse, shape.format)


def optional(shape: Shape) -> Shape:
    """A value that may be None, and is null on disk then."""
    return Shape(
        lambda stored: None if stored is None else shape.parse(stored),
        lambda value: None if value is None else shape.format(value),
    )


def many(shape: Shape) -> Shape:
    """A tuple of values; null items say nothing and are passed over."""
    return Shape(
        lambda stored: tuple(shape.parse(each) for each in stored or () if each is not None),
        lambda values: [shape.format(each) for each in values],
    )


def keyed(shape: Shape) -> Shape:
    """A mapping from text to values."""
    return Shape(
        lambda stored: {key: shape.parse(each) for key, each in (stored or {}).items()},
        lambda values: {key: shape.format(each) for key, each in values.items()},
    )


def record(kind: Callable[..., Any], **fields: Stored) -> Shape:
    """A value of `kind`, whose fields are kept as `fields` says."""
    table = tuple((name, field.name, field.shape) for name, field in fields.items())
    # Large commits have many thousand records, most of whose fields are kept as they are.
    plain = tuple((name, key) for name, key, shape in table if shape is PLAIN)
    shaped = tuple((name, key, shape) for name, key, shape in table if shape is not PLAIN)

    def parse(stored: Any) -> Any:
        get = stored.get
        values = {name: get(key) for name, key in plain}
        for name, key, shape in shaped:
            values[name] = shape.parse(get(key))
        return kind(**values)

    def format_(value: Any) -> Any:
        return {key: shape.format(getattr(value, name)) for name, key, shape in table}

    return Shape(parse, format_)
