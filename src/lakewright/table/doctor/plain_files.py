"""Files, each looked at for itself: what one of them hides, the others still tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakewright.core.commits import CommitMetadata
from lakewright.core.files import BaseFile, LogFile, parse_data_file
from lakewright.core.instant import WRITE_ACTIONS, Instant
from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.metadata import (
    parse_clean,
    parse_commit,
    parse_restore,
    parse_rollback,
    parse_savepoint,
)
from lakewright.storage.base import FileStatus
from lakewright.table.properties import read_if_there
from lakewright.table.snapshot import Snapshot

_PARSERS: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(WRITE_ACTIONS, parse_commit),
    "clean": parse_clean,
    "rollback": parse_rollback,
    "restore": parse_restore,
    "savepoint": parse_savepoint,
}


def readable(snapshot: Snapshot) -> tuple[dict[str, CommitMetadata], dict[str, str]]:
    """What completed writes did, by instant; and the files that do not say it, with the reason."""
    commits: dict[str, CommitMetadata] = {}
    broken: dict[str, str] = {}
    for instant in snapshot.timeline.completed(*_PARSERS):
        data = read_if_there(snapshot.storage, snapshot.timeline_path(instant))
        if data is None:
            continue  # archived since, or rolled back
        try:
            value = _value(instant, data)
        except (CorruptError, UnsupportedError) as error:
            broken[instant.file_name] = error.message
            continue
        if isinstance(value, CommitMetadata):
            commits[instant.requested_at] = value
    return commits, broken


def data_file(status: FileStatus) -> BaseFile | LogFile | None:
    """A listed file as a data file, if its name is that of one."""
    try:
        return parse_data_file(status.name, status.size)
    except (CorruptError, UnsupportedError):
        return None


def _value(instant: Instant, data: bytes) -> Any:
    if not data:
        raise CorruptError("the file is empty")
    return _PARSERS[instant.action](data)
