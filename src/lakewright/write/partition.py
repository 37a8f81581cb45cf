"""One partition as a write finds it: its file groups, and what may be done to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from lakewright.core.buckets import bucket_of_group
from lakewright.core.files import PARTITION_METADATA, parse_data_file
from lakewright.core.slices import FileSlice
from lakewright.errors import ConflictError, InvalidError
from lakewright.format.partition_metadata import PartitionMetadata, format_partition_metadata
from lakewright.storage.base import join_path
from lakewright.write.locate import file_shape
from lakewright.write.options import check_index
from lakewright.write.route import room_in
from lakewright.write.task import WriteTask

_META_FOLDER = ".hoodie"
_KEYS_SHARE = 10


@dataclass(frozen=True)
class Partition:
    """The slices that a snapshot of the table shows in one partition, by file id."""

    task: WriteTask
    path: str
    slices: tuple[FileSlice, ...]
    is_new: bool

    @classmethod
    def look(cls, task: WriteTask, path: str) -> Partition:
        """List the partition."""
        if path.split("/")[0] == _META_FOLDER:
            raise InvalidError("the table's own folder cannot be a partition", partition=path)
        listed = task.storage.list_files(path)
        is_new = not any(status.name.startswith(PARTITION_METADATA) for status in listed)
        parsed = [parse_data_file(status.name, status.size) for status in listed]
        files = [file for file in parsed if file is not None]
        found = task.snapshot.without_unlisted({path: [] if is_new else files})
        groups = task.snapshot.groups(task.snapshot.view(), found)
        check_index(task.settings, (group.file_id for group in groups))
        return cls(task, path, tuple(group.merged() for group in groups), is_new)

    def enter(self) -> None:
        """Make the folder a partition of the table, before the first file is in it."""
        if not self.is_new:
            return
        depth = self.path.count("/") + 1 if self.path else 0
        value = PartitionMetadata(commit_time=self.task.instant, depth=depth)
        try:
            self.task.storage.create(
                join_path(self.path, PARTITION_METADATA), format_partition_metadata(value)
            )
        except ConflictError:
            # Another writer has just entered it too: both mean the same.
            return

    @cached_property
    def weight(self) -> int:
        """How many bytes of base files a task reads for its rows, however few they are.

        Keys are a small part of them; where changes are written beside them no more is read. Rows
        that meet no older ones fill one small file at least.
        """
        task = self.task
        if task.operation.replaces or (task.buckets and task.merge_on_read):
            return 0
        sizes = [item.base.size for item in self.slices if item.base is not None]
        if task.operation.merges or task.buckets:
            return sum(sizes) // (_KEYS_SHARE if task.merge_on_read else 1)
        return min((size for size in sizes if size < task.settings.small_file_limit), default=0)

    @cached_property
    def by_bucket(self) -> Mapping[int, int]:
        """The position of the slice of each bucket."""
        found: dict[int, int] = {}
        for position, item in enumerate(self.slices):
            bucket = bucket_of_group(item.file_id)
            if bucket is None or bucket in found:
                raise InvalidError(
                    "the file groups of this partition do not follow the bucket index: was it "
                    "written with another index type?",
                    partition=self.path,
                    file_id=item.file_id,
                )
            found[bucket] = position
        return found

    def replaced_buckets(self, bucket: int) -> int:
        """How many file groups of a bucket were taken out of the table here."""
        replaced = self.task.snapshot.replaced(self.task.snapshot.view())
        return sum(p == self.path and bucket_of_group(id_) == bucket for p, id_ in replaced)

    def small(self) -> Iterator[tuple[int, int]]:
        """Slices that new rows may join, smallest first: (position, room for so many rows).

        Where log files are merged with a base file a new version of that base would lose them, and
        a plan that waits for a group must find it as it was.
        """
        settings = self.task.settings
        found = []
        for position, item in enumerate(self.slices):
            key = (self.path, item.file_id)
            if item.base is None or item.logs or item.base.size >= settings.small_file_limit:
                continue
            if key in self.task.clustering or key in self.task.compacting:
                continue
            found.append((item.base.size, position))
        for size, position in sorted(found):
            base = self.slices[position].base
            assert base is not None
            shape = file_shape(self.task.storage, self.slices[position].path(base))
            room = room_in(
                size,
                shape.data_bytes,
                shape.rows,
                max_size=settings.max_file_size,
                estimate=settings.record_size_estimate,
            )
            yield position, room

    def check_free(self, item: FileSlice) -> None:
        """Refuse to change rows that a pending clustering is about to move."""
        plan = self.task.clustering.get((self.path, item.file_id))
        if plan is not None:
            raise ConflictError(
                "these rows are being clustered: write again when the clustering is done",
                partition=self.path,
                file_id=item.file_id,
                clustering=plan,
            )
