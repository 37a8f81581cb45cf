"""The completed file of a write: what may be in it, and its bytes."""

from __future__ import annotations

from lakewright.core.commits import CommitMetadata
from lakewright.core.files import parse_data_file
from lakewright.errors import InvalidError
from lakewright.format.metadata import format_commit, format_replace_commit
from lakewright.storage.base import split_path


def check_files(metadata: CommitMetadata, instant: str) -> None:
    """Refuse metadata that lists files which the write of this instant cannot have made."""
    paths = [path for stat in metadata.write_stats() for path in stat.paths or ("",)]
    for path in paths:
        file = parse_data_file(split_path(path)[1])
        if file is None or file.instant != instant:
            raise InvalidError(
                "a write lists a file that is not one of its own", path=path, instant=instant
            )


def commit_bytes(action: str, metadata: CommitMetadata) -> bytes:
    """The content of the completed file of an action."""
    replaces = action == "replacecommit"
    return (format_replace_commit if replaces else format_commit)(metadata)
