"""Which files of the partitions that a clean looks at may go. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakewright.core.files import BaseFile, LogFile
from lakewright.core.instant import Instant
from lakewright.core.slices import FileGroup, GroupKey, View
from lakewright.services.cleaning.retention import is_settled
from lakewright.services.cleaning.settings import CleaningSettings, Policy
from lakewright.services.reasons import Left

DataFile = BaseFile | LogFile


@dataclass(frozen=True, slots=True)
class Holds:
    """What must stay for others: the files of savepoints, and file groups that plans name.

    A group of a pending plan is held whole. Its plan names files, but which of them make up a slice
    is for readers to say, and they do not all slice alike while a compaction is pending.
    """

    saved: frozenset[tuple[str, str]] = frozenset()
    planned: Mapping[GroupKey, str] = field(default_factory=dict)

    def saves(self, partition: str, files: Sequence[DataFile]) -> bool:
        """Whether a savepoint needs one of these files."""
        return any((partition, file.name) in self.saved for file in files)


@dataclass(frozen=True, slots=True)
class Stock:
    """What lies in the partitions that a clean looks at.

    `files` are all data files there, `groups` what the table has of them, and `replaced` names the
    newest replace commit that took a group out of the table.
    """

    view: View
    files: Mapping[str, Sequence[DataFile]]
    groups: Sequence[FileGroup] = ()
    replaced: Mapping[GroupKey, Instant] = field(default_factory=dict)
    holds: Holds = field(default_factory=Holds)


@dataclass
class Due:
    """What may go: files by partition, and partitions that are empty afterwards.

    `readable_from` is the earliest request as of which nothing that goes is needed.
    """

    files: dict[str, list[DataFile]] = field(default_factory=dict)
    partitions: list[str] = field(default_factory=list)
    left: Left = field(default_factory=Left)
    readable_from: str = ""

    def add(self, partition: str, files: Sequence[DataFile], readable_from: str) -> None:
        """Note files that may go."""
        if files:
            self.files.setdefault(partition, []).extend(files)
            self.readable_from = max(self.readable_from, readable_from)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.files or self.partitions)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice with all its files, those of change capture as well."""

    base_instant: str
    files: tuple[DataFile, ...]


def find_due(stock: Stock, settings: CleaningSettings, retained: Instant | None) -> Due:
    """What a policy lets go; `retained` is None where versions are counted.

    Files that belong to no completed write are not touched: they are a matter of rollbacks.
    """
    due = Due()
    live = {group.key: group for group in stock.groups}
    replaced = {key[0] for key, by in stock.replaced.items() if _replacement_is_due(by, retained)}
    for partition, files in stock.files.items():
        by_group = _by_group(stock.view, files)
        for file_id, own in by_group.items():
            key = partition, file_id
            group = live.get(key)
            if group is not None:
                slices = _with_changes(group, own, stock.view)
                _take_old(due, stock, key, slices, _oldest_kept(slices, stock, settings, retained))
            elif key in stock.replaced:
                _take_replaced(due, stock, key, own, retained)
        # Files of pending writes count as well: they may be about to become part of the table.
        is_empty = len(due.files.get(partition, ())) == len(files)
        if partition and is_empty and partition in replaced:
            due.partitions.append(partition)
    return due


def _take_old(due: Due, stock: Stock, key: GroupKey, slices: list[_Slice], kept: int) -> None:
    partition = key[0]
    if kept > 0 and key in stock.holds.planned:
        due.left.because(partition, stock.holds.planned[key])
        return
    for old in slices[:kept]:
        if not stock.holds.saves(partition, old.files):
            due.add(partition, old.files, slices[kept].base_instant)


def _take_replaced(
    due: Due, stock: Stock, key: GroupKey, files: list[DataFile], retained: Instant | None
) -> None:
    partition, by = key[0], stock.replaced[key]
    if not _replacement_is_due(by, retained):
        return
    if key in stock.holds.planned:
        due.left.because(partition, stock.holds.planned[key])
    elif not stock.holds.saves(partition, files):
        due.add(partition, files, by.requested_at)


def _replacement_is_due(by: Instant, retained: Instant | None) -> bool:
    return retained is None or is_settled(by.requested_at, by.completed_at, retained)


def _by_group(view: View, files: Sequence[DataFile]) -> dict[str, list[DataFile]]:
    groups: dict[str, list[DataFile]] = {}
    for file in files:
        if view.sees(file.instant):
            groups.setdefault(file.file_id, []).append(file)
    return groups


def _with_changes(group: FileGroup, files: Sequence[DataFile], view: View) -> list[_Slice]:
    """The slices of a group, each with the change files that were written with it."""
    keys = [each.base_instant for each in group.slices]
    together: list[list[DataFile]] = [
        [*([each.base] if each.base else []), *each.logs] for each in group.slices
    ]
    for file in files:
        if isinstance(file, LogFile) and file.cdc:
            completed_at = view.completion(file.instant) or file.instant
            together[max(bisect_right(keys, completed_at) - 1, 0)].append(file)
    return [_Slice(key, tuple(own)) for key, own in zip(keys, together, strict=True)]


def _oldest_kept(
    slices: list[_Slice], stock: Stock, settings: CleaningSettings, retained: Instant | None
) -> int:
    """The position of the oldest slice that is still needed; there always is one."""
    if settings.policy is Policy.VERSIONS or retained is None:
        return max(len(slices) - settings.versions_retained, 0)
    settled = [
        number
        for number, each in enumerate(slices)
        if is_settled(each.base_instant, stock.view.completion(each.base_instant), retained)
    ]
    return settled[-1] if settled else 0
