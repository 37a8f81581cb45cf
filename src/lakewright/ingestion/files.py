"""The source `files`: files in a folder, in the order of their modification times.

A checkpoint is the modification time and the name of the last file read. The time alone is not
enough: object stores record seconds, and files of the same second may be in several batches or
appear later.
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
_SEPARATOR = "#"
# Sorts after every name, so that a time without a name means all files of that time.
_LAST_NAME = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Which files are read, and how many in a batch."""

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
    """A position in the order of modification times and names: the last file read."""

    modified_ms: int
    path: str = _LAST_NAME

    @classmethod
    def from_file(cls, file: FileStatus) -> FilePosition:
        """Return the position after a file."""
        return cls(file.modified_ms, file.path)

    @classmethod
    def parse(cls, text: str) -> FilePosition:
        """Parse a checkpoint of this source, or one of Hudi, which is a time only."""
        # Only the time is stripped: a name may end in a blank.
        time, separator, path = text.partition(_SEPARATOR)
        time = time.strip()
        if not time.isdecimal() or not time.isascii() or (separator and not path):
            raise InvalidError(
                "the checkpoint is no file's: a time in milliseconds, with or without # and a name",
                checkpoint=text,
            )
        return cls(int(time), path or _LAST_NAME)

    def __str__(self) -> str:
        suffix = "" if self.path == _LAST_NAME else f"{_SEPARATOR}{self.path}"
        return f"{self.modified_ms}{suffix}"


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The files of a batch, the number of files left, and the newest modification time of all."""

    files: tuple[FileStatus, ...] = ()
    waiting: int = 0
    newest_ms: int | None = None

    @property
    def size(self) -> int:
        """The total size of the files in bytes."""
        return sum(file.size for file in self.files)


def select_files(
    listed: Iterable[FileStatus],
    after: FilePosition | None,
    settings: FileSettings,
    now_ms: int,
) -> FileSelection:
    """Select the files of the next batch: the oldest unread ones, up to the limits."""
    unread = sorted(
        (f for f in listed if _is_selected(f, settings) and (after is None or _after(f, after))),
        key=FilePosition.from_file,
    )
    chosen: list[FileStatus] = []
    size = 0
    for file in unread[: settings.max_files]:
        size += file.size
        over_limit = settings.max_bytes is not None and size > settings.max_bytes
        # Files after one that is too recent are not read either: the checkpoint would pass over it.
        if (over_limit and chosen) or file.modified_ms > now_ms - settings.settle_ms:
            break
        chosen.append(file)
    newest = unread[-1].modified_ms if unread else None
    return FileSelection(tuple(chosen), len(unread) - len(chosen), newest)


def _after(file: FileStatus, position: FilePosition) -> bool:
    return FilePosition.from_file(file) > position


def _is_selected(file: FileStatus, settings: FileSettings) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.path.split("/"))
    return not hidden and file.size > 0 and file.name.endswith(settings.suffix)


@dataclass
class FilesSource(Source):
    """The files of a folder."""

    storage: Storage
    settings: FileSettings
    reading: ObjectSettings
    storage_options: Mapping[str, str] = field(default_factory=dict)
    unreadable_policy: UnreadablePolicy = UnreadablePolicy.ERROR
    quarantine: Quarantine | None = None
    clock: Clock = field(default_factory=SystemClock)
    _last: ObjectRows | None = None

    name: ClassVar[str] = "files"
    keys: ClassVar[frozenset[str]] = option_keys(FileSettings, ObjectSettings, QuarantineSettings)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create the source from options."""
        settings = settings_from(FileSettings, options)
        if not settings.root:
            raise InvalidError("a source of files needs their folder", option=ROOT)
        quarantine_settings = settings_from(QuarantineSettings, options)
        quarantine = quarantine_of(quarantine_settings, options, cls.name, None)
        if quarantine_settings.bad_objects is UnreadablePolicy.QUARANTINE and quarantine is None:
            raise InvalidError(
                "a quarantine needs a table", option="lakewright.source.quarantine.path"
            )
        folder_options = storage_options(options)
        return cls(
            storage_for(settings.root, folder_options),
            settings,
            _object_settings(settings, options),
            folder_options,
            quarantine_settings.bad_objects,
            quarantine,
        )

    def resume_from(self, text: str) -> Checkpoint:
        """Parse a time in milliseconds, optionally with a file name."""
        return Checkpoint(str(FilePosition.parse(text)), reset=text)

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """Return the rows of the next files; without files, the checkpoint stays the same."""
        self._delete_copies()
        position = None if after is None else FilePosition.parse(after.text)
        listed = self.storage.list_tree("")
        selection = select_files(listed, position, self.settings, self.clock.now_ms())
        if not selection.files:
            return Batch(None, after, _facts(selection, position))
        objects = self._last = self._reader(spark).read(
            [self._object(file) for file in selection.files]
        )
        self._handle_unreadable(objects)
        end = FilePosition.from_file(selection.files[-1])
        facts = {**_facts(selection, end), "objects_bad": len(objects.unreadable)}
        return Batch(objects.rows, Checkpoint(str(end)), facts, self._delete_copies)

    def _reader(self, spark: SparkSession) -> ObjectReader:
        return ObjectReader(
            spark,
            self.reading,
            "{bucket}",
            self.storage_options,
            self.clock,
            self.unreadable_policy,
        )

    def _object(self, file: FileStatus) -> CloudObject:
        # The order of files is that of the batch; there is no event and no completion time.
        return CloudObject("", self.storage.root, file.path, file.path, file.size)

    def _handle_unreadable(self, objects: ObjectRows) -> None:
        """Quarantine unreadable files, or warn, before a commit passes over them."""
        records = [
            QuarantinedRecord(
                self.storage.url(unreadable.item.path),
                unreadable.problem or "",
                size=unreadable.item.size,
            )
            for unreadable in objects.unreadable
        ]
        if (
            records
            and self.unreadable_policy is UnreadablePolicy.QUARANTINE
            and self.quarantine is not None
        ):
            self.quarantine.put(records)
        elif records:
            warnings.warn(
                f"{len(records)} files were passed over, their rows are not read: "
                f"{records[0].location}: {records[0].reason}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _delete_copies(self) -> None:
        """Delete the local copies of the files of the last batch."""
        if self._last is not None:
            self._last.delete_copies()
            self._last = None


def _object_settings(settings: FileSettings, options: Mapping[str, str]) -> ObjectSettings:
    object_settings = settings_from(ObjectSettings, options)
    return replace(object_settings, format=settings.format or object_settings.format)


def _facts(selection: FileSelection, position: FilePosition | None) -> dict[str, int | str]:
    facts: dict[str, int | str] = {
        "bytes": selection.size,
        "objects": len(selection.files),
        "objects_waiting": selection.waiting,
    }
    if selection.newest_ms is None:
        facts["lag_ms"] = 0
    elif position is not None:
        facts["lag_ms"] = max(0, selection.newest_ms - position.modified_ms)
    return facts
