"""Plain files in a folder as a source, in the order in which they were written.

A checkpoint is the modification time and the name of the last file read. Times alone would not do:
stores count seconds, and files of the same second are read in several batches, or appear later.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from lakewright.clock import Clock, SystemClock
from lakewright.errors import InvalidError
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.cloud.events import quarantine_of
from lakewright.ingestion.cloud.objects import ObjectReader, ObjectRows
from lakewright.ingestion.cloud.options import ObjectSettings, QuarantineSettings, UnreadablePolicy
from lakewright.ingestion.cloud.quarantine import Quarantine, QuarantinedRecord
from lakewright.ingestion.cloud.selection import CloudObject
from lakewright.ingestion.source import Batch, Source
from lakewright.options import at_least, option, option_keys, parse_choice, settings_from
from lakewright.storage.base import FileStatus, Storage
from lakewright.storage.factory import storage_for, storage_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = "hoodie.streamer.source.dfs.root"
_BETWEEN = "#"
# After every name, so that a bare time means all files of it.
_LAST_NAME = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Which files are read, and how many at a time."""

    root: str = option(
        ROOT,
        "",
        parse=str.strip,
        aliases=("hoodie.deltastreamer.source.dfs.root",),
        doc="The folder; files in folders below it are read as well.",
    )
    format: str | None = option(
        "lakewright.source.files.format",
        None,
        parse=parse_choice("json", "csv", "parquet", "avro", "orc"),
        doc="`json`, `csv`, `parquet`, `avro` or `orc`.",
    )
    suffix: str = option(
        "lakewright.source.files.suffix",
        "",
        parse=str.strip,
        doc="Only files whose names end like this are read.",
    )
    max_files: int = option(
        "lakewright.source.files.max.files",
        10_000,
        parse=at_least(1),
        doc="How many files a batch holds at most.",
    )
    max_bytes: int | None = option(
        "lakewright.source.files.max.bytes",
        None,
        parse=at_least(1),
        doc="How many bytes a batch holds at most; a single larger file is a batch of its own.",
    )
    settle_ms: int = option(
        "lakewright.source.files.settle.ms",
        10_000,
        parse=at_least(0),
        doc="How long a file must have been unchanged before it is read. Another one that appears "
        "later with an earlier time than the last one read is never read: this is how late it may "
        "be.",
    )


