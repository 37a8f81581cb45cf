"""What readers fetch of a long history: as much for ten thousand instants more as for none."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lakewright.format.archived_file import (
    METADATA,
    ArchivedInstant,
    Selection,
    format_archived_file,
)
from lakewright.format.archived_timeline import (
    VERSION_FILE,
    ArchivedTimelineFile,
    Manifest,
    archived_file_of,
    format_manifest,
    format_version,
    manifest_name,
)
from lakewright.format.timeline_metadata import format_commit
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.instant import Action, Instant
from lakewright.scan.planner import EARLIEST, plan_changes, plan_range
from lakewright.scan.stream_offsets import (
    LATEST,
    StreamStart,
    batch_context,
    newest_completion,
    next_offset,
)
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.archived_timeline import load_archived_metadata, load_entries
from lakewright.table.snapshot import Snapshot, load_snapshot
from support.byte_counts import ByteCountingStorage
from support.tables import TIMELINE, BuiltTable, versions

HISTORY = f"{TIMELINE}/history"
FIRST = 20250101000000000
# Both are in one file that is too large to be read whole.
SHORT, LONG = 4_000, 14_000


def archived_at(number: int) -> Instant:
    """The archived commit of a number; every hundredth completes late, after the next one."""
    late = 3 if number % 100 == 99 else 1
    at = FIRST + 2 * number
    return Instant(str(at), Action.COMMIT, completed_at=str(at + late))


def entries(count: int) -> list[ArchivedInstant]:
    """Commits with metadata that no compressor shrinks, and a rollback in the middle of each."""
    noise = random.Random(1)
    made = []
    for number in range(count):
        commit = archived_at(number)
        extra = {"schema": "{}", "noise": noise.randbytes(200).hex()}
        content = format_commit(CommitMetadata(extra=extra))
        made.append(
            ArchivedInstant(commit.requested_at, commit.completed_at or "", "commit", content)
        )
    middle = str(FIRST + count + 1)
    return [*made, ArchivedInstant(middle, middle + "1", "rollback", b"undone")]


def with_history(archived: list[ArchivedInstant], *others: list[ArchivedInstant]) -> Storage:
    """A table of three commits whose history is in these files, the first of which is large."""
    built = BuiltTable()
    built.write({("d1", "f"): versions(a=0)})
    built.write({("d1", "f"): versions(a=1)})
    files: list[ArchivedTimelineFile] = []
    for level, content in enumerate((archived, *others)):
        file, data = archived_file_of(content, level), format_archived_file(content)
        files.append(ArchivedTimelineFile(file.first, file.last, level, len(data)))
        built.storage.create(f"{HISTORY}/{file.name}", data)
    built.storage.create(f"{HISTORY}/{manifest_name(1)}", format_manifest(Manifest((*files,))))
    built.storage.create(f"{HISTORY}/{VERSION_FILE}", format_version(1))
    return built.storage


@pytest.fixture(scope="module")
def short() -> Storage:
    return with_history(entries(SHORT))


@pytest.fixture(scope="module")
def long() -> Storage:
    return with_history(entries(LONG))


def middle_of(snapshot: Snapshot) -> int:
    (file,) = snapshot.storage.list_files(HISTORY)[:1]
    last = int(ArchivedTimelineFile.parse(file.name).last)
    return (last - FIRST) // 4


def one_commit(snapshot: Snapshot) -> object:
    (commit,) = snapshot.commits([archived_at(middle_of(snapshot))])
    assert commit.extra["noise"]
    return commit


def completions(snapshot: Snapshot) -> object:
    asked = [archived_at(middle_of(snapshot) + n) for n in range(3)]
    found = snapshot.archived_completions([i.requested_at for i in asked])
    assert found == {i.requested_at: i.completed_at for i in asked}
    return found


def hour(snapshot: Snapshot) -> object:
    middle = middle_of(snapshot)
    since, until = (archived_at(middle + n).completed_at or "" for n in (1, 61))
    found = snapshot.archived_after(since, until=until)
    near = map(archived_at, range(middle - 100, middle + 100))
    assert set(found) == {i for i in near if since <= (i.completed_at or "") <= until}
    return found


def requested_between(snapshot: Snapshot) -> object:
    first, last = (archived_at(middle_of(snapshot) + n).requested_at for n in (1, 61))
    found = snapshot.archived_between(first, last)
    assert len(found) == 61
    return found


def rollbacks(snapshot: Snapshot) -> object:
    found = list(
        load_archived_metadata(snapshot.storage, HISTORY, {Action.ROLLBACK}, lambda data: data)
    )
    assert [data for _, data in found] == [b"undone"]
    return found


def last_hour(snapshot: Snapshot) -> object:
    newest = snapshot.timeline.by_completion[0]
    return plan_changes(snapshot, since=newest.completed_at)


def everything(snapshot: Snapshot) -> object:
    scan = plan_changes(snapshot)
    assert scan.plan.slices
    assert scan.context.checkpoint == snapshot.timeline.by_completion[-1].completed_at
    return scan


def stream(start: StreamStart) -> Callable[[Snapshot], object]:
    def first_batch(snapshot: Snapshot) -> object:
        end = next_offset(start, snapshot, until=newest_completion(snapshot.timeline))
        assert end is not None
        context = batch_context(snapshot, start, end)
        return context and plan_range(context)

    return first_batch


JOBS: dict[str, Callable[[Snapshot], object]] = {
    "the metadata of one commit": one_commit,
    "the completion times of three commits": completions,
    "what completed in an hour": hour,
    "what was requested in an hour": requested_between,
    "the one rollback among commits": rollbacks,
    "the changes since an active commit": last_hour,
    "all rows, as changes since the beginning": everything,
    "a new stream from the latest commit on": stream(StreamStart(LATEST)),
    "a new stream from the beginning": stream(StreamStart(EARLIEST)),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_a_longer_history_costs_no_more(
    job: Callable[[Snapshot], object], short: Storage, long: Storage
) -> None:
    costs = []
    for storage in (short, long):
        counting = ByteCountingStorage(storage)
        job(load_snapshot(counting))
        costs.append((counting.calls, counting.bytes_read))
    (calls, bytes_read), (calls_long, bytes_read_long) = costs
    assert calls_long == calls
    # A row group more or less, at the edge of a range.
    assert bytes_read_long < 1.3 * bytes_read
    assert sum(calls.values()) < 20


def test_times_and_actions_are_read_without_content(long: Storage) -> None:
    counting = ByteCountingStorage(long)
    assert len(load_entries(counting, HISTORY)) == LONG + 1
    size = max(file.size for file in long.list_files(HISTORY))
    assert counting.bytes_read < size / 5


def test_a_file_of_another_size_than_its_manifest_says_is_read_whole(short: Storage) -> None:
    (file, *_) = short.list_files(HISTORY)
    parsed = ArchivedTimelineFile.parse(file.name, file.size + 5)
    other = MemoryStorage.fresh({f"{HISTORY}/{file.name}": short.read(file.path)})
    other.create(f"{HISTORY}/{manifest_name(1)}", format_manifest(Manifest((parsed,))))
    assert load_entries(other, HISTORY) == load_entries(short, HISTORY)


def test_files_that_overlap_are_read_in_the_order_of_requested_times() -> None:
    one, other = entries(3_500)[:3_500:2], entries(3_500)[1:3_500:2]
    storage = with_history(one, other)
    with_content = Selection(content=(METADATA,))
    assert load_entries(storage, HISTORY, with_content) == sorted(
        [*one, *other], key=lambda entry: entry.requested_at
    )


def test_what_is_read_goes_on_where_a_merge_has_deleted_a_file() -> None:
    """The merged file has all instants; none is read twice, and none is left out."""
    old, new = entries(3_000)[:3_000], entries(6_000)[3_000:6_000]
    storage = with_history(old, new)
    merged = with_history([*old, *new])
    reading = load_archived_metadata(storage, HISTORY, {Action.COMMIT}, lambda data: data)
    read = [next(reading)[0].requested_at for _ in range(1_500)]
    storage.delete_many(file.path for file in storage.list_files(HISTORY))
    for file in merged.list_files(HISTORY):
        storage.create(file.path, merged.read(file.path))
    read += [instant.requested_at for instant, _ in reading]
    assert read == [entry.requested_at for entry in (*old, *new)]
