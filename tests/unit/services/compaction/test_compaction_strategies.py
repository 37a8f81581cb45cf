"""What each strategy takes and leaves; sizes in megabytes, as `base:[logs]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pytest

from lakewright.errors import InvalidError
from lakewright.model.file_group import FileSlice
from lakewright.model.partition_time import partition_day
from lakewright.services.compaction.options import CompactionSettings
from lakewright.services.compaction.planner import register_strategy
from lakewright.services.compaction.strategies import MB, Candidate, Selection, candidates
from lakewright.services.planning import SkippedPartitions
from support.services import TODAY, compaction_settings, compaction_slice, strategy_chain


def four_slices(*paths: str) -> list[FileSlice]:
    """120:[60,10,80], 110:[], 100:[1], 90:[512,512]: total IO of 390, 220, 201 and 1204."""
    sizes: list[tuple[int, list[int]]] = [(120, [60, 10, 80]), (110, []), (100, [1])]
    sizes.append((90, [512, 512]))
    named = paths or ("p1", "p2", "p3", "p4")
    return [
        compaction_slice(path, base, logs) for path, (base, logs) in zip(named, sizes, strict=True)
    ]


def choose(slices: list[FileSlice], **options: object) -> tuple[list[int], dict[str, str]]:
    """The IO of what is chosen, in order, and the reason of each partition that is skipped."""
    settings = compaction_settings(**options)
    choice = strategy_chain(settings).choose(settings, candidates(slices, settings.max_file_size))
    skipped = {partition: reason for (partition, _), reason in choice.skipped.items()}
    return [c.io_mb for c in choice.chosen], skipped


OVER_400 = "over the budget of 400 MB"
BELOW = "log files below the threshold of 100 MB"
CHOSEN: dict[str, tuple[dict[str, object], list[int], dict[str, str]]] = {
    "unbounded takes all, in the order given": (
        {"strategy": "unbounded"}, [390, 220, 201, 1204], {}),
    "a budget ends with the file group that goes beyond it": (
        {"strategy": "bounded_io", "target_io": 400}, [390, 220],
        {"p3": OVER_400, "p4": OVER_400}),
    "a budget that is spent exactly takes no more": (
        {"strategy": "bounded_io", "target_io": 390}, [390],
        dict.fromkeys(("p2", "p3", "p4"), "over the budget of 390 MB")),
    "the smallest budget takes one": (
        {"strategy": "bounded_io", "target_io": 1}, [390],
        dict.fromkeys(("p2", "p3", "p4"), "over the budget of 1 MB")),
    "the largest log files come first, small ones are skipped": (
        {"strategy": "log_file_size", "target_io": 1205, "size_threshold": 100 * MB},
        [1204, 390], {"p2": BELOW, "p3": BELOW}),
    "by size without a threshold": (
        {"strategy": "log_file_size"}, [1204, 390, 201, 220], {}),
    "the most log files come first, few are skipped": (
        {"strategy": "log_file_num", "target_io": 1024, "num_threshold": 2},
        [390, 1204], dict.fromkeys(("p2", "p3"), "fewer than 2 log files")),
    "day by day within a budget, the latest first": (
        {"strategy": "day_based", "target_io": 200}, [390],
        dict.fromkeys(("p2", "p3", "p4"), "over the budget of 200 MB")),
    "a pattern has no budget": (
        {"strategy": "partition_regex", "target_io": 1}, [390, 220, 201, 1204], {}),
    "the second strategy chooses from what the first chose": (
        {"strategy": "log_file_num,bounded_io", "num_threshold": 1, "target_io": 1},
        [390], {"p2": "fewer than 1 log files",
                **dict.fromkeys(("p3", "p4"), "over the budget of 1 MB")}),
}  # fmt: skip


@pytest.mark.parametrize(("options", "expected", "skipped"), CHOSEN.values(), ids=list(CHOSEN))
def test_a_strategy_chooses(
    options: dict[str, object], expected: list[int], skipped: dict[str, str]
) -> None:
    assert choose(four_slices(), **options) == (expected, skipped)


def test_the_oldest_debt_comes_first_if_configured() -> None:
    slices = [
        compaction_slice("large", 100, [500], first_tick=30),
        compaction_slice("old", 100, [1], first_tick=10),
        compaction_slice("middle", 100, [9, 9], first_tick=20),
    ]
    assert choose(slices, target_io=300) == (
        [700], dict.fromkeys(("old", "middle"), "over the budget of 300 MB"))  # fmt: skip
    assert choose(slices, target_io=300, order="oldest_debt_first") == (
        [201, 218], {"large": "over the budget of 300 MB"})  # fmt: skip


METRICS = (
    "TOTAL_LOG_FILES",
    "TOTAL_LOG_FILES_SIZE",
    "TOTAL_IO_READ_MB",
    "TOTAL_IO_WRITE_MB",
    "TOTAL_IO_MB",
)
COSTS = {
    "reading is base and logs, writing is the base": (
        compaction_slice("p", 120, [60, 10, 80]), (3, 150 * MB, 270, 120, 390)),
    "a first base file costs as much as a full one": (
        compaction_slice("p", None, [5, 7]), (2, 12 * MB, 12, 120, 132)),
    "nothing but a base": (compaction_slice("p", 110), (0, 0, 110, 110, 220)),
}  # fmt: skip


@pytest.mark.parametrize(("slice_", "expected"), COSTS.values(), ids=list(COSTS))
def test_costs(slice_: FileSlice, expected: tuple[int, ...]) -> None:
    (item,) = candidates([slice_], 120 * MB)
    assert item.operation.metrics == dict(zip(METRICS, map(float, expected), strict=True))


def keep(partitions: Sequence[str], **options: object) -> tuple[list[str], dict[str, str]]:
    settings = compaction_settings(**options)
    skipped = SkippedPartitions()
    return strategy_chain(settings).filter_partitions(
        settings, partitions, skipped
    ), skipped.reasons


def day(offset: int) -> str:
    return (TODAY + timedelta(days=offset)).strftime("%Y/%m/%d")


DAYS = [day(offset) for offset in (0, -1, -2, -3, 1, 5)]
NO_DAY = "no day such as 2026/01/31 in the partition path"
FIVE = ["2020/01/01", "2020/01/02", "2020/01/03", "2020/02/01", "2021/01/01"]
FILTERED: dict[str, tuple[dict[str, object], Sequence[str], list[str], str | None]] = {
    "day_based takes the latest day; what real Hudi forgets is skipped": (
        {"strategy": "day_based", "target_partitions": 1}, DAYS, [day(5)], None),
    "day_based takes several": (
        {"strategy": "day_based", "target_partitions": 3}, DAYS, [day(0), day(1), day(5)], None),
    "day_based takes all if there are few": (
        {"strategy": "day_based"}, DAYS, DAYS, None),
    "bounded_partition takes two days back and all that is to come; the rest is skipped": (
        {"strategy": "bounded_partition", "target_partitions": 2}, DAYS,
        [d for d in DAYS if d != day(-3)], None),
    "unbounded_partition takes the others; the rest is skipped": (
        {"strategy": "unbounded_partition", "target_partitions": 2}, DAYS, [day(-3)], None),
    "day_based leaves what has no day": (
        {"strategy": "day_based"}, ["eu", day(0), ""], [day(0)], NO_DAY),
    "bounded_partition leaves what has no day": (
        {"strategy": "bounded_partition"}, ["eu", day(0)], [day(0)], NO_DAY),
    "unbounded_partition leaves what has no day as well": (
        {"strategy": "unbounded_partition"}, ["eu", "2020/01/01"], ["2020/01/01"], NO_DAY),
    "a pattern for everything": (
        {"strategy": "partition_regex", "regex": ".*"}, FIVE, FIVE, None),
    "a pattern for one day": (
        {"strategy": "partition_regex", "regex": "2020/01/01"}, FIVE, FIVE[:1], None),
    "a pattern for two days; what real Hudi forgets is skipped": (
        {"strategy": "partition_regex", "regex": "2020/01/0[1-2]"}, FIVE, FIVE[:2], None),
    "a pattern with a choice": (
        {"strategy": "partition_regex", "regex": "2020/01/0[1-2]|2020/02/01"}, FIVE,
        [*FIVE[:2], FIVE[3]], None),
    "a pattern with a gap": (
        {"strategy": "partition_regex", "regex": "2020/.*/01"}, FIVE, [FIVE[0], FIVE[3]], None),
    "a pattern for a month of any year": (
        {"strategy": "partition_regex", "regex": ".*/01/.*"}, FIVE, [*FIVE[:3], FIVE[4]], None),
    "a pattern may be found anywhere in the path": (
        {"strategy": "partition_regex", "regex": "/02/"}, FIVE, [FIVE[3]], None),
    "sizes and counts filter no partitions": (
        {"strategy": "log_file_size,log_file_num,bounded_io,unbounded"}, FIVE, FIVE, None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "partitions", "expected", "reason"), FILTERED.values(), ids=list(FILTERED)
)
def test_partitions_are_filtered_and_every_other_is_skipped(
    options: dict[str, object], partitions: Sequence[str], expected: list[str], reason: str | None
) -> None:
    selected, skipped = keep(partitions, **options)
    assert selected == expected
    message = reason or f"filtered by {options['strategy']}"
    assert skipped == {path: message for path in partitions if path not in expected}


def test_a_pattern_must_be_given_to_the_strategy_that_asks_for_it() -> None:
    with pytest.raises(InvalidError, match=r"needs a pattern.*partition\.path\.regex"):
        keep(FIVE, strategy="partition_regex")


PATHS = {
    "2026/01/31": date(2026, 1, 31),
    "2026/1/5": date(2026, 1, 5),
    "2026/01/31/eu": date(2026, 1, 31),
    "year=2026/month=01/day=31": date(2026, 1, 31),
    "day=2026-01-31": date(2026, 1, 31),
    "2026-01-31": date(2026, 1, 31),
    "20260131": date(2026, 1, 31),
    "day=20260131/hour=5": date(2026, 1, 31),
    "2026/13/45": None,
    "2026-01/31": None,
    "202601311": None,
    "eu/2026/01/31": None,
    "": None,
}


@pytest.mark.parametrize(("path", "expected"), PATHS.items(), ids=list(PATHS))
def test_the_day_of_a_partition(path: str, expected: date | None) -> None:
    assert partition_day(path) == expected


@dataclass(frozen=True)
class FirstTwo:
    def filter_partition_paths(
        self, settings: Any, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        return list(partitions[:2]), []

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        return Selection(candidates)


@dataclass(frozen=True)
class Year2017(FirstTwo):
    def filter_partition_paths(
        self, settings: Any, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        return [path for path in partitions if path.startswith("2017")], []


@dataclass(frozen=True)
class SeesAll:
    """A strategy that does not know incremental planning."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        return Selection(candidates[:1])


