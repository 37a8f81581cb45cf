"""Splitters: divide the initial load of a table into batches that end with a completed write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lakewright.errors import InvalidError
from lakewright.ingestion.options import SplitSettings
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata, WriteStat
from lakewright.model.instant import Instant
from lakewright.options import ADDED_OPTIONS, settings_from
from lakewright.scan.planner import QueryContext

# Commit metadata is read in pieces, so that little more is read than is used. A file of the
# archived timeline has the metadata of many instants; growing pieces read few files twice.
_FIRST_PIECE = 8


class SnapshotLoadQuerySplitter(ABC):
    """Decides how much of an initial load the next batch reads."""

    @abstractmethod
    def next_end(self, context: QueryContext) -> str | None:
        """Return the completion time of the write that ends the next batch; None to read all.

        `context` is the unread range in completion order, and is not empty.
        """


Factory = Callable[[Mapping[str, str]], SnapshotLoadQuerySplitter]


@dataclass(frozen=True, slots=True)
class BoundedLoad(SnapshotLoadQuerySplitter):
    """Ends a batch with the write that reaches a number of rows or bytes.

    Rows and bytes are taken from commit metadata, so no rows are read. A row that was updated
    counts for each of its writes.
    """

    max_rows: int | None = None
    max_bytes: int | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> BoundedLoad:
        """Create the splitter from options; InvalidError if they have no bound."""
        settings = settings_from(SplitSettings, options)
        if settings.max_rows is None and settings.max_bytes is None:
            raise InvalidError(
                "a load is split by rows or by bytes: give lakewright.source.snapshotload.max.rows "
                "or lakewright.source.snapshotload.max.bytes"
            )
        return cls(settings.max_rows, settings.max_bytes)

    def next_end(self, context: QueryContext) -> str | None:
        """Add up the rows and bytes of the writes until a bound is reached."""
        rows = size = 0.0
        for instant, commit in brought(context):
            if commit is not None:
                rows += sum(map(_rows, commit.write_stats()))
                size += sum(map(_bytes, commit.write_stats()))
            if _reaches(rows, self.max_rows) or _reaches(size, self.max_bytes):
                return instant.completed_at
        return None


_FACTORIES: dict[str, Factory] = {"bounded": BoundedLoad.from_options}


def register_splitter(name: str, factory: Factory, keys: Iterable[str] = ()) -> None:
    """Register a splitter in this process under the name that options use.

    `keys` are the options that it reads.
    """
    if not name.strip():
        raise InvalidError("no name for a splitter", name=name)
    _FACTORIES[name.strip()] = factory
    ADDED_OPTIONS[f"splitter {name.strip()}"] = frozenset(keys)


def splitter_for(options: Mapping[str, str]) -> SnapshotLoadQuerySplitter | None:
    """Return the splitter that options name or imply, if any."""
    settings = settings_from(SplitSettings, options)
    if settings.splitter is None:
        bounded = settings.max_rows is not None or settings.max_bytes is not None
        return BoundedLoad.from_options(options) if bounded else None
    factory = _FACTORIES.get(settings.splitter)
    if factory is None:
        raise InvalidError(
            "there is no such splitter", splitter=settings.splitter, known=sorted(_FACTORIES)
        )
    return factory(options)


def split_load(
    context: QueryContext, splitter: SnapshotLoadQuerySplitter, *, min_end: str = ""
) -> QueryContext:
    """Return the part of a load that the next batch reads; it never ends before `min_end`."""
    end = splitter.next_end(context)
    if end is None or context.is_empty:
        return context
    first = context.first_completed or ""
    if end < first:
        raise InvalidError("a splitter ends a batch before its first write", end=end, first=first)
    return up_to(context, max(end, min_end))


def up_to(context: QueryContext, end: str) -> QueryContext:
    """Return the part of a range that completed up to a time."""
    instants = tuple(i for i in context.instants if (i.completed_at or "") <= end)
    if len(instants) == len(context.instants):
        return context
    last = instants[-1].completed_at
    return replace(context, instants=instants, until=last, checkpoint=last)


def brought(context: QueryContext) -> Iterator[tuple[Instant, CommitMetadata | None]]:
    """Yield the instants of a range, each with its commit if it wrote new rows.

    The commit is None for services and for commits without files.
    """
    start, size = 0, _FIRST_PIECE
    while start < len(context.instants):
        piece = replace(context, instants=context.instants[start : start + size])
        commits = context.snapshot.commits(piece.instants)
        for instant, commit in zip(piece.instants, commits, strict=True):
            # The range excludes compactions by their action, but not log compactions.
            is_service = commit.operation in SERVICE_OPERATIONS
            is_service = is_service or instant.requested_at not in piece.commit_times
            yield instant, commit if commit.write_stats() and not is_service else None
        start, size = start + size, size * 2


def _reaches(amount: float, bound: int | None) -> bool:
    return bound is not None and amount >= bound


def _rows(stat: WriteStat) -> int:
    """Return the number of new rows in a file, without those copied from its older version."""
    if stat.num_inserts is None and stat.num_update_writes is None:
        return stat.num_writes or 0
    return (stat.num_inserts or 0) + (stat.num_update_writes or 0)


def _bytes(stat: WriteStat) -> float:
    """Return the approximate size of the new rows in a file."""
    size = stat.total_write_bytes or stat.file_size_in_bytes or 0
    return size * min(1.0, _rows(stat) / stat.num_writes) if stat.num_writes else float(size)
