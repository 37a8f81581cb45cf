"""What is written of procedures is what there is."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakewright.api.table import Table
from lakewright.sql.procedures.base import Procedure, describe, example
from lakewright.sql.procedures.registry import PROCEDURES


class ThreeBlocking:
    def blocking_log_files(self, limit: int) -> list[Any]:
        log = SimpleNamespace(partition="", file_id="f", log="l", instant="1", event_time=1, size=1)
        return [log] * min(3, limit)


@pytest.mark.parametrize(("limit", "shown"), [(0, 0), (2, 2), (None, 3)])
def test_a_limit_of_zero_shows_nothing(limit: int | None, shown: int) -> None:
    procedure = PROCEDURES["show_holding_back"]
    assert len(procedure.run(cast(Table, ThreeBlocking()), {"limit": limit})) == shown


ROOT = Path(__file__).resolve().parents[4]

# The parameters of Hudi 1.2.0, in its order: calls by place depend on it.
HUDI = {
    "archive_commits": "table path min_commits max_commits retain_commits enable_metadata",
    "create_savepoint": "table commit_time user comments path",
    "delete_savepoint": "table instant_time path",
    "drop_partition": "table partition",
    "rollback_to_instant": "table instant_time",
    "rollback_to_savepoint": "table instant_time path",
    "run_clean": "table schedule_in_line clean_policy retain_commits hours_retained "
    "file_versions_retained trigger_strategy trigger_max_commits options",
    "run_clustering": "table path predicate order show_involved_partition op order_strategy "
    "options instants selected_partitions partition_regex_pattern limit",
    "run_compaction": "op table path timestamp options instants limit",
    "run_rollback_inflight_tableservice": "table path pending_instant delete_request_instant_file",
    "run_ttl": "table ttl_policy retain_days options",
    "show_archived_commits": "table limit start_ts end_ts",
    "show_archived_commits_metadata": "table limit start_ts end_ts",
    "show_commit_extra_metadata": "table limit instant_time metadata_key",
    "show_commit_files": "table limit instant_time",
    "show_commit_partitions": "table limit instant_time",
    "show_commit_write_stats": "table limit instant_time",
    "show_commits": "table limit",
    "show_commits_metadata": "table limit",
    "show_compaction": "table path limit",
    "show_clustering": "table path limit show_involved_partition",
    "show_fsview_all": "table path max_instant include_max include_in_flight exclude_compaction "
    "limit path_regex filter",
    "show_fsview_latest": "table path max_instant include_max include_in_flight "
    "exclude_compaction limit partition_path merge filter",
    "show_rollbacks": "table limit",
    "show_savepoints": "table path",
    "show_table_properties": "table path limit filter",
    "show_timeline": "table path limit showArchived filter startTime endTime",
    "stats_file_sizes": "table partition_path limit",
    "stats_wa": "table limit",
}


@pytest.mark.parametrize("name", HUDI)
def test_parameters_come_in_the_order_of_hudi(name: str) -> None:
    expected = HUDI[name].split()
    assert [p.name for p in PROCEDURES[name].parameters][: len(expected)] == expected


def test_the_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "procedure_table.py"))
    text = script["PAGE"].read_text()
    assert script["renewed"](text) == text, "run scripts/procedure_table.py"


@pytest.mark.parametrize("procedure", PROCEDURES.values(), ids=list(PROCEDURES))
def test_every_procedure_can_be_described(procedure: Procedure) -> None:
    rows = describe(procedure)
    assert rows[0][:2] == ("procedure", procedure.name)
    assert rows[-1][1] == example(procedure)
    assert all(len(row) == 6 for row in rows)
    names = [p.name for p in procedure.parameters]
    assert len(set(names)) == len(names)
    assert "table" in names
    assert "path" in names
