"""The options of cloud sources, with Hudi's keys where it has them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lakewright.errors import InvalidError
from lakewright.ingestion.options import MissingCheckpoint, SplitSettings
from lakewright.options import at_least, option, option_keys, parse_bool, parse_choice, parse_word

_PREFIX = "hoodie.streamer."
_OLD_PREFIX = "hoodie.deltastreamer."
BUCKETS = "lakewright.source.buckets"


class UnreadablePolicy(StrEnum):
    """What to do with a message or an object that cannot be read."""

    ERROR = "ERROR"
    SKIP = "SKIP"
    QUARANTINE = "QUARANTINE"


def _streamer(
    name: str, default: Any, *, parse: Any, doc: str, aliases: tuple[str, ...] = ()
) -> Any:
    """Declare an option of Hudi's streamer, also under its old prefix."""
    names = (name, *aliases)
    old = tuple(_OLD_PREFIX + key for key in names)
    new = tuple(_PREFIX + key for key in aliases)
    return option(_PREFIX + name, default, parse=parse, doc=doc, aliases=(*new, *old))


def _comma_separated(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return text


def _texts(text: str) -> tuple[tuple[str, str], ...]:
    """Parse a JSON object of plain values as pairs of strings."""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"a JSON object expected: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("a JSON object expected")
    return tuple((str(k), v if isinstance(v, str) else json.dumps(v)) for k, v in value.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsSettings:
    """The queue to which S3 sends its notifications."""

    url: str = _streamer(
        "s3.source.queue.url", "", parse=str.strip, doc="The queue's URL; there must be one."
    )
    region: str | None = _streamer(
        "s3.source.queue.region",
        None,
        parse=str.strip,
        doc="The queue's region, if the environment does not say it.",
    )
    endpoint: str | None = option(
        "lakewright.source.queue.endpoint",
        None,
        parse=str.strip,
        doc="Where the queue service is, if not at Amazon or Google.",
    )
    wait_s: int = _streamer(
        "s3.source.queue.long.poll.wait",
        20,
        parse=at_least(0),
        doc="How many seconds to wait for the first message.",
    )
    per_batch: int = _streamer(
        "s3.source.queue.max.messages.per.batch",
        5,
        parse=at_least(1),
        doc="How many messages a batch receives at most; one commit for thousands is better than "
        "one for five.",
    )
    per_request: int = _streamer(
        "s3.source.queue.max.messages.per.request",
        10,
        parse=at_least(1),
        doc="How many messages one request asks for; SQS returns ten at most.",
    )
    visibility_s: int = _streamer(
        "s3.source.queue.visibility.timeout",
        30,
        parse=at_least(0),
        doc="For how many seconds a received message is hidden from other consumers. It should be "
        "longer than a batch takes to commit: a message that reappears before is read again.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubSettings:
    """The subscription to which GCS sends its notifications."""

    project: str = _streamer(
        "source.gcs.project.id", "", parse=str.strip, doc="The project of the subscription."
    )
    subscription: str = _streamer(
        "source.gcs.subscription.id", "", parse=str.strip, doc="The id of the subscription."
    )
    endpoint: str | None = option(
        "lakewright.source.queue.endpoint",
        None,
        parse=str.strip,
        doc="Where the queue service is, if not at Amazon or Google.",
    )
    per_request: int = _streamer(
        "source.cloud.meta.batch.size",
        10,
        parse=at_least(1),
        doc="How many messages one request asks for.",
    )
    per_batch: int = _streamer(
        "source.cloud.meta.max.num.messages.per.sync",
        1000,
        parse=at_least(1),
        doc="How many messages a batch receives at most.",
    )
    acknowledge: bool = _streamer(
        "source.cloud.meta.ack",
        True,
        parse=parse_bool,
        doc="Whether messages are acknowledged once their events are committed; `false` is for "
        "trying things out.",
    )
    max_s: int = _streamer(
        "source.cloud.meta.max.fetch.time.per.sync.secs",
        60,
        parse=at_least(1),
        doc="For how many seconds a batch requests messages.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSettings:
    """What to do with messages and objects that cannot be read."""

    bad_messages: UnreadablePolicy = option(
        "lakewright.source.bad.messages",
        UnreadablePolicy.ERROR,
        parse=parse_word(UnreadablePolicy),
        doc="A message that is no event: `error` stops and leaves it in the queue, `skip` deletes "
        "it with a warning, `quarantine` keeps it in the quarantine table and deletes it.",
    )
    bad_objects: UnreadablePolicy = option(
        "lakewright.source.bad.objects",
        UnreadablePolicy.ERROR,
        parse=parse_word(UnreadablePolicy),
        doc="An object that vanished, cannot be parsed or is in a bucket that may not be read: "
        "`error` stops before it, `skip` passes over it with a warning, `quarantine` records it in "
        "the quarantine table and continues. With the last two, every object is read once more to "
        "check it.",
    )
    quarantine: str | None = option(
        "lakewright.source.quarantine.path",
        None,
        parse=str.strip,
        doc="The path of the quarantine table; it is created if it does not exist.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTableSettings:
    """The events table, and from where it is read."""

    path: str = _streamer(
        "source.hoodieincr.path", "", parse=str.strip, doc="The path of the events table."
    )
    instants: int | None = _streamer(
        "source.hoodieincr.num_instants",
        None,
        parse=at_least(1),
        doc="How many commits of the events table a batch reads at most; by default all.",
    )
    missing: MissingCheckpoint = option(
        _PREFIX + "source.hoodieincr.missing.checkpoint.strategy",
        MissingCheckpoint.READ_UPTO_LATEST_COMMIT,
        parse=parse_word(MissingCheckpoint),
        aliases=(_OLD_PREFIX + "source.hoodieincr.missing.checkpoint.strategy",),
        doc="Where a target without checkpoint begins: `READ_UPTO_LATEST_COMMIT` with the first "
        "event, `READ_LATEST` with those of the last commit.",
    )
    fallback: bool = option(
        "hoodie.datasource.read.incr.fallback.fulltablescan.enable",
        True,
        parse=parse_bool,
        doc="Whether events whose files were cleaned may be read from the latest files.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSettings:
    """Which objects are read, and how many in a batch."""

    buckets: tuple[str, ...] = option(
        BUCKETS,
        (),
        parse=_comma_separated,
        doc="The buckets that may be read, separated by commas; an event that names another one is "
        "treated as `lakewright.source.bad.objects` says. By default all that the job may read: "
        "anyone who can send to the queue can then make the job read any of them.",
    )
    prefix: str = _streamer(
        "source.cloud.data.select.relpath.prefix",
        "",
        parse=str,
        aliases=("source.s3incr.key.prefix",),
        doc="Only objects whose key begins like this.",
    )
    pattern: str = _streamer(
        "source.cloud.data.select.relative.path.regex",
        "",
        parse=_pattern,
        doc="Only objects in whose key this regular expression is found.",
    )
    ignored_prefix: str = _streamer(
        "source.cloud.data.ignore.relpath.prefix",
        "",
        parse=str,
        aliases=("source.s3incr.ignore.key.prefix",),
        doc="No objects whose key begins like this.",
    )
    ignored_part: str = _streamer(
        "source.cloud.data.ignore.relpath.substring",
        "",
        parse=str,
        aliases=("source.s3incr.ignore.key.substring",),
        doc="No objects whose key holds this.",
    )
    extensions: tuple[str, ...] | None = _streamer(
        "source.cloud.data.select.file.extension",
        None,
        parse=_comma_separated,
        doc="Only objects whose key ends with one of these, separated by commas; by default with "
        "the name of the format. Empty: all objects.",
    )
    max_files: int = _streamer(
        "source.cloud.data.max.files.per.sync",
        10_000,
        parse=at_least(1),
        doc="How many objects a batch reads at most.",
    )
    max_bytes: int | None = option(
        "lakewright.source.limit.bytes",
        None,
        parse=at_least(1),
        doc="How many bytes of objects a batch reads at most; one object that is larger is read "
        "alone. Without it the number of objects is the only limit.",
    )
    check_existence: bool = _streamer(
        "source.cloud.data.check.file.exists",
        False,
        parse=parse_bool,
        aliases=("source.s3incr.check.file.exists",),
        doc="Silently leave out objects that no longer exist. Sends a request for each object.",
    )
    encoded: bool | None = option(
        "lakewright.source.keys.encoded",
        None,
        parse=parse_bool,
        doc="Whether keys in the events table are URL-encoded; by default those of S3 are.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """How the rows of objects are read."""

    format: str = _streamer(
        "source.cloud.data.datafile.format",
        "parquet",
        parse=parse_choice("json", "csv", "parquet", "avro", "orc"),
        aliases=("source.hoodieincr.file.format",),
        doc="`json`, `csv`, `parquet`, `avro` or `orc`.",
    )
    options: tuple[tuple[str, str], ...] = _streamer(
        "source.cloud.data.datasource.options",
        (),
        parse=_texts,
        aliases=("source.s3incr.spark.datasource.options",),
        doc='Options of Spark\'s reader, as JSON: `{"header": "true"}`.',
    )
    schema: str | None = option(
        "lakewright.source.schema",
        None,
        parse=str.strip,
        doc="The columns, as DDL. Without it they are taken from the objects of each batch.",
    )
    merge_schema: bool = _streamer(
        "source.cloud.data.merge.schema.enable",
        True,
        parse=parse_bool,
        doc="Whether objects of one batch may have different columns (Parquet, ORC, Avro).",
    )
    path_fields: tuple[str, ...] = _streamer(
        "source.cloud.data.partition.fields.from.path",
        (),
        parse=_comma_separated,
        doc="Columns whose values are in the key, as in `country=NO/city=Oslo/1.json`.",
    )
    source_path: bool = _streamer(
        "source.cloud.data.include.source.path.field",
        False,
        parse=parse_bool,
        doc="Add a column `_hoodie_cloud_source_path`: where a row comes from.",
    )
    address: str | None = option(
        "lakewright.source.bucket.address",
        None,
        parse=str.strip,
        doc="The location of a bucket, with `{bucket}` for its name; by default `s3://{bucket}` or "
        "`gs://{bucket}`.",
    )
    work_folder: str | None = option(
        "lakewright.source.work.folder",
        None,
        parse=str.strip,
        doc="A folder for copies of objects that Spark cannot open by itself: Avro, and all where "
        "it has no file system for the store. All of its workers must see the folder; on one "
        "machine the default is a temporary folder.",
    )


# Options of Hudi that would change the rows, each with the only value that is supported.
REFUSED_CLOUD_OPTIONS = {
    prefix + "source.cloud.data.reader." + name: same
    for prefix in (_PREFIX, _OLD_PREFIX)
    for name, same in {"comma.separated.path.format": "false", "coalesce.aliases": "true"}.items()
}
# Options of Hudi that only affect how Hudi distributes the work.
_WITHOUT_EFFECT = frozenset(
    prefix + name
    for prefix in (_PREFIX, _OLD_PREFIX)
    for name in (
        "s3.source.queue.fs",
        "s3.source.queue.processing.parallelism",
        "source.s3incr.fs.prefix",
        "source.cloud.meta.events.per.partition",
        "source.cloud.data.partition.max.size",
    )
)

SQS_KEYS = option_keys(SqsSettings, QuarantineSettings) | _WITHOUT_EFFECT
PUBSUB_KEYS = option_keys(PubSubSettings, QuarantineSettings) | _WITHOUT_EFFECT
OBJECT_KEYS = (
    option_keys(
        EventTableSettings, SelectionSettings, ObjectSettings, QuarantineSettings, SplitSettings
    )
    | _WITHOUT_EFFECT
    | REFUSED_CLOUD_OPTIONS.keys()
)


def required(value: str, name: str) -> str:
    """Return the value of a setting; InvalidError if it is empty."""
    if not value:
        raise InvalidError("an option is missing", option=_PREFIX + name)
    return value
