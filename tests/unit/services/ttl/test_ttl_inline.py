"""TTL after writes: partitions renewed, triggers met, and what a clean starts."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from lakewright.errors import InvalidError, UnavailableError
from lakewright.model.plans import Skip
from lakewright.model.ttl import ENABLED, POLICIES, RUN_INLINE, TRIGGER, TRIGGER_VALUE
from lakewright.services.ttl import service
from lakewright.table.properties import last_update_time, load_partition_metadata
from lakewright.write import commit_hooks
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, begin_action, row

DAY = 86_400
WEEK = '[{"spec":"*","level":"PARTITION","units":"DAYS","value":7}]'
OLD, NEW = "2026-01-01", "2026-01-02"


def table(**settings: str) -> WrittenTable:
    stored = {ENABLED: "true", POLICIES: WEEK, **settings}
    return WrittenTable(options=NO_SERVICES).create(options=stored)


def lines(made: WrittenTable) -> dict[str, str]:
    metadata_of = load_partition_metadata(made.storage, [OLD, NEW])
    return {path: last_update_time(metadata) for path, metadata in metadata_of.items()}


def deleted_partitions(commit: Commit) -> list[tuple[str, ...]]:
    commits = [outcome for outcome in commit.services if isinstance(outcome, Commit)]
    return [deletion.partitions for deletion in commits if deletion.operation == "DELETE_PARTITION"]


def test_a_write_renews_its_partitions() -> None:
    made = table()
    first = made.upsert([row("a", day=OLD), row("b", day=NEW)])
    assert lines(made) == {OLD: first.completed_at, NEW: first.completed_at}
    second = made.upsert([row("b", 2, day=NEW)])
    assert lines(made) == {OLD: first.completed_at, NEW: second.completed_at}


def test_without_ttl_nothing_is_renewed() -> None:
    made = table(**{ENABLED: "false"})
    made.upsert([row("a", day=OLD)])
    assert lines(made) == {OLD: ""}


def test_a_service_renews_nothing() -> None:
    made = WrittenTable(options=NO_SERVICES).create(
        "MERGE_ON_READ", options={ENABLED: "true", POLICIES: WEEK}
    )
    made.upsert([row("a", day=OLD)])
    last = made.upsert([row("a", 2, day=OLD)])
    made.clock.sleep(DAY)
    assert made.services({"hoodie.compact.inline.max.delta.commits": "1"}).run("compaction")
    assert lines(made)[OLD] == last.completed_at


def test_after_some_commits_expired_partitions_are_deleted() -> None:
    made = table(**{TRIGGER_VALUE: "3"})
    made.upsert([row("a", day=OLD)])
    made.clock.sleep(8 * DAY)
    assert [deleted_partitions(made.upsert([row("b", n, day=NEW)])) for n in range(1, 6)] == [
        [],
        [(OLD,)],
        [],
        [],
        [],
    ]
    assert [record["id"] for record in made.rows()] == ["b"]


def test_nothing_expired_is_not_looked_at_again_before_its_time() -> None:
    made = table(**{TRIGGER_VALUE: "3"})
    checked = []
    for n in range(1, 10):
        messages = [str(outcome) for outcome in made.upsert([row("b", n, day=NEW)]).services]
        checked.append(any("expired" in message or "partition" in message for message in messages))
    assert checked == [False, False, True] * 3


def test_after_some_days_expired_partitions_are_deleted() -> None:
    made = table(**{TRIGGER: "TIME_ELAPSED", TRIGGER_VALUE: "5"})
    made.upsert([row("a", day=OLD)])
    deleted = []
    for n in range(1, 7):
        made.clock.sleep(2 * DAY)
        deleted.append(deleted_partitions(made.upsert([row("b", n, day=NEW)])))
    # The first write met the trigger, the next to do so was six days later, and then again.
    assert deleted == [[], [], [], [], [], [(OLD,)]]


SEVERAL = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
CLEAN: Mapping[str, str] = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}


def test_ttl_beside_writes_runs_only_when_a_partition_can_be_expired() -> None:
    made = table(**{RUN_INLINE: "false"})
    made.upsert([row("a", day=OLD)])
    looked = []
    for n in range(2, 20):
        made.clock.sleep(DAY)
        looked.append((n, bool(made.upsert([row("b", n, day=NEW)]).services)))
    # At the second write for the first time, when the first partition has expired and once after it
    # was deleted, and a week after the last write at that time.
    assert [n for n, ran in looked if ran] == [2, 8, 9, 15]
    assert [record["id"] for record in made.rows()] == ["b"]


def test_other_settings_are_a_reason_to_look() -> None:
    made = table(**{RUN_INLINE: "false"})
    made.upsert([row("a", day=OLD)])
    made.clock.sleep(2 * DAY)
    assert not deleted_partitions(made.upsert([row("b", 1, day=NEW)]))
    shorter = {POLICIES: WEEK.replace("7", "1")}
    assert deleted_partitions(made.upsert([row("b", 2, day=NEW)], shorter)) == [(OLD,)]


def test_a_write_goes_on_beside_ttl_and_another_writer() -> None:
    made = table(**{RUN_INLINE: "false"})
    made.upsert([row("a", day=OLD)])
    made.clock.sleep(8 * DAY)
    at_work = begin_action(made.writer().writer(), "commit")
    commit = made.upsert([row("b", day=NEW)], SEVERAL)
    assert [record["id"] for record in made.rows()] == ["b"]
    assert deleted_partitions(commit) == [(OLD,)]
    at_work.abort_best_effort()


def test_a_write_goes_on_where_a_partition_cannot_be_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> bool:
        raise InvalidError("this may not be written")

    made = table()
    monkeypatch.setattr(commit_hooks, "touch_last_update_time", refuse)
    with pytest.warns(RuntimeWarning, match="this may not be written"):
        made.upsert([row("a", day=OLD)])
    assert [record["id"] for record in made.rows()] == ["a"]


@pytest.fixture
def clock_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """No partition can be deleted, by any request."""

    def refuse(*arguments: object) -> None:
        raise UnavailableError("the clock of this machine is ahead of the storage's")

    monkeypatch.setattr(service, "check_clock_skew", refuse)


@pytest.mark.usefixtures("clock_ahead")
@pytest.mark.parametrize("inline", ["true", "false"])
def test_a_write_goes_on_where_ttl_fails(inline: str) -> None:
    made = table(**{RUN_INLINE: inline, TRIGGER_VALUE: "1"})
    made.upsert([row("a", day=OLD)])
    made.clock.sleep(8 * DAY)
    with pytest.warns(RuntimeWarning, match="the clock of this machine is ahead"):
        commit = made.upsert([row("b", day=NEW)])
    assert any(
        isinstance(outcome, Skip) and "ahead" in outcome.reason for outcome in commit.services
    )
    assert [record["id"] for record in made.rows()] == ["a", "b"]


@pytest.mark.usefixtures("clock_ahead")
def test_a_write_fails_where_ttl_fails_if_configured() -> None:
    made = table(**{TRIGGER_VALUE: "1"})
    made.upsert([row("a", day=OLD)])
    made.clock.sleep(8 * DAY)
    strict = {"hoodie.fail.writes.on.inline.table.service.exception": "true"}
    with pytest.raises(UnavailableError, match="do not repeat it; the ttl after it") as failed:
        made.upsert([row("b", day=NEW)], strict)
    # A caller that retries every UnavailableError would insert the rows twice.
    assert not failed.value.retryable
    copied = pickle.loads(pickle.dumps(failed.value))
    assert (copied.committed, copied.retryable) == (failed.value.committed, False)
    assert len(made.rows()) == 2


def test_ttl_that_is_not_inline_follows_a_clean() -> None:
    made = table(**{RUN_INLINE: "false"})
    made.upsert([row("a", day=OLD)])
    for n in range(1, 4):
        made.upsert([row("b", n, day=NEW)])
    made.clock.sleep(8 * DAY)
    cleaned = made.services(CLEAN).run("clean")
    assert isinstance(cleaned, Commit)
    # Both are as old; the clean itself has only deleted a version of the second.
    assert deleted_partitions(cleaned) == [(OLD, NEW)]


@pytest.mark.parametrize("days", ["7", "-1"], ids=["on", "off"])
def test_the_keys_of_hudi_run_ttl_after_each_write(days: str) -> None:
    made = WrittenTable(options=NO_SERVICES).create()
    hudi = {
        "hoodie.partition.ttl.inline": "true",
        "hoodie.partition.ttl.strategy.days.retain": days,
    }
    made.upsert([row("a", day=OLD)])
    made.clock.sleep(8 * DAY)
    assert deleted_partitions(made.upsert([row("b", day=NEW)], hudi)) == (
        [(OLD,)] if days == "7" else []
    )
