"""From slices to a plan: what it holds, what it names as missing, and when there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest

from lakewright.errors import InvalidError
from lakewright.format.timeline_metadata import format_compaction_plan, parse_compaction_plan
from lakewright.model.file_group import FileSlice
from lakewright.model.plans import CompactionPlan, Skip
from lakewright.services.compaction.options import CompactionSettings
from lakewright.services.compaction.planner import StrategyChain, plan_compaction, register_strategy
from lakewright.services.compaction.strategies import MB, Candidate, Selection
from lakewright.services.planning import IncrementalWindow, SkippedPartitions
from lakewright.testing.timeline_drawing import at
from support.services import TODAY, compaction_settings, compaction_slice, strategy_chain

ON = IncrementalWindow(None)
DEFAULT: Mapping[str, object] = MappingProxyType({})
NO_LOCKS: Mapping[str, str] = MappingProxyType({})
OFF = IncrementalWindow(None, records_missing=False)
COMPACTION = "compaction 20260101000000000"
NEWEST = TODAY.strftime("%Y/%m/%d")


def plan(
    slices: Sequence[FileSlice],
    options: Mapping[str, object] = DEFAULT,
    locked: Mapping[str, str] = NO_LOCKS,
    window: IncrementalWindow = ON,
) -> CompactionPlan | Skip:
    """Filter and plan, as the service does; `locked` is by file id."""
    settings = compaction_settings(**options)
    chain = strategy_chain(settings)
    skipped = SkippedPartitions()
    selected = chain.filter_partitions(settings, sorted({s.partition for s in slices}), skipped)
    return plan_compaction(
        [slice_ for slice_ in slices if slice_.partition in selected],
        strategy=chain,
        settings=settings,
        window=window,
        locked={(s.partition, s.file_id): locked[s.file_id] for s in slices if s.file_id in locked},
        filtered=skipped.reasons,
    )


def planned(
    slices: Sequence[FileSlice],
    options: Mapping[str, object] = DEFAULT,
    locked: Mapping[str, str] = NO_LOCKS,
    window: IncrementalWindow = ON,
) -> CompactionPlan:
    made = plan(slices, options, locked, window)
    assert isinstance(made, CompactionPlan)
    return made


def test_an_operation_names_its_files() -> None:
    slices = [
        compaction_slice("d1", 100, [3, 4], file_id="f1"),
        compaction_slice("d2", None, [5], file_id="f2"),
    ]
    made = planned(slices)
    assert (made.version, made.strategy, made.preserve_metadata) == (2, None, False)
    first, second = made.operations
    assert (first.partition, first.file_id, first.base_instant) == ("d1", "f1", at(0))
    assert first.base_file == f"f1_0-0-0_{at(0)}.parquet"
    assert first.logs == (f".f1_{at(10)}.log.1_1-0-1", f".f1_{at(11)}.log.1_1-0-1")
    assert first.next_base_instant is None
    assert (second.base_file, second.base_instant) == (None, at(10))
    assert parse_compaction_plan(format_compaction_plan(made)) == made


TWO_DAYS = [
    compaction_slice(NEWEST, 120, [150], file_id="a"),
    compaction_slice(NEWEST, 100, [1], file_id="b"),
    compaction_slice("2026/01/01", 90, [1024], file_id="c"),
]
DAY_BASED = "filtered by day_based"
MISSING: dict[
    str, tuple[Sequence[FileSlice], dict[str, object], dict[str, str], str, dict[str, str]]
] = {
    "every slice is scheduled": (TWO_DAYS, {}, {}, "c a b", {}),
    "a small budget takes one group, and its partition is missing": (
        TWO_DAYS[:2], {"target_io": 1}, {}, "a", {NEWEST: "over the budget of 1 MB"}),
    "small log files are missing": (
        TWO_DAYS, {"size_threshold": 100 * MB}, {}, "c a",
        {NEWEST: "log files below the threshold of 100 MB"}),
    "few log files are missing, if more are required": (
        [*TWO_DAYS, compaction_slice("eu", 1, [1, 1], file_id="d")],
        {"strategy": "log_file_num", "num_threshold": 2}, {}, "d",
        {NEWEST: "fewer than 2 log files", "2026/01/01": "fewer than 2 log files"}),
    "other days are missing, though real Hudi forgets them": (
        TWO_DAYS, {"strategy": "day_based", "target_partitions": 1}, {}, "a b",
        {"2026/01/01": DAY_BASED}),
    "what the budget of a day leaves is missing, and so are other days": (
        TWO_DAYS, {"strategy": "day_based", "target_partitions": 1, "target_io": 200}, {}, "a",
        {NEWEST: "over the budget of 200 MB", "2026/01/01": DAY_BASED}),
    "days long past are missing, though real Hudi forgets them": (
        TWO_DAYS, {"strategy": "bounded_partition"}, {}, "a b",
        {"2026/01/01": "filtered by bounded_partition"}),
    "recent days are missing, though real Hudi forgets them": (
        TWO_DAYS, {"strategy": "unbounded_partition"}, {}, "c",
        {NEWEST: "filtered by unbounded_partition"}),
    "what does not match is missing, though real Hudi forgets it": (
        TWO_DAYS, {"strategy": "partition_regex", "regex": "2026/01"}, {}, "c",
        {NEWEST: "filtered by partition_regex"}),
    "a group of another plan is missing, though real Hudi forgets it": (
        TWO_DAYS, {}, {"a": COMPACTION}, "c b", {NEWEST: f"held by {COMPACTION}"}),
    "a group without log files is not missing, locked or not": (
        [*TWO_DAYS, compaction_slice("eu", 5, file_id="d")],
        {}, {"d": "clustering 1"}, "c a b", {}),
    "the first reason of a partition stands": (
        TWO_DAYS, {"target_io": 1}, {"a": "logcompaction 7"}, "c",
        {NEWEST: "held by logcompaction 7"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("slices", "options", "locked", "operations", "missing"), MISSING.values(), ids=list(MISSING)
)
def test_missing_is_all_that_is_not_scheduled_completely(
    slices: Sequence[FileSlice],
    options: dict[str, object],
    locked: dict[str, str],
    operations: str,
    missing: dict[str, str],
) -> None:
    made = planned(slices, options, locked)
    assert " ".join(operation.file_id for operation in made.operations) == operations
    assert made.missing_partitions == tuple(sorted(missing))
    assert made.missing_reasons == missing
    assert parse_compaction_plan(format_compaction_plan(made)) == made


def test_where_planning_is_not_incremental_nothing_is_recorded() -> None:
    made = planned(TWO_DAYS, {"target_io": 1}, {"a": COMPACTION}, OFF)
    assert [operation.file_id for operation in made.operations] == ["c"]
    assert (made.missing_partitions, made.extra) == (None, {})


SKIPPED: dict[str, tuple[Sequence[FileSlice], dict[str, object], dict[str, str], str]] = {
    "no slices": ([], {}, {}, "no log files"),
    "no log files": ([compaction_slice("p", 5)], {}, {}, "no log files"),
    "no partition matches": (
        TWO_DAYS, {"strategy": "partition_regex", "regex": "2017/.*/.*"}, {},
        "filtered by partition_regex (2 partitions)"),
    "other plans hold everything": (
        TWO_DAYS, {}, {"a": COMPACTION, "b": COMPACTION, "c": "clustering 5"},
        f"held by clustering 5 (1 partition); held by {COMPACTION} (1 partition)"),
    "all is too small": (
        TWO_DAYS, {"size_threshold": 5000 * MB}, {},
        "log files below the threshold of 5000 MB (2 partitions)"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("slices", "options", "locked", "reason"), SKIPPED.values(), ids=list(SKIPPED)
)
def test_no_plan_without_operations(
    slices: Sequence[FileSlice], options: dict[str, object], locked: dict[str, str], reason: str
) -> None:
    assert plan(slices, options, locked) == Skip(f"nothing to compact: {reason}")


def test_many_reasons_are_cut_short() -> None:
    slices = [compaction_slice(f"p{n}", 1, [1], file_id=f"f{n}") for n in range(9)]
    skip = plan(slices, DEFAULT, {f"f{n}": f"clustering {n}" for n in range(9)})
    assert str(skip).endswith("held by clustering 4 (1 partition); 4 more reasons")


@dataclass(frozen=True)
class Bent:
    """A strategy whose selection a test sets."""

    bend: Callable[[Sequence[Candidate]], list[Candidate]]

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        return Selection(self.bend(candidates))


def with_logs(item: Candidate, *logs: str) -> Candidate:
    return replace(item, operation=replace(item.operation, logs=logs))


def bent(bend: Callable[[Sequence[Candidate]], list[Candidate]]) -> CompactionPlan | Skip:
    slices = [
        compaction_slice("d1", 5, [1, 1], file_id="f1"),
        compaction_slice("d2", 5, [1], file_id="f2"),
    ]
    return plan_compaction(
        slices,
        strategy=StrategyChain((("bent", Bent(bend)),)),
        settings=CompactionSettings(),
        window=ON,
        locked={("d2", "f2"): COMPACTION},
    )


WRONG: dict[str, Callable[[Sequence[Candidate]], list[Candidate]]] = {
    "a file group that another plan holds": lambda given: [
        replace(given[0], operation=replace(given[0].operation, partition="d2", file_id="f2"))
    ],
    "a file group twice": lambda given: [given[0], given[0]],
    "an operation without log files": lambda given: [with_logs(given[0])],
    "a log file that is not there": lambda given: [with_logs(given[0], ".f1_1.log.1_1-0-1")],
    "some of the log files": lambda given: [with_logs(given[0], given[0].operation.logs[0])],
    "a log file twice": lambda given: [with_logs(given[0], *given[0].operation.logs[:1] * 2)],
    "another base file": lambda given: [
        replace(given[0], operation=replace(given[0].operation, base_file=None))
    ],
}


@pytest.mark.parametrize("bend", WRONG.values(), ids=list(WRONG))
def test_a_strategy_may_not_choose(
    bend: Callable[[Sequence[Candidate]], list[Candidate]],
) -> None:
    with pytest.raises(InvalidError, match="chose what is no candidate"):
        bent(bend)


def test_what_a_strategy_of_a_user_drops_is_missing() -> None:
    register_strategy("test.first", lambda _: Bent(lambda given: list(given[:1])))
    made = planned(TWO_DAYS, {"strategy": "test.first"})
    assert made.missing_reasons == {
        NEWEST: "not chosen by test.first", "2026/01/01": "not chosen by test.first"}  # fmt: skip