@dataclass(frozen=True, slots=True, order=True)
class FilePosition:
    """Where reading has come to: a file, in the order of modification times and names."""

    modified_ms: int
    path: str = _LAST_NAME

    @classmethod
    def of(cls, file: FileStatus) -> FilePosition:
        """The position after a file."""
        return cls(file.modified_ms, file.path)

    @classmethod
    def parse(cls, text: str) -> FilePosition:
        """Read a checkpoint: ours, or Hudi's, which is a time alone."""
        # A name may end in a blank.
        time, found, path = text.partition(_BETWEEN)
        time = time.strip()
        if not time.isdecimal() or not time.isascii() or (found and not path):
            raise InvalidError(
                "the checkpoint is no file's: a time in milliseconds, with or without # and a name",
                checkpoint=text,
            )
        return cls(int(time), path or _LAST_NAME)

    def __str__(self) -> str:
        named = "" if self.path == _LAST_NAME else f"{_BETWEEN}{self.path}"
        return f"{self.modified_ms}{named}"


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The files of a batch, and how many others wait; `newest_ms` is when the last was written."""

    files: tuple[FileStatus, ...] = ()
    waiting: int = 0
    newest_ms: int | None = None

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


def select_files(
    listed: Iterable[FileStatus],
    after: FilePosition | None,
    settings: FileSettings,
    now_ms: int,
) -> FileSelection:
    """Choose the next files: the oldest that were not read, up to the limits."""
    new = sorted(
        (f for f in listed if _is_wanted(f, settings) and (after is None or _after(f, after))),
        key=FilePosition.of,
    )
    chosen: list[FileStatus] = []
    size = 0
    for file in new[: settings.max_files]:
        size += file.size
        too_much = settings.max_bytes is not None and size > settings.max_bytes
        # All behind a file that is too young wait with it: they would be passed over.
        if (too_much and chosen) or file.modified_ms > now_ms - settings.settle_ms:
            break
        chosen.append(file)
    newest = new[-1].modified_ms if new else None
    return FileSelection(tuple(chosen), len(new) - len(chosen), newest)


def _after(file: FileStatus, position: FilePosition) -> bool:
    return FilePosition.of(file) > position


def _is_wanted(file: FileStatus, settings: FileSettings) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.path.split("/"))
    return not hidden and file.size > 0 and file.name.endswith(settings.suffix)


@dataclass
class FilesSource(Source):
    """The files of a folder; `places` are options of its storage."""

    storage: Storage
    settings: FileSettings
    reading: ObjectSettings
    places: Mapping[str, str] = field(default_factory=dict)
    bad: UnreadablePolicy = UnreadablePolicy.ERROR
    quarantine: Quarantine | None = None
    clock: Clock = field(default_factory=SystemClock)
    _last: ObjectRows | None = None

    name: ClassVar[str] = "files"
    keys: ClassVar[frozenset[str]] = option_keys(FileSettings, ObjectSettings, QuarantineSettings)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The folder that options describe."""
        settings = settings_from(FileSettings, options)
        if not settings.root:
            raise InvalidError("a source of files needs their folder", option=ROOT)
        holding = settings_from(QuarantineSettings, options)
        quarantine = quarantine_of(holding, options, cls.name, None)
        if holding.bad_objects is UnreadablePolicy.QUARANTINE and quarantine is None:
            raise InvalidError(
                "a quarantine needs a table", option="lakewright.source.quarantine.path"
            )
        places = storage_options(options)
        return cls(
            storage_for(settings.root, places),
            settings,
            _reading(settings, options),
            places,
            holding.bad_objects,
            quarantine,
        )

    def resume_from(self, text: str) -> Checkpoint:
        """A time in milliseconds, or that and a name."""
        return Checkpoint(str(FilePosition.parse(text)), reset=text)

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """The rows of the next files; with none the checkpoint given comes back."""
        self._forget()
        place = None if after is None else FilePosition.parse(after.text)
        listed = self.storage.list_tree("")
        chosen = select_files(listed, place, self.settings, self.clock.now_ms())
        if not chosen.files:
            return Batch(None, after, _facts(chosen, place))
        found = self._last = self._reader(spark).read([self._object(f) for f in chosen.files])
        self._hold(found)
        end = FilePosition.of(chosen.files[-1])
        facts = {**_facts(chosen, end), "objects_bad": len(found.bad)}
        return Batch(found.rows, Checkpoint(str(end)), facts, self._forget)

    def _reader(self, spark: SparkSession) -> ObjectReader:
        return ObjectReader(spark, self.reading, "{bucket}", self.places, self.clock, self.bad)

    def _object(self, file: FileStatus) -> CloudObject:
        # Its order among others is that of the batch, which needs no commit of an event.
        return CloudObject("", self.storage.root, file.path, file.path, file.size)

    def _hold(self, found: ObjectRows) -> None:
        """Note what could not be read, before anything is committed that passes over it."""
        bad = [
            QuarantinedRecord(
                self.storage.url(each.item.path), each.problem or "", size=each.item.size
            )
            for each in found.bad
        ]
        if bad and self.bad is UnreadablePolicy.QUARANTINE and self.quarantine is not None:
            self.quarantine.put(bad)
        elif bad:
            warnings.warn(
                f"{len(bad)} files were passed over, their rows are not read: {bad[0].place}: "
                f"{bad[0].reason}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _forget(self) -> None:
        """Take away the copies of files of the batch before."""
        if self._last is not None:
            self._last.done()
            self._last = None


def _reading(settings: FileSettings, options: Mapping[str, str]) -> ObjectSettings:
    told = settings_from(ObjectSettings, options)
    return replace(told, format=settings.format or told.format)


def _facts(chosen: FileSelection, place: FilePosition | None) -> dict[str, int | str]:
    facts: dict[str, int | str] = {
        "bytes": chosen.size,
        "objects": len(chosen.files),
        "objects_waiting": chosen.waiting,
    }
    if chosen.newest_ms is None:
        facts["lag_ms"] = 0
    elif place is not None:
        facts["lag_ms"] = max(0, chosen.newest_ms - place.modified_ms)
    return facts
