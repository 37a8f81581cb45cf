"""What people may write for the options of compaction."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError
from lakewright.options import HUDI_OPTIONS, option_keys, settings_from
from lakewright.services.compaction.options import CompactionSettings, CompactionTrigger
from lakewright.services.compaction.planner import register_strategy
from lakewright.services.compaction.strategies import Unbounded
from lakewright.services.log_compaction import LogCompactionSettings
from support.services import compaction_settings, strategy_chain

_PACKAGE = "org.apache.hudi.table.action.compact.strategy."


def test_the_defaults_are_those_of_hudi() -> None:
    settings = CompactionSettings()
    assert settings.strategies == ("log_file_size",)
    assert settings.target_io_mb == 512_000
    assert (settings.log_size_threshold, settings.log_count_threshold) == (0, 0)
    assert settings.target_partitions == 10
    assert settings.trigger is CompactionTrigger.NUM_COMMITS
    assert (settings.max_delta_commits, settings.max_delta_seconds) == (5, 3600)
    assert settings.incremental
    assert LogCompactionSettings().blocks_threshold == 5


def test_the_keys_are_those_of_hudi() -> None:
    keys = option_keys(CompactionSettings, LogCompactionSettings)
    own = {
        "lakewright.compaction.order",
        "lakewright.compaction.plan.operations",
        "lakewright.services.missing.max.seconds",
    }
    # A design for Hudi that it has not taken up.
    designed = {key for key in keys if key.startswith("hoodie.compaction.event.time.")}
    assert len(designed) == 4
    assert keys - HUDI_OPTIONS == own | designed


NAMES = {
    "log_file_size": "LogFileSizeBasedCompactionStrategy",
    "log_file_num": "LogFileNumBasedCompactionStrategy",
    "bounded_io": "BoundedIOCompactionStrategy",
    "unbounded": "UnBoundedCompactionStrategy",
    "day_based": "DayBasedCompactionStrategy",
    "bounded_partition": "BoundedPartitionAwareCompactionStrategy",
    "unbounded_partition": "UnBoundedPartitionAwareCompactionStrategy",
    "partition_regex": "PartitionRegexBasedCompactionStrategy",
    "event_time": "EventTimeBasedCompactionStrategy",
}


@pytest.mark.parametrize(("short", "class_name"), NAMES.items(), ids=list(NAMES))
def test_a_strategy_is_found_by_either_name(short: str, class_name: str) -> None:
    chain = strategy_chain(compaction_settings(strategy=short))
    assert chain.is_aware
    assert chain == strategy_chain(compaction_settings(strategy=_PACKAGE + class_name))


def test_several_strategies_stand_in_the_order_given() -> None:
    chain = strategy_chain(compaction_settings(strategy="day_based, bounded_io"))
    assert [name for name, _ in chain.parts] == ["day_based", "bounded_io"]


BAD = {
    "a budget of nothing": {"target_io": 0},
    "a budget below nothing": {"target_io": -5},
    "a budget that is no number": {"target_io": "many"},
    "a threshold below zero": {"size_threshold": -1},
    "a number of log files below zero": {"num_threshold": -1},
    "no partitions at all": {"target_partitions": 0},
    "a pattern that does not compile": {"regex": "2026/("},
    "an unknown order": {"order": "newest"},
    "an unknown trigger": {"trigger": "SOMETIMES"},
    "a compaction after less than no commits": {"max_commits": -1},
    "an empty name in the list of strategies": {"strategy": "unbounded,,bounded_io"},
    "no name for a strategy": {"strategy": " "},
}


@pytest.mark.parametrize("options", BAD.values(), ids=list(BAD))
def test_a_bad_value_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidError, match="does not parse"):
        compaction_settings(**options)


def test_a_log_compaction_of_no_files_is_refused() -> None:
    with pytest.raises(InvalidError, match="does not parse"):
        settings_from(LogCompactionSettings, {"hoodie.log.compaction.blocks.threshold": "0"})


def test_an_unknown_strategy_is_refused_and_the_registered_ones_are_named() -> None:
    with pytest.raises(InvalidError, match="no such compaction strategy") as caught:
        strategy_chain(compaction_settings(strategy="log_file_sise"))
    assert "log_file_size" in str(caught.value)
    assert caught.value.facts["strategy"] == "log_file_sise"


@pytest.mark.parametrize("name", ["", " ", "a,b"])
def test_a_strategy_needs_a_name_that_can_be_written_down(name: str) -> None:
    with pytest.raises(InvalidError, match="no name for a strategy"):
        register_strategy(name, lambda _: Unbounded())
