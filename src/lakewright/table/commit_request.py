"""What a transaction is asked to commit: metadata, the checks under the lock, and additions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from lakewright.errors import InvalidError
from lakewright.format.timeline_metadata import EncodedCommit
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import InstantTime
from lakewright.storage.base import split_path
from lakewright.table.snapshot import Snapshot


class CommitValidator(Protocol):
    """Checks that a write may commit on the table as it is then."""

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError if the write must not commit; called under the table's lock."""
        ...


@runtime_checkable
class PreparedValidator(CommitValidator, Protocol):
    """A validator that compares with the files of other writes, before the lock is acquired."""

    def is_prepared(self, current: Snapshot) -> bool:
        """Whether `validate` needs to read no file for the table as it is; reads none itself."""
        ...

    def prepare(self, current: Snapshot) -> None:
        """Compare with the writes that have completed; raise ConflictError like `validate`.

        Called without the lock.
        """
        ...


class CommitContributor(Protocol):
    """Adds extra metadata to a commit, derived from the table as it is then."""

    def extra_metadata(self, current: Snapshot) -> Mapping[str, str]:
        """Return entries for the commit's extra metadata; called under the table's lock."""
        ...


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """What `Transaction.commit` was called with, encoded before the lock was acquired."""

    metadata: CommitMetadata
    encoded: EncodedCommit
    validators: Sequence[CommitValidator]
    contributors: Sequence[CommitContributor]

    def unprepared(self, current: Snapshot) -> list[PreparedValidator]:
        """Return the validators that have to read files before they can validate."""
        return [
            validator
            for validator in self.validators
            if isinstance(validator, PreparedValidator) and not validator.is_prepared(current)
        ]

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError if the write must not commit; called under the table's lock."""
        for validator in self.validators:
            validator.validate(current)

    def final_metadata(self, current: Snapshot) -> CommitMetadata:
        """The metadata with what the contributors add."""
        added: dict[str, str] = {}
        for contributor in self.contributors:
            added.update(contributor.extra_metadata(current))
        if not added:
            return self.metadata
        return replace(self.metadata, extra={**self.metadata.extra, **added})


def check_files(metadata: CommitMetadata, instant: InstantTime) -> None:
    """Raise InvalidError if the metadata lists a file that this instant cannot have written."""
    paths = [path for stat in metadata.write_stats() for path in stat.paths or ("",)]
    for path in paths:
        file = parse_data_file(split_path(path)[1])
        if file is None or file.instant != instant:
            raise InvalidError(
                "a write lists a file that is not one of its own", path=path, instant=instant
            )
