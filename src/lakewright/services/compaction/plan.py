"""Slices and what a strategy makes of them, turned into a plan; nothing here touches the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from lakewright.core.plans import CompactionOperation, CompactionPlan, Skip
from lakewright.core.slices import FileSlice, GroupKey
from lakewright.errors import InvalidError
from lakewright.services.compaction.candidates import Candidate, Choice, candidates
from lakewright.services.compaction.event_time import Placed
from lakewright.services.compaction.registry import Chain
from lakewright.services.compaction.settings import CompactionSettings
from lakewright.services.reasons import Left
from lakewright.services.window import Window

_MOST_REASONS = 5

Placing = Callable[[Sequence[FileSlice], Left], Placed | Skip]


def plan_compaction(
    slices: Iterable[FileSlice],
    *,
    strategy: Chain,
    settings: CompactionSettings,
    window: Window,
    held: Mapping[GroupKey, str],
    filtered: Mapping[str, str] | None = None,
    placing: Placing | None = None,
) -> CompactionPlan | Skip:
    """The plan for these slices, the newest of their file groups; or why there is none.

    `held` names the pending plan that a file group waits for. `filtered` are the partitions of the
    window that were not even looked into, with the reason. `placing` is asked first where a plan
    goes up to some event time.
    """
    left = Left(dict(filtered or {}))
    slices = free_slices(slices, held, left, bare=settings.exact_split)
    placed = placing(slices, left) if placing is not None else None
    if isinstance(placed, Skip):
        return placed if slices else Skip(why_nothing("compact", left))
    free = placed.candidates if placed else candidates(slices, settings.max_file_size)
    choice = _limited(strategy.choose(settings, free), settings.most_operations)
    _check(choice, free)
    chosen = {c.key for c in choice.chosen}
    for item in free:
        if item.key not in chosen:
            left.because(item.slice.partition, choice.left.get(item.key, "not chosen"))
        elif settings.exact_split:
            left.because(item.slice.partition, "what is after the threshold stays in log files")
    operations = tuple(c.operation for c in choice.chosen)
    plan = finish_plan(operations, left, window)
    if plan is None:
        return Skip(why_nothing("compact", left))
    return replace(plan, extra={**plan.extra, **placed.extra}) if placed else plan


def _limited(choice: Choice, most: int) -> Choice:
    """The first of what was chosen, where a plan may hold only so many operations."""
    over = choice.chosen[most:] if most else ()
    if not over:
        return choice
    reason = f"over the limit of {most} file groups"
    return Choice(choice.chosen[:most], {**choice.left, **{c.key: reason for c in over}})


def free_slices(
    slices: Iterable[FileSlice],
    held: Mapping[GroupKey, str],
    left: Left,
    *,
    bare: bool = False,
) -> list[FileSlice]:
    """The slices with log files that no pending plan holds; the held ones are noted in `left`.

    With `bare` those without log files are among them.
    """
    free = []
    for slice_ in slices:
        holder = held.get((slice_.partition, slice_.file_id))
        if not slice_.logs and not bare:
            continue
        if holder is None:
            free.append(slice_)
        else:
            left.because(slice_.partition, f"held by {holder}")
    return free


def finish_plan(
    operations: Sequence[CompactionOperation], left: Left, window: Window
) -> CompactionPlan | None:
    """The plan of these operations; None without any: such a plan may not be written."""
    if not operations:
        return None
    if not window.is_recorded:
        return CompactionPlan(operations=tuple(operations))
    return CompactionPlan(
        operations=tuple(operations), extra=left.extra(), missing_partitions=left.partitions
    )


def why_nothing(verb: str, left: Left) -> str:
    """The reason for a plan without operations, by what held the partitions back."""
    if not left.reasons:
        return f"nothing to {verb}: no log files"
    counts = sorted(Counter(left.reasons.values()).items(), key=lambda item: (-item[1], item[0]))
    told = [f"{reason} ({_partitions(count)})" for reason, count in counts[:_MOST_REASONS]]
    more = [f"{len(counts) - _MOST_REASONS} more reasons"] * (len(counts) > _MOST_REASONS)
    return f"nothing to {verb}: {'; '.join([*told, *more])}"


def _partitions(count: int) -> str:
    return f"{count} partition{'s' * (count > 1)}"


def _files(operation: CompactionOperation) -> tuple[str, str | None, list[str]]:
    return operation.base_instant, operation.base_file, sorted(operation.logs)


def _check(choice: Choice, free: Sequence[Candidate]) -> None:
    """Strategies may come from anywhere; a plan that they bend would lose rows.

    A log file that a plan leaves out would lie below the new base file, where nobody reads it.
    """
    known = {item.key: _files(item.operation) for item in free}
    seen: set[GroupKey] = set()
    for item in choice.chosen:
        operation = item.operation
        key = (operation.partition, operation.file_id)
        if key in seen or item.key != key or known.get(key) != _files(operation):
            raise InvalidError(
                "the strategy chose what it was not given, or not all of it",
                partition=operation.partition,
                file_id=operation.file_id,
                logs=operation.logs,
            )
        seen.add(key)
