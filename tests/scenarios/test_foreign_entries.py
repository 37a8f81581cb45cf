"""What others put into the folder of a table: links that lead out of it, names that are no paths.

Nothing outside of the table is touched, and the table stays readable.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lakewright.client.write_client import WriteClient
from lakewright.clock import SystemClock
from lakewright.errors import InvalidError
from lakewright.model.instant import Action, Instant, State
from lakewright.storage.local import LocalStorage
from lakewright.table.doctor.doctor import examine, repair
from lakewright.table.doctor.findings import FindingKind, Severity
from lakewright.table.markers import MarkerKind, create_marker
from lakewright.table.properties import update_properties
from lakewright.table.snapshot import load_snapshot
from support.tables import NO_SERVICES, WrittenTable, row

DAY = "2026-01-01"


def made(folder: Path) -> WrittenTable:
    table = WrittenTable(storage=LocalStorage(str(folder), durable=False), options=NO_SERVICES)
    table.create()
    table.upsert([row("k0", day=DAY), row("k1", day=DAY)])
    return table


@pytest.fixture
def table(tmp_path: Path) -> WrittenTable:
    return made(tmp_path / "tables" / "t")


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A foreign folder next to the table."""
    folder = tmp_path / "others"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("x")
    (folder / "sub" / "b.txt").write_text("y")
    return folder


def entries(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that is in a folder: kinds, times and bytes."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in [folder, *folder.rglob("*")]
    }


def link_metadata_folder(table: WrittenTable, others: Path) -> None:
    update_properties(
        table.storage, lambda old: {**old, "hoodie.table.metadata.partitions": "files"}
    )
    os.symlink(others, path_of(table) / ".hoodie/metadata")


def path_of(table: WrittenTable) -> Path:
    assert isinstance(table.storage, LocalStorage)
    return Path(table.storage.folder)


@pytest.mark.filterwarnings("ignore:.*symbolic link")
@pytest.mark.parametrize("by", ["a write", "the doctor"])
def test_nothing_is_written_through_a_linked_metadata_folder(
    table: WrittenTable, others: Path, by: str
) -> None:
    link_metadata_folder(table, others)
    before = entries(others)
    if by == "a write":
        table.upsert([row("k2", day=DAY)])
    else:
        writer = table.writer().writer()
        assert repair(writer, examine(table.storage, writer.clock)).is_healthy
    assert entries(others) == before
    assert not (path_of(table) / ".hoodie/metadata").is_symlink()


@pytest.fixture
def hostile(table: WrittenTable, tmp_path: Path) -> WrittenTable:
    """A table whose partition `x` is that of another table, and which pretends to be writing it."""
    victim = made(tmp_path / "victim")
    instant = load_snapshot(victim.storage).timeline.completed_writes[-1].requested_at
    os.symlink(tmp_path / "victim" / DAY, path_of(table) / "x")
    snapshot = load_snapshot(table.storage)
    for state in (State.REQUESTED, State.INFLIGHT):
        path = snapshot.timeline_path(Instant(f"{int(instant) + 5}", Action.COMMIT, state))
        table.storage.create(path, b"")
    base = next((tmp_path / "victim" / DAY).glob("*.parquet"))
    base.rename(base.with_name(base.name.replace(instant, f"{int(instant) + 5}")))
    return table


def pending(table: WrittenTable) -> str:
    (instant,) = load_snapshot(table.storage).timeline.pending()
    return instant.requested_at


@pytest.mark.filterwarnings("ignore:.*symbolic link")
def test_a_rollback_does_not_search_behind_a_link(hostile: WrittenTable, tmp_path: Path) -> None:
    before = entries(tmp_path / "victim")
    WriteClient.create(hostile.storage, {}, hostile.clock).rollback(pending(hostile))
    assert entries(tmp_path / "victim") == before
    assert len(hostile.rows()) == 2


@pytest.mark.filterwarnings("ignore:.*symbolic link")
def test_a_marker_of_a_file_behind_a_link_is_refused(hostile: WrittenTable, tmp_path: Path) -> None:
    before = entries(tmp_path / "victim")
    name = next((tmp_path / "victim" / DAY).glob("*.parquet")).name
    create_marker(hostile.storage, pending(hostile), f"x/{name}", MarkerKind.CREATE)
    with pytest.raises(InvalidError, match="symbolic link"):
        WriteClient.create(hostile.storage, {}, hostile.clock).rollback(pending(hostile))
    assert entries(tmp_path / "victim") == before


@pytest.mark.filterwarnings("ignore:.*symbolic link")
def test_a_partition_behind_a_link_is_not_written(table: WrittenTable, others: Path) -> None:
    os.symlink(others, path_of(table) / "2026-01-02")
    before = entries(others)
    with pytest.raises(InvalidError, match="symbolic link"):
        table.upsert([row("k9", day="2026-01-02")])
    assert entries(others) == before
    assert len(table.rows()) == 2


@pytest.mark.filterwarnings("ignore:.*symbolic link")
def test_the_doctor_names_what_is_passed_over(table: WrittenTable, others: Path) -> None:
    os.symlink(others, path_of(table) / "linked")
    os.mkdir(os.fsencode(path_of(table)) + b"/\xff\xfe")
    (path_of(table) / DAY / "a\x1b[2Jb").write_text("")
    report = examine(table.storage, SystemClock())
    named = {
        finding.target: finding
        for finding in report.findings
        if finding.kind is FindingKind.PASSED_OVER
    }
    assert sorted(named) == [f"{DAY}/a\\x1b[2Jb", "\\xff\\xfe", "linked"]
    assert {finding.severity for finding in named.values()} == {Severity.WARNING}
    assert "symbolic link" in named["linked"].message


def test_names_that_are_no_paths_do_no_harm(table: WrittenTable) -> None:
    for name in (b"\xff\xfe", b"a\nb", DAY.encode() + b"/\x01", b".hoodie/timeline/\xff"):
        os.mkdir(os.fsencode(path_of(table)) + b"/" + name)
    table.upsert([row("k2", day=DAY), row("k3", day="2026-01-02")])
    assert [record["id"] for record in table.rows()] == ["k0", "k1", "k2", "k3"]
    assert table.services({"hoodie.clean.commits.retained": "1"}).run("clean") is not None
    shutil.rmtree(path_of(table))
