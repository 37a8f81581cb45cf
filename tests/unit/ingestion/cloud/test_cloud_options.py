"""The options of cloud sources."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError, LakewrightError, UnsupportedError
from lakewright.ingestion.cloud.objects import path_value
from lakewright.ingestion.cloud.options import (
    ObjectSettings,
    PubSubSettings,
    SelectionSettings,
    SqsSettings,
    UnreadablePolicy,
)
from lakewright.ingestion.cloud.selection import GCS, S3, shape_of
from lakewright.ingestion.cloud.source import CloudObjectsSource
from lakewright.ingestion.source import source_kind
from lakewright.options import settings_from
from lakewright.storage.memory import MemoryStorage


def test_defaults_are_those_of_hudi() -> None:
    sqs, pubsub = SqsSettings(), PubSubSettings()
    assert (sqs.wait_s, sqs.per_batch, sqs.per_request, sqs.visibility_s) == (20, 5, 10, 30)
    assert (pubsub.per_request, pubsub.per_batch, pubsub.max_s) == (10, 1000, 60)
    assert SelectionSettings().max_files == 10_000


def test_older_names_are_understood() -> None:
    options = {
        "hoodie.deltastreamer.source.s3incr.key.prefix": "in/",
        "hoodie.deltastreamer.source.cloud.data.max.files.per.sync": "7",
    }
    settings = settings_from(SelectionSettings, options)
    assert (settings.prefix, settings.max_files) == ("in/", 7)


def test_reader_options_are_json() -> None:
    key = "hoodie.streamer.source.cloud.data.datasource.options"
    settings = settings_from(ObjectSettings, {key: '{"header": true, "sep": ";"}'})
    assert dict(settings.options) == {"header": "true", "sep": ";"}


CLOUD = "hoodie.streamer.source.cloud.data."
WRONG: dict[str, tuple[dict[str, str], type[LakewrightError]]] = {
    "reader options that are no JSON": ({CLOUD + "datasource.options": "x"}, InvalidError),
    "reader options that are a list": ({CLOUD + "datasource.options": "[]"}, InvalidError),
    "a pattern that is none": ({CLOUD + "select.relative.path.regex": "("}, InvalidError),
    "a format that is not known": ({CLOUD + "datafile.format": "xml"}, InvalidError),
    "no files": ({CLOUD + "max.files.per.sync": "0"}, InvalidError),
    "another word for bad objects": ({"lakewright.source.bad.objects": "drop"}, InvalidError),
    "a quarantine without a table": ({"lakewright.source.bad.objects": "quarantine"}, InvalidError),
    "paths separated by commas": (
        {CLOUD + "reader.comma.separated.path.format": "true"}, UnsupportedError),
}  # fmt: skip


@pytest.mark.parametrize(("options", "error"), WRONG.values(), ids=list(WRONG))
def test_wrong_options_are_reported(options: dict[str, str], error: type[LakewrightError]) -> None:
    path = {"hoodie.streamer.source.hoodieincr.path": "memory://events"}
    with pytest.raises(error):
        CloudObjectsSource.from_options({**path, **options})


def test_the_events_table_must_be_named() -> None:
    with pytest.raises(InvalidError, match="missing"):
        CloudObjectsSource.from_options({})


@pytest.mark.parametrize("name", ["s3-events", "gcs-events", "cloud"])
def test_the_sources_are_known_by_name(name: str) -> None:
    kind = source_kind(name)
    assert kind.name == name
    assert "lakewright.source.quarantine.path" in kind.keys


def test_words_are_taken_in_any_case() -> None:
    source = CloudObjectsSource(MemoryStorage.fresh(), {"lakewright.source.bad.objects": "Skip"})
    assert source._unreadable_policy is UnreadablePolicy.SKIP


def test_an_events_table_is_known_by_its_columns() -> None:
    assert shape_of(["eventName", "eventTime", "s3", "more"]) is S3
    assert shape_of(["bucket", "name", "size", "updated", "timeCreated"]) is GCS
    with pytest.raises(InvalidError, match="not an events table"):
        shape_of(["id", "name"])


PATHS = {
    "a folder": ("country=NO/city=Oslo/1.json", "country", "NO"),
    "a folder below": ("in/country=NO/city=Oslo/1.json", "city", "Oslo"),
    "an empty value": ("city=/1.json", "city", ""),
    "not a part of another name": ("in/bigcity=Oslo/1.json", "city", None),
    "not the object's own name": ("in/city=Oslo.json", "city", None),
}


@pytest.mark.parametrize(("path", "field", "value"), PATHS.values(), ids=list(PATHS))
def test_values_in_paths(path: str, field: str, value: str | None) -> None:
    assert path_value(path, field) == value
