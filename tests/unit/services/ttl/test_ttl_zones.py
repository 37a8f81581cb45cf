"""Timelines in local time: their digits are those of the writers' zones, which TTL cannot know."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from lakewright.errors import InvalidError
from lakewright.model.plans import Skip
from lakewright.model.ttl import WRITERS_ZONE
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.clock import ManualClock
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, row

HOUR_MS = 3_600_000
LOS_ANGELES, TOKYO, UTC = "America/Los_Angeles", "Asia/Tokyo", "UTC"
# The borders of the map: UTC+14 and UTC-12.
EAST, WEST = "Etc/GMT-14", "Etc/GMT+12"
RETAIN = "hoodie.partition.ttl.strategy.days.retain"
ONE_DAY = {RETAIN: "1"}
TYPE = "hoodie.partition.ttl.management.strategy.type"
POLICY_OF_ROWS = '[{"spec":"*","level":"RECORD","units":"DAYS","value":1}]'
BASES = {
    "by the last write": ONE_DAY,
    "by the first write": {**ONE_DAY, TYPE: "KEEP_BY_CREATION_TIME"},
    "rows by their commit": {"hoodie.ttl.enabled": "true", "hoodie.ttl.policies": POLICY_OF_ROWS},
}

EnterZone = Callable[[str], None]


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[EnterZone]:
    """Moves this machine to another zone."""

    def enter(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield enter
    monkeypatch.undo()
    time.tzset()


def table_of(zone: str = "LOCAL") -> WrittenTable:
    table = WrittenTable(MemoryStorage.fresh(), ManualClock(), NO_SERVICES)
    return table.create(options={"hoodie.table.timeline.timezone": zone})


def hours_pass(table: WrittenTable, hours: float) -> None:
    assert isinstance(table.clock, ManualClock)
    table.clock.advance(round(hours * HOUR_MS))


PAIRS = [(LOS_ANGELES, TOKYO), (TOKYO, LOS_ANGELES), (WEST, EAST), (EAST, WEST), (UTC, UTC)]


@pytest.mark.parametrize("options", BASES.values(), ids=list(BASES))
@pytest.mark.parametrize(("writers", "here"), PAIRS, ids=[f"{a} to {b}" for a, b in PAIRS])
def test_ttl_from_another_zone_deletes_nothing_early(
    writers: str, here: str, options: dict[str, str], in_zone: EnterZone
) -> None:
    table = table_of()
    in_zone(writers)
    table.upsert([row("a")])
    in_zone(here)
    for passed in (8, 16 - 1 / 60):
        hours_pass(table, passed)
        assert isinstance(table.services(options).run("ttl"), Skip)
    hours_pass(table, 26 + 2 / 60)  # the zones of the map are 26 hours apart
    assert isinstance(table.services(options).run("ttl"), Commit)


def test_the_last_of_writes_from_several_zones_counts(in_zone: EnterZone) -> None:
    table = table_of()
    for zone in (TOKYO, LOS_ANGELES, TOKYO, LOS_ANGELES):
        in_zone(zone)
        table.upsert([row("a")])
        hours_pass(table, 7)
    in_zone(TOKYO)
    hours_pass(table, 17 - 1 / 60)
    assert isinstance(table.services(ONE_DAY).run("ttl"), Skip)


def test_a_day_in_a_path_must_be_over_in_every_zone(in_zone: EnterZone) -> None:
    table = table_of()
    in_zone(LOS_ANGELES)
    table.upsert([row("a", day="2026-01-01")])  # the clock starts at 2026-01-01T00:00Z
    in_zone(TOKYO)
    by_day = {**ONE_DAY, TYPE: "KEEP_BY_EVENT_TIME"}
    hours_pass(table, 24 + 8)  # midnight in Los Angeles
    assert isinstance(table.services(by_day).run("ttl"), Skip)
    hours_pass(table, 4 + 1 / 60)  # and twelve hours west of Greenwich
    assert isinstance(table.services(by_day).run("ttl"), Commit)


EXACT = {
    "a zone that is named": ("LOCAL", {WRITERS_ZONE: "America/Los_Angeles"}),
    "a timeline in UTC": ("UTC", {}),
    "a timeline in UTC, whatever zone is named": ("UTC", {WRITERS_ZONE: "Asia/Tokyo"}),
}


@pytest.mark.parametrize("basis", BASES.values(), ids=list(BASES))
@pytest.mark.parametrize(("zone", "options"), EXACT.values(), ids=list(EXACT))
def test_a_known_zone_is_exact(
    zone: str, options: dict[str, str], basis: dict[str, str], in_zone: EnterZone
) -> None:
    table = table_of(zone)
    in_zone(LOS_ANGELES)
    table.upsert([row("a")])
    in_zone(TOKYO)
    hours_pass(table, 24 - 1 / 60)
    assert isinstance(table.services({**basis, **options}).run("ttl"), Skip)
    hours_pass(table, 2 / 60)
    assert isinstance(table.services({**basis, **options}).run("ttl"), Commit)


@pytest.mark.parametrize("name", ["LOCAL", "Middle/Earth", "../UTC"])
def test_a_zone_is_a_name_that_means_the_same_everywhere(name: str) -> None:
    table = table_of()
    table.upsert([row("a")])
    with pytest.raises(InvalidError, match="zone"):
        table.services({**ONE_DAY, WRITERS_ZONE: name}).run("ttl")


def test_ttl_beside_a_write_waits_for_every_zone(in_zone: EnterZone) -> None:
    table = table_of()
    in_zone(LOS_ANGELES)
    table.upsert([row("a")])
    in_zone(TOKYO)
    options = {
        "hoodie.ttl.enabled": "true",
        "hoodie.ttl.run.inline": "false",
        "hoodie.ttl.policies": '[{"spec":"*","units":"DAYS","value":1}]',
    }
    hours_pass(table, 23)
    commit = table.upsert([row("b", day="2026-03-01")], options)
    assert [type(result) for result in commit.services] == [Skip]
    assert len(table.rows()) == 2
