"""A load of a whole table, split into batches that end where a write has completed."""

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

# Metadata of instants is read together, and not much more of it than is asked for. One file of
# history holds that of many: reading ever more at a time, few of them are read twice.
_FIRST_PIECE = 8


class SnapshotLoadQuerySplitter(ABC):
    """Decides how much of a load the next batch takes on."""

    @abstractmethod
    def next_end(self, context: QueryContext) -> str | None:
        """The completion time of the write that ends the next batch; None to take all there is.

        `context` holds what is not read yet, in the order of completion, and is not empty.
        """


Factory = Callable[[Mapping[str, str]], SnapshotLoadQuerySplitter]


@dataclass(frozen=True, slots=True)
class BoundedLoad(SnapshotLoadQuerySplitter):
    """Ends a batch with the write that reaches a number of rows or bytes.

    What commits say of themselves is counted, so no rows are read: a row that was updated since
    counts for each of its writes.
    """

    max_rows: int | None = None
    max_bytes: int | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> BoundedLoad:
        """The bounds that options give; there must be one."""
        settings = settings_from(SplitSettings, options)
        if settings.max_rows is None and settings.max_bytes is None:
            raise InvalidError(
                "a load is split by rows or by bytes: give lakewright.source.snapshotload.max.rows "
                "or lakewright.source.snapshotload.max.bytes"
            )
        return cls(settings.max_rows, settings.max_bytes)

    def next_end(self, context: QueryContext) -> str | None:
        """Count what each write brought until it is enough."""
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
    """Make a splitter known, in this process, under the name that the options give.

    `keys` are the options of its own that it reads.
    """
    if not name.strip():
        raise InvalidError("no name for a splitter", name=name)
    _FACTORIES[name.strip()] = factory
    ADDED_OPTIONS[f"splitter {name.strip()}"] = frozenset(keys)


def splitter_for(options: Mapping[str, str]) -> SnapshotLoadQuerySplitter | None:
    """The splitter that options name or imply, if any."""
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
    context: QueryContext, splitter: SnapshotLoadQuerySplitter, *, least: str = ""
) -> QueryContext:
    """The part of a load that the next batch takes on; it never ends before `least`."""
    end = splitter.next_end(context)
    if end is None or context.is_empty:
        return context
    first = context.first_completed or ""
    if end < first:
        raise InvalidError("a splitter ends a batch before its first write", end=end, first=first)
    return up_to(context, max(end, least))


def up_to(context: QueryContext, end: str) -> QueryContext:
    """The part of a range that had completed at a time."""
    instants = tuple(i for i in context.instants if (i.completed_at or "") <= end)
    if len(instants) == len(context.instants):
        return context
    last = instants[-1].completed_at
    return replace(context, instants=instants, until=last, checkpoint=last)


def brought(context: QueryContext) -> Iterator[tuple[Instant, CommitMetadata | None]]:
    """The instants of a range, each with its commit if that brought rows.

    Services do not, nor do commits that wrote no file.
    """
    start, size = 0, _FIRST_PIECE
    while start < len(context.instants):
        piece = replace(context, instants=context.instants[start : start + size])
        commits = context.snapshot.commits(piece.instants)
        for instant, commit in zip(piece.instants, commits, strict=True):
            # The range knows compactions by their action; a log compaction is a write to it.
            moved = commit.operation in SERVICE_OPERATIONS
            moved = moved or instant.requested_at not in piece.commit_times
            yield instant, commit if commit.write_stats() and not moved else None
        start, size = start + size, size * 2


def _reaches(amount: float, bound: int | None) -> bool:
    return bound is not None and amount >= bound


def _rows(stat: WriteStat) -> int:
    """The rows that a write brought into a file, not those that it took over."""
    if stat.num_inserts is None and stat.num_update_writes is None:
        return stat.num_writes or 0
    return (stat.num_inserts or 0) + (stat.num_update_writes or 0)


def _bytes(stat: WriteStat) -> float:
    """About the share of a file that is new."""
    size = stat.total_write_bytes or stat.file_size_in_bytes or 0
    return size * min(1.0, _rows(stat) / stat.num_writes) if stat.num_writes else float(size)
