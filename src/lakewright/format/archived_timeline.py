"""The archived timeline: instants moved out of the active timeline into an LSM tree of files.

A manifest lists the live files of one version of the tree; `_version_` names the current manifest.
Archiving writes files of level 0; the files of a full level are merged into one of the next level.
The files themselves are in `archived_file.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.archived_file import ArchivedInstant

VERSION_FILE = "_version_"
MANIFEST_PREFIX = "manifest_"
# Hudi's default for the size of a file. This library merges less at once, because it holds the
# files in memory as they are stored, and creates the merged file in one step.
MERGE_BYTES = 1_000 * 1024 * 1024
MAX_MERGED_BYTES = 32 * 1024 * 1024
LAST_LEVEL = 9

_FILE_NAME = re.compile(r"(?P<first>\d+)_(?P<last>\d+)_(?P<level>\d)\.parquet", re.ASCII)
_MANIFEST_NAME = re.compile(r"manifest_(?P<version>\d+)", re.ASCII)
_NUMBER = re.compile(rb"\d{1,18}")


@dataclass(frozen=True, slots=True, order=True)
class ArchivedTimelineFile:
    """A file of archived instants; `first` and `last` are their requested times, inclusive."""

    first: str
    last: str
    level: int
    size: int = 0

    @classmethod
    def parse(cls, name: str, size: int = 0) -> ArchivedTimelineFile:
        """Parse a file name; the inverse of `name`."""
        match = _FILE_NAME.fullmatch(name)
        if match is None:
            raise CorruptError("not the name of an archived timeline file", file_name=name)
        return cls(match["first"], match["last"], int(match["level"]), size)

    @property
    def name(self) -> str:
        """The file name."""
        return f"{self.first}_{self.last}_{self.level}.parquet"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The live files of one version of the archived timeline."""

    files: tuple[ArchivedTimelineFile, ...] = ()


@dataclass(frozen=True, slots=True)
class LevelMerge:
    """Files of one level, oldest first, to merge into one file of the next; its size is unknown."""

    sources: tuple[ArchivedTimelineFile, ...]
    target: ArchivedTimelineFile


@dataclass(frozen=True, slots=True)
class UnreferencedFiles:
    """Manifest versions and files that are no longer needed; delete the manifests first."""

    versions: tuple[int, ...] = ()
    files: tuple[str, ...] = ()


def archived_file_of(entries: Iterable[ArchivedInstant], level: int = 0) -> ArchivedTimelineFile:
    """Return the file of `level` that holds `entries`, without its size.

    Raises:
        InvalidError: there are no entries.
    """
    times = sorted(entry.requested_at for entry in entries)
    if not times:
        raise InvalidError("an archived timeline file needs at least one instant")
    return ArchivedTimelineFile(times[0], times[-1], level)


def parse_manifest(data: bytes) -> Manifest:
    """Parse a manifest file.

    Raises:
        CorruptError: it is not JSON, or an entry is incomplete.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptError("the manifest is not JSON", size=len(data)) from error
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, list):
        raise CorruptError("the manifest lists no files")
    return Manifest(tuple(map(_manifest_entry, files)))


def format_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest file."""
    files = [{"fileName": file.name, "fileLen": file.size} for file in manifest.files]
    return json.dumps({"files": files}, indent=2).encode()


def manifest_name(version: int) -> str:
    """Return the file name of the manifest of `version`."""
    return f"{MANIFEST_PREFIX}{version}"


def parse_manifest_name(name: str) -> int | None:
    """Return the version in a manifest's file name; None for other files."""
    match = _MANIFEST_NAME.fullmatch(name)
    return int(match["version"]) if match else None


def parse_version(data: bytes) -> int:
    """Return the number of the current manifest, the content of `_version_`.

    Raises:
        CorruptError: it is not a number, for example because the file is truncated.
    """
    if not _NUMBER.fullmatch(data.strip()):
        raise CorruptError("_version_ does not hold a number", content=data[:40])
    return int(data)


def format_version(version: int) -> bytes:
    """Return the content of `_version_`."""
    return str(version).encode()


def files_overlapping(
    manifest: Manifest, first: str | None = None, last: str | None = None
) -> tuple[ArchivedTimelineFile, ...]:
    """Return the files that may hold instants requested in [first, last]; None is an open end."""
    return tuple(
        file
        for file in manifest.files
        if (last is None or file.first <= last) and (first is None or file.last >= first)
    )


def plan_level_merge(
    manifest: Manifest, batch_size: int = 10, max_bytes: int = MERGE_BYTES
) -> LevelMerge | None:
    """Plan to merge the oldest files of the lowest full level; None if there is nothing to merge.

    A batch has at most `max_bytes`, and at most `MAX_MERGED_BYTES`: files that are too large for a
    merge with the next one stay. The merge may fill the next level: call this again with the
    manifest that `with_merge` returns.
    """
    limit = min(max_bytes, MAX_MERGED_BYTES)
    for level in range(LAST_LEVEL):
        files = sorted(file for file in manifest.files if file.level == level)
        if len(files) < batch_size:
            continue
        for start in range(len(files) - 1):
            candidates = files[start : start + batch_size]
            sizes = accumulate(file.size for file in candidates)
            batch = [file for file, size in zip(candidates, sizes, strict=True) if size <= limit]
            if len(batch) > 1:
                last = max(file.last for file in batch)
                target = ArchivedTimelineFile(batch[0].first, last, level + 1)
                return LevelMerge(tuple(batch), target)
    return None


def with_merge(manifest: Manifest, merge: LevelMerge, size: int) -> Manifest:
    """Return the manifest after `merge` wrote a file of `size` bytes."""
    target = ArchivedTimelineFile(merge.target.first, merge.target.last, merge.target.level, size)
    remaining = [file for file in manifest.files if file not in merge.sources]
    return Manifest((*remaining, target))


def find_unreferenced(
    manifests: Mapping[int, Manifest], names: Iterable[str], keep: int = 3
) -> UnreferencedFiles:
    """Return all manifests but the newest `keep`, and the files that none of the newest lists.

    A reader keeps using the version that it started with, so nothing is unreferenced while at most
    `keep` manifests exist.
    """
    versions = sorted(manifests)
    old = versions[: -max(keep, 1)]
    if not old:
        return UnreferencedFiles()
    live = {file.name for version in versions[len(old) :] for file in manifests[version].files}
    unlisted = sorted(name for name in set(names) - live if _FILE_NAME.fullmatch(name))
    return UnreferencedFiles(tuple(old), tuple(unlisted))


def _manifest_entry(entry: Any) -> ArchivedTimelineFile:
    name = entry.get("fileName") if isinstance(entry, dict) else None
    size = entry.get("fileLen") if isinstance(entry, dict) else None
    if not isinstance(name, str) or type(size) is not int or size < 0:
        raise CorruptError("an entry of the manifest is incomplete", entry=entry)
    return ArchivedTimelineFile.parse(name, size)
