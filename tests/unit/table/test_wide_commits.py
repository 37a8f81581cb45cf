"""Commits of many files: what is done before the lock is taken, and what is read of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.timeline_metadata import (
    encode_commit,
    format_commit,
    format_replace_commit,
    parse_commit,
    parse_commit_notes,
    parse_file_ids,
)
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.table import snapshot as snapshot_module
from lakewright.table import transaction as transaction_module
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.transaction import TransactionManager
from support.tables import NO_SERVICES, WrittenTable, begin_action, row

STAT = WriteStat(file_id="f-0", path="p/f-0_0-0-0_1.parquet", num_writes=1, cdc_stats={"p/c": 3})
PLAIN = {
    "nothing": CommitMetadata(),
    "files and notes": CommitMetadata(
        stats={"p": (STAT, replace(STAT, file_id="g-0", log_files=(".l",))), "q": (STAT,)},
        operation="UPSERT",
        extra={"schema": "{}", "note": "ü"},
        version=1,
    ),
    "statistics without a file id": CommitMetadata(stats={"p": (WriteStat(),)}, compacted=True),
}
REPLACING = {
    **PLAIN,
    "replaced groups": CommitMetadata(
        stats={"p": (STAT,)},
        operation="CLUSTER",
        extra={"note": "n"},
        replaced={"p": ("r-0", "s-0"), "q": ("t-0",)},
    ),
}
CASES = [
    *(pytest.param(value, False, id=f"commit: {name}") for name, value in PLAIN.items()),
    *(pytest.param(value, True, id=f"replacecommit: {name}") for name, value in REPLACING.items()),
]


def formatted(value: CommitMetadata, replaces: bool) -> bytes:
    return (format_replace_commit if replaces else format_commit)(value)


@pytest.mark.parametrize("extra", [{}, {"added": "under the lock", "schema": "{}"}])
@pytest.mark.parametrize(("value", "replaces"), CASES)
def test_a_commit_that_was_encoded_before_its_notes_is_the_same_file(
    value: CommitMetadata, replaces: bool, extra: dict[str, str]
) -> None:
    encoded = encode_commit(value, replaces=replaces).with_extra(extra)
    assert encoded == formatted(replace(value, extra=extra), replaces)


@pytest.mark.parametrize(("value", "replaces"), CASES)
def test_a_part_of_a_commit_is_what_the_whole_says(value: CommitMetadata, replaces: bool) -> None:
    data = formatted(value, replaces)
    whole = parse_commit(data)
    notes = parse_commit_notes(data)
    assert (notes.operation, notes.extra, notes.schema) == (
        whole.operation,
        whole.extra,
        whole.schema,
    )
    assert parse_file_ids(data) == whole.file_ids()


@pytest.mark.parametrize("parse", [parse_commit_notes, parse_file_ids])
def test_a_part_of_a_commit_that_is_cut_off_is_damaged(parse: Callable[[bytes], Any]) -> None:
    data = format_commit(PLAIN["files and notes"])
    for end in range(4, len(data)):
        with pytest.raises(CorruptError):
            parse(data[:end])


def test_only_a_replacecommit_replaces() -> None:
    with pytest.raises(InvalidError):
        encode_commit(REPLACING["replaced groups"], replaces=False)


@pytest.mark.parametrize("operation", ["UPSERT", "INSERT_OVERWRITE"])
def test_a_commit_is_encoded_before_the_lock_is_taken(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    run_locked = TransactionManager.run_locked

    def recorded_encode(*arguments: Any, **named: Any) -> Any:
        events.append("encoded")
        return encode_commit(*arguments, **named)

    def recorded_lock(manager: TransactionManager, work: Callable[..., Any]) -> Any:
        events.append("locked")
        try:
            return run_locked(manager, work)
        finally:
            events.append("released")

    table = WrittenTable(options=NO_SERVICES).create()
    monkeypatch.setattr(transaction_module, "encode_commit", recorded_encode)
    monkeypatch.setattr(TransactionManager, "run_locked", recorded_lock)
    table.write(operation, [row("a")])
    assert events == ["locked", "released", "encoded", "locked", "released"]


@pytest.mark.parametrize("operation", ["UPSERT", "INSERT", "BULK_INSERT", "DELETE"])
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_write_and_a_query_parse_no_statistics_of_the_newest_commit(
    table_type: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = WrittenTable(options=NO_SERVICES).create(table_type)
    table.upsert([row("a"), row("b")])

    def refused(data: bytes) -> CommitMetadata:
        raise AssertionError("the whole commit was parsed")

    monkeypatch.setattr(snapshot_module, "parse_commit", refused)
    table.write(operation, [row("a", 2, "second")])
    assert load_snapshot(table.storage).avro_schema() is not None
    assert "a" in [record["id"] for record in table.rows()] or operation == "DELETE"


@dataclass
class NeverPrepared:
    """A validator that finds another write to compare with each time it is asked."""

    events: list[str]

    def is_prepared(self, current: Snapshot) -> bool:
        return False

    def prepare(self, current: Snapshot) -> None:
        self.events.append("prepared")

    def validate(self, current: Snapshot) -> None:
        self.events.append("validated")


def test_a_validator_for_which_others_are_too_fast_reads_under_the_lock_in_the_end() -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    events: list[str] = []
    transaction = begin_action(TransactionManager(table.storage, table.clock), "commit")
    with transaction:
        transaction.commit(CommitMetadata(), validators=[NeverPrepared(events)])
    assert events == ["prepared", "prepared", "prepared", "validated"]
