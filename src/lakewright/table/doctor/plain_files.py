"""Files, each looked at for itself: what one of them hides, the others still tell."""

from __future__ import annotations

from contextlib import suppress

from lakewright.core.commits import CommitMetadata
from lakewright.core.files import BaseFile, LogFile, parse_data_file
from lakewright.errors import CorruptError, UnsupportedError
from lakewright.storage.base import FileStatus
from lakewright.table.damaged import parse_completed
from lakewright.table.properties import read_if_there
from lakewright.table.snapshot import Snapshot


def readable(snapshot: Snapshot) -> dict[str, CommitMetadata]:
    """What completed writes did, by instant: of those whose files can be read."""
    commits: dict[str, CommitMetadata] = {}
    for instant in snapshot.timeline.completed_writes:
        data = read_if_there(snapshot.storage, snapshot.timeline_path(instant))
        if data is not None:  # else archived since, or rolled back
            with suppress(CorruptError, UnsupportedError):
                commits[instant.requested_at] = parse_completed(instant.action, data)
    return commits


def data_file(status: FileStatus) -> BaseFile | LogFile | None:
    """A listed file as a data file, if its name is that of one."""
    try:
        return parse_data_file(status.name, status.size)
    except (CorruptError, UnsupportedError):
        return None
