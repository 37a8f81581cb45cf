"""Who keeps the heartbeat of a clustering that expires: a table object; no command and no CALL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lakewright.api.table import Table
from lakewright.clock import SystemClock
from lakewright.engine.local import LocalEngine
from lakewright.errors import ConflictError
from lakewright.model.instant import Action, Instant
from lakewright.sql.procedures.base import bound_arguments, parse_call
from lakewright.sql.procedures.registry import PROCEDURES
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from support.cancellable_plans import MULTI_WRITER, PlanFixture, with_small_files
from support.cli import invoke_json, option_flags
from support.tables import NO_SERVICES, WrittenTable

EXPIRE = "hoodie.clustering.enable.expirations"
OPTIONS = {**MULTI_WRITER, EXPIRE: "true"}


@pytest.fixture
def fixture() -> PlanFixture:
    return PlanFixture("clustering")


def heartbeats(fixture: PlanFixture) -> list[str]:
    return [file.name for file in fixture.storage.list_files(".hoodie/.heartbeat")]


def test_a_table_object_executes_what_it_has_scheduled(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "t"))
    with_small_files(WrittenTable(storage, SystemClock(), {**NO_SERVICES, **MULTI_WRITER}))
    table, other = Table(storage), Table(storage)
    instant = table.schedule("clustering", OPTIONS)
    assert isinstance(instant, Instant)
    with pytest.raises(ConflictError, match="keeps it for itself"):
        other.execute(instant, OPTIONS)
    own = replace(table.services(OPTIONS), engine=LocalEngine)
    assert own.execute(instant.requested_at).instant == instant.requested_at
    assert not list(storage.list_files(".hoodie/.heartbeat"))


def by_command(fixture: PlanFixture) -> None:
    invoke_json(
        "cluster",
        fixture.storage.root,
        "--schedule",
        *option_flags(f"{EXPIRE}=true", "hoodie.write.lock.provider=in_process"),
    )


def by_call(fixture: PlanFixture) -> None:
    call = parse_call(
        f"CALL run_clustering(op => 'schedule', path => '{fixture.storage.root}', "
        f"options => '{EXPIRE}=true')"
    )
    assert call is not None
    procedure = PROCEDURES[call.name]
    procedure.run(Table(fixture.storage), bound_arguments(call, procedure.parameters))


@pytest.mark.parametrize("schedule", [by_command, by_call], ids=["a command", "a CALL"])
def test_what_is_scheduled_for_another_process_waits_for_it_without_a_heartbeat(
    fixture: PlanFixture, schedule: Callable[[PlanFixture], None]
) -> None:
    schedule(fixture)
    (plan,) = load_snapshot(fixture.storage).timeline.pending(Action.CLUSTERING)
    assert heartbeats(fixture) == []
    assert fixture.runner(OPTIONS).execute(plan.requested_at)