@pytest.fixture
def strategies_of_a_user() -> None:
    register_strategy("test.first_two", lambda _: FirstTwo())
    register_strategy("test.Year2017", lambda _: Year2017())
    register_strategy("test.sees_all", lambda _: SeesAll())


CHAINS = {
    "the first two, of these the year": (
        "test.first_two,test.Year2017", ["2017/01/01"],
        {"2017/02/01": "filtered by test.first_two", "2018/01/02": "filtered by test.Year2017"}),
    "the year, of it the first two": (
        "test.Year2017,test.first_two", ["2017/01/01", "2017/02/01"],
        {"2018/01/02": "filtered by test.Year2017"}),
    "one that does not filter is passed over": (
        "test.sees_all,test.Year2017", ["2017/01/01", "2017/02/01"],
        {"2018/01/02": "filtered by test.Year2017"}),
}  # fmt: skip


@pytest.mark.usefixtures("strategies_of_a_user")
@pytest.mark.parametrize(("names", "expected", "skipped"), CHAINS.values(), ids=list(CHAINS))
def test_strategies_one_after_the_other(
    names: str, expected: list[str], skipped: dict[str, str]
) -> None:
    assert keep(["2017/01/01", "2018/01/02", "2017/02/01"], strategy=names) == (expected, skipped)


@pytest.mark.usefixtures("strategies_of_a_user")
def test_one_strategy_that_wants_to_see_all_makes_the_chain_see_all() -> None:
    assert strategy_chain(compaction_settings(strategy="test.first_two,unbounded")).is_aware
    assert not strategy_chain(compaction_settings(strategy="unbounded,test.sees_all")).is_aware


@pytest.mark.usefixtures("strategies_of_a_user")
def test_what_a_strategy_drops_without_a_word_has_a_reason_too() -> None:
    chosen, skipped = choose(four_slices(), strategy="test.sees_all")
    assert chosen == [390]
    assert skipped == dict.fromkeys(("p2", "p3", "p4"), "not chosen by test.sees_all")
