"""The sources there are, by name; open to those that users add."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from lakewright.errors import InvalidError
from lakewright.settings import ADDED_OPTIONS
from lakewright.sources.source import Source

Kind = TypeVar("Kind", bound=type[Source])

# Loaded when they are asked for: who reads files does not wait for the client of a queue.
_HOMES = {
    "cloud": "cloud.source:CloudObjectsSource",
    "files": "files:FilesSource",
    "gcs-events": "cloud.gcs_events:GcsEventsSource",
    "hudi": "hudi_table:HudiTableSource",
    "kafka": "kafka.source:KafkaSource",
    "s3-events": "cloud.s3_events:S3EventsSource",
}
_ADDED: dict[str, type[Source]] = {}


def register_source(kind: Kind) -> Kind:
    """Add a source, or put another in the place of one that was added; own ones stay."""
    if kind.name in _HOMES:
        raise InvalidError("a source of this name is built in", source=kind.name)
    _ADDED[kind.name] = kind
    ADDED_OPTIONS[f"source {kind.name}"] = kind.keys
    return kind


def unregister_source(name: str) -> None:
    """Take an added source out again."""
    _ADDED.pop(name, None)
    ADDED_OPTIONS.pop(f"source {name}", None)


def source_names() -> tuple[str, ...]:
    """What sources can be called by."""
    return tuple(sorted({*_HOMES, *_ADDED}))


def source_kind(name: str) -> type[Source]:
    """The source that people call by a name."""
    word = name.strip().lower()
    if word in _ADDED:
        return _ADDED[word]
    if word not in _HOMES:
        raise InvalidError("there is no such source", source=name, known=source_names())
    module, _, kind = _HOMES[word].partition(":")
    found: type[Source] = getattr(import_module(f"lakewright.sources.{module}"), kind)
    return found
