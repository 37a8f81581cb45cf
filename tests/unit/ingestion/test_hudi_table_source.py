"""A table as a source: what a batch holds and where the next one goes on, in exact numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.ingestion.checkpoints import INITIAL, Checkpoint, Version
from lakewright.ingestion.hudi_table import (
    HoodieSourceIncrementalQueryRunner,
    HudiTableSource,
    TableBatch,
)
from lakewright.ingestion.options import TABLE_SOURCE_KEYS, TableSourceSettings
from lakewright.ingestion.source import source_kind
from lakewright.ingestion.splitters import BoundedLoad, splitter_for
from lakewright.model.instant import Action, Instant, State
from lakewright.options import settings_from
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from lakewright.write.task import Operation
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
STRATEGY = "hoodie.streamer.source.hoodieincr.missing.checkpoint.strategy"
INSTANTS = "hoodie.streamer.source.hoodieincr.num_instants"
LATEST = {STRATEGY: "READ_LATEST"}
ALL = {STRATEGY: "READ_UPTO_LATEST_COMMIT"}
MAX_ROWS = "lakewright.source.snapshotload.max.rows"
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
COMPACT = {
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "1",
}
FEW = {
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.clean.commits.retained": "1",
    "hoodie.commits.archival.batch": "1",
}


@dataclass
class Feed:
    """A table that is written to, and what a consumer gets of it."""

    kind: str
    buckets: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    table: WrittenTable = field(init=False)
    writes: list[Instant] = field(default_factory=list)
    _keys: int = 0

    def __post_init__(self) -> None:
        # With buckets a merge-on-read table takes all rows into log files.
        buckets = BUCKETS if self.buckets and self.kind == "MERGE_ON_READ" else {}
        self.table = WrittenTable(options={**NO_SERVICES, **buckets, **self.options}).create(
            self.kind
        )

    def insert(self, count: int, operation: Operation = Operation.UPSERT) -> Instant:
        """New keys."""
        first, self._keys = self._keys, self._keys + count
        return self.write((row(f"k{n:05d}") for n in range(first, first + count)), operation)

    def update(self, first: int, count: int, ts: int) -> Instant:
        """New versions of the keys from a number on."""
        return self.write(row(f"k{n:05d}", ts) for n in range(first, first + count))

    def write(
        self, rows: Iterable[dict[str, object]], operation: Operation = Operation.UPSERT
    ) -> Instant:
        commit = self.table.write(operation, rows)
        instant = Instant(commit.instant, Action(commit.action), completed_at=commit.completed_at)
        self.writes.append(instant)
        return instant

    def serve(self, service: str, options: Mapping[str, str]) -> Commit:
        """Run a service, and see that it did something."""
        commit = self.table.services(options).run(service)
        assert isinstance(commit, Commit), commit
        return commit

    def schedule(self, service: str, options: Mapping[str, str]) -> None:
        assert isinstance(self.table.services(options).schedule(service), Instant)

    def reopen(self, index: int) -> Callable[..., Instant]:
        """Make a write inflight again, as if it had not ended yet; the answer ends it, later."""
        instant = self.writes[index]
        path = f".hoodie/timeline/{instant.file_name}"
        data = self.table.storage.read(path)
        self.table.storage.delete(path)

        def end(at: str | None = None) -> Instant:
            now = str(1 + max(int(i.completed_at or 0) for i in self.timeline()))
            late = replace(instant, completed_at=at or now)
            self.table.storage.create(f".hoodie/timeline/{late.file_name}", data)
            self.writes[index] = late
            return late

        return end

    def timeline(self) -> tuple[Instant, ...]:
        return load_snapshot(self.table.storage).timeline.completed_writes

    def pull(
        self, after: Checkpoint | None, options: Mapping[str, str] | None = None
    ) -> TableBatch[pa.Table]:
        """The next batch, read in a plain loop."""
        source_options, storage = options or {}, self.table.storage
        settings = settings_from(TableSourceSettings, source_options)
        runner = HoodieSourceIncrementalQueryRunner(
            load_snapshot(storage),
            after,
            settings,
            lambda plan: read_plan(storage, plan),
            splitter_for(source_options),
        )
        return runner.run()


def at(instant: Instant) -> Checkpoint:
    """The checkpoint of a reader of all that completed up to an instant."""
    return Checkpoint(instant.completed_at or "", Version.V2)


def requested(instant: Instant) -> Checkpoint:
    """A checkpoint of the old kind: of a reader of all that was requested up to an instant."""
    return Checkpoint(instant.requested_at, Version.V1)


def count(batch: TableBatch[pa.Table]) -> int:
    return 0 if batch.rows is None else len(batch.rows)


Case = tuple[int | str | None, dict[str, str], int, int]


def check(feed: Feed, after: int | str | None, options: dict[str, str], rows: int, to: int) -> None:
    """Read from a write on (by number), and compare rows and checkpoint."""
    checkpoint = None if after is None else Checkpoint(INITIAL, Version.V2)
    if isinstance(after, int):
        checkpoint = at(feed.writes[after])
    batch = feed.pull(checkpoint, options)
    assert count(batch) == rows
    assert batch.checkpoint == at(feed.writes[to])


# Five inserts, numbered from 0; the first is archived, older versions of files are cleaned.
GROWING: dict[str, Case] = {
    "from the beginning all rows come": (None, ALL, 570, 4),
    "the initial checkpoint is the beginning": ("zero", {}, 570, 4),
    "from an archived insert what came after it": (0, ALL, 472, 4),
    "from the fourth insert the fifth": (3, ALL, 130, 4),
    "without a checkpoint the latest alone": (None, LATEST, 130, 4),
    "an older way to ask for the latest": (
        None, {"hoodie.deltastreamer.source.hoodieincr.read_latest_on_missing_ckpt": "true"},
        130, 4),
    "at the end nothing, and the checkpoint stays": (4, LATEST, 0, 4),
    "as many inserts as are allowed": (1, {INSTANTS: "2"}, 236, 3),
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def growing(request: pytest.FixtureRequest) -> Feed:
    feed = Feed(request.param)
    for number, rows in enumerate((98, 106, 114, 122, 130)):
        feed.insert(rows)
        if number == 2 and feed.kind == "MERGE_ON_READ":
            feed.serve("compaction", COMPACT)
    feed.serve("clean", FEW)
    feed.serve("archive", {**FEW, **COMPACT})
    archived = {i.requested_at for i in load_snapshot(feed.table.storage).archived}
    assert feed.writes[0].requested_at in archived
    assert feed.writes[4].requested_at not in archived
    return feed


@pytest.mark.parametrize(("after", "options", "rows", "to"), GROWING.values(), ids=list(GROWING))
def test_inserts(
    growing: Feed, after: int | str | None, options: dict[str, str], rows: int, to: int
) -> None:
    check(growing, after, options, rows, to)


@pytest.mark.parametrize("kind", KINDS)
def test_a_further_insert_comes_alone_and_moves_the_checkpoint(kind: str) -> None:
    feed = Feed(kind)
    feed.insert(130)
    check(feed, 0, LATEST, 0, 0)
    feed.insert(168)
    check(feed, 0, LATEST, 168, 1)


@pytest.mark.parametrize(("after", "rows"), [(0, 472), (3, 130)])
def test_a_checkpoint_of_the_old_kind_leads_to_the_same_rows_and_one_of_the_new(
    growing: Feed, after: int, rows: int
) -> None:
    checkpoint = replace(requested(growing.writes[after]), reset="what the user said")
    batch = growing.pull(checkpoint)
    assert count(batch) == rows
    assert batch.checkpoint == replace(at(growing.writes[4]), reset="what the user said")


def test_a_source_without_new_commits_keeps_an_old_checkpoint(growing: Feed) -> None:
    checkpoint = replace(requested(growing.writes[4]), reset="what the user said")
    batch = growing.pull(checkpoint)
    assert batch.rows is None
    assert batch.checkpoint == checkpoint


# Six inserts of 100 rows; the fourth from 0 on is still inflight, the fifth has completed.
HOLLOW: dict[str, Case] = {
    "from the beginning all that has completed": (None, ALL, 500, 5),
    "from the first insert": (0, ALL, 400, 5),
    "from the third": (2, ALL, 200, 5),
    "the latest alone": (None, LATEST, 100, 5),
    "at the end nothing": (5, LATEST, 0, 5),
}


def hollow(kind: str) -> tuple[Feed, Callable[..., Instant]]:
    # Else the last insert would have taken over rows of a write that has not completed.
    feed = Feed(kind, options={"hoodie.parquet.small.file.limit": "0"})
    for _ in range(6):
        feed.insert(100)
    return feed, feed.reopen(4)


@pytest.fixture(scope="module", params=KINDS)
def with_inflight(request: pytest.FixtureRequest) -> Feed:
    feed, _ = hollow(request.param)
    states = [i.state for i in load_snapshot(feed.table.storage).timeline]
    assert states == [State.COMPLETED] * 4 + [State.INFLIGHT, State.COMPLETED]
    return feed


@pytest.mark.parametrize(("after", "options", "rows", "to"), HOLLOW.values(), ids=list(HOLLOW))
def test_an_inflight_insert_blocks_no_writer(
    with_inflight: Feed, after: int | str | None, options: dict[str, str], rows: int, to: int
) -> None:
    check(with_inflight, after, options, rows, to)


@pytest.mark.parametrize("kind", KINDS)
def test_an_insert_that_completes_last_is_read_by_those_before_and_behind_it(kind: str) -> None:
    feed, end = hollow(kind)
    first = feed.pull(at(feed.writes[3]))
    assert count(first) == 100
    late = end()
    assert late.requested_at < feed.writes[5].requested_at
    check(feed, 3, LATEST, 200, 4)
    second = feed.pull(first.checkpoint)
    assert count(second) == 100
    assert second.rows is not None
    assert min(second.rows["id"].to_pylist()) == "k00400"
    assert second.checkpoint == at(late)
    assert feed.pull(second.checkpoint).rows is None


CLUSTER = {"hoodie.clustering.inline.max.commits": "1", "hoodie.clustering.async.max.commits": "1"}
# Seven batches: four bulk inserts, two updates of the last of them, one more bulk insert.
SERVED: dict[str, Case] = {
    "all rows": (None, ALL, 500, 6),
    "from the third batch": (2, ALL, 200, 6),
    "the latest alone": (None, LATEST, 100, 6),
    "at the end nothing": (6, LATEST, 0, 6),
    "a splitter takes the first batch only": (None, {**ALL, MAX_ROWS: "1"}, 100, 0),
}


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest) -> Feed:
    """Services wait in the middle of it."""
    feed = Feed(request.param, buckets=False)
    is_cow = feed.kind == "COPY_ON_WRITE"
    for number in range(6):
        if number < 4:
            feed.insert(100, Operation.BULK_INSERT)
        else:
            feed.update(300, 100, number)
        if number == 4 and not is_cow:
            feed.schedule("compaction", COMPACT)
        if number == (2 if is_cow else 5):
            feed.schedule("clustering", CLUSTER)
    feed.insert(100, Operation.BULK_INSERT)
    pending = load_snapshot(feed.table.storage).timeline.pending()
    assert [i.action for i in pending] == (
        ["clustering"] if is_cow else ["compaction", "clustering"]
    )
    return feed


@pytest.mark.parametrize(("after", "options", "rows", "to"), SERVED.values(), ids=list(SERVED))
def test_pending_services_block_no_writer(
    served: Feed, after: int | str | None, options: dict[str, str], rows: int, to: int
) -> None:
    check(served, after, options, rows, to)


# Three inserts of 100 rows.
SPLIT: dict[str, Case] = {
    "one row is reached with the first insert": (None, {**ALL, MAX_ROWS: "1"}, 100, 0),
    "101 rows are reached with the second": (None, {**ALL, MAX_ROWS: "101"}, 200, 1),
    "10001 rows are not reached": (None, {**ALL, MAX_ROWS: "10001"}, 300, 2),
    "from the first insert on it is no load any more": (0, {**ALL, MAX_ROWS: "101"}, 200, 2),
    "from the second": (1, {**ALL, MAX_ROWS: "101"}, 100, 2),
    "from the third": (2, {**ALL, MAX_ROWS: "101"}, 0, 2),
    "by bytes": (None, {**ALL, "lakewright.source.snapshotload.max.bytes": "1"}, 100, 0),
}


@pytest.fixture(scope="module", params=KINDS)
def three(request: pytest.FixtureRequest) -> Feed:
    feed = Feed(request.param)
    for _ in range(3):
        feed.insert(100)
    return feed


@pytest.mark.parametrize(("after", "options", "rows", "to"), SPLIT.values(), ids=list(SPLIT))
def test_a_load_is_split(
    three: Feed, after: int | str | None, options: dict[str, str], rows: int, to: int
) -> None:
    check(three, after, options, rows, to)


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_load_goes_on_through_history_and_brings_every_row_once(kind: str) -> None:
    feed = Feed(kind)
    for _ in range(9):
        feed.insert(10)
    feed.serve("archive", {**FEW, **COMPACT})
    options, after = {**ALL, MAX_ROWS: "25", INSTANTS: "1"}, None
    sizes, keys = [], []
    while (batch := feed.pull(after, options)).rows is not None:
        sizes.append(count(batch))
        keys += batch.rows["id"].to_pylist()
        assert after is None or batch.checkpoint is None or batch.checkpoint.text > after.text
        after = batch.checkpoint
    # Three inserts reach 25 rows; what is not in history comes one by one.
    assert sizes[:2] == [30, 30]
    assert set(sizes[2:]) == {10}
    assert len(keys) == len(set(keys)) == 90
    assert after == at(feed.writes[-1])


SERVICES = {
    "clustering": ("COPY_ON_WRITE", CLUSTER),
    "compaction": ("MERGE_ON_READ", COMPACT),
    "logcompaction": ("MERGE_ON_READ", COMPACT),
}


@pytest.mark.parametrize("service", SERVICES)
def test_services_bring_no_rows_and_make_no_batch(service: str) -> None:
    kind, options = SERVICES[service]
    feed = Feed(kind)
    for _ in range(3):
        feed.insert(10)
    commit = feed.serve(service, options)
    assert feed.pull(at(feed.writes[-1])) == TableBatch(
        None,
        at(feed.writes[-1]),
        {"bytes": 0, "instants": 0, "instants_waiting": 0, "lag_ms": 0},
    )
    latest = feed.pull(None, LATEST)
    assert count(latest) == 10
    assert latest.checkpoint == Checkpoint(commit.completed_at, Version.V2)
    for _ in range(3):
        feed.insert(10)
    # The service does not count, and is passed over with the write before it.
    batch = feed.pull(at(feed.writes[1]), {INSTANTS: "1"})
    assert (count(batch), batch.checkpoint) == (10, Checkpoint(commit.completed_at, Version.V2))
    assert batch.facts["instants"] == 2
    assert batch.facts["instants_waiting"] == 3


def out_of_order(kind: str) -> Feed:
    """Four inserts; those requested second and third completed last, the third before the second.

    In the order of completion they are 0, 3, 2, 1.
    """
    feed = Feed(kind, options={"hoodie.parquet.small.file.limit": "0"})
    for rows in (1, 2, 4, 8):
        feed.insert(rows)
    second, third = feed.reopen(1), feed.reopen(2)
    third()
    second()
    return feed


# Which rows a consumer gets, and when the last of them completed: by the numbers of the inserts.
OLD_KINDS = {
    "what was requested later and completed earlier is not lost": (1, "5", 4 + 8, 1),
    "however few instants a batch may have": (1, "1", 4 + 8, 1),
    "what was requested earlier and completed later is read once more": (3, "5", 2 + 4, 1),
    "nothing remains of an insert that was first in both orders": (0, "5", 2 + 4 + 8, 1),
    "in the middle": (2, "5", 2 + 8, 1),
    "in the middle, a batch ends where all that was read before lies behind it": (2, "1", 8, 2),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("after", "most", "rows", "to"), OLD_KINDS.values(), ids=list(OLD_KINDS))
def test_an_old_checkpoint_where_writes_completed_out_of_order(
    kind: str, after: int, most: str, rows: int, to: int
) -> None:
    feed = out_of_order(kind)
    batch = feed.pull(requested(feed.writes[after]), {INSTANTS: most})
    assert (count(batch), batch.checkpoint) == (rows, at(feed.writes[to]))


def test_an_old_checkpoint_in_history_where_a_load_is_split() -> None:
    feed = out_of_order("COPY_ON_WRITE")
    for _ in range(5):
        feed.insert(1)
    feed.serve("archive", FEW)
    archived = {i.requested_at for i in load_snapshot(feed.table.storage).archived}
    assert {i.requested_at for i in feed.writes[:4]} <= archived
    batch = feed.pull(requested(feed.writes[1]), {MAX_ROWS: "1"})
    assert (count(batch), batch.checkpoint) == (4 + 8, at(feed.writes[1]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", ["1", "2", "3"])
def test_a_chain_brings_every_row_once_whatever_the_order_of_completion(
    kind: str, most: str
) -> None:
    feed = Feed(kind, options={"hoodie.parquet.small.file.limit": "0"})
    for rows in range(1, 9):
        feed.insert(rows)
    waiting = [feed.reopen(index) for index in (5, 1, 3)]
    keys: list[str] = []
    after = Checkpoint(INITIAL, Version.V2)
    while True:
        batch = feed.pull(after, {INSTANTS: most})
        if batch.rows is not None:
            keys += batch.rows["id"].to_pylist()
            assert batch.checkpoint is not None
            assert batch.checkpoint.text > after.text
            after = batch.checkpoint
        elif waiting:
            waiting.pop()()
        else:
            break
    assert sorted(keys) == [stored["id"] for stored in feed.table.rows()]


def test_writes_that_completed_at_the_same_time_are_read_together() -> None:
    feed = Feed("COPY_ON_WRITE", options={"hoodie.parquet.small.file.limit": "0"})
    for rows in (1, 2, 4, 8):
        feed.insert(rows)
    feed.reopen(1)(feed.writes[2].completed_at)
    batch = feed.pull(at(feed.writes[0]), {INSTANTS: "1"})
    assert (count(batch), batch.checkpoint) == (6, at(feed.writes[2]))


def test_an_empty_table_brings_nothing() -> None:
    feed = Feed("MERGE_ON_READ")
    batch = feed.pull(None, ALL)
    assert (batch.rows, batch.checkpoint) == (None, None)
    checkpoint = Checkpoint(INITIAL, Version.V1)
    assert feed.pull(checkpoint).checkpoint == checkpoint


def test_latest_of_an_empty_table_reads_all_that_comes() -> None:
    feed = Feed("MERGE_ON_READ")
    first = feed.pull(None, LATEST)
    assert first.rows is None
    feed.insert(3)
    feed.insert(4)
    assert count(feed.pull(first.checkpoint, LATEST)) == 7


def test_rows_of_writes_that_are_on_no_timeline_come_from_the_beginning() -> None:
    feed = Feed("COPY_ON_WRITE")
    feed.insert(10)
    feed.insert(10)
    feed.serve("clustering", CLUSTER)
    for write in feed.writes:
        feed.table.storage.delete(f".hoodie/timeline/{write.file_name}")
        for state in ("commit.requested", "inflight"):
            feed.table.storage.delete(f".hoodie/timeline/{write.requested_at}.{state}")
    assert count(feed.pull(None, ALL)) == 20


def test_without_checkpoint_and_strategy_it_is_an_error_that_names_both(three: Feed) -> None:
    with pytest.raises(InvalidError, match=r"READ_LATEST.*READ_UPTO_LATEST_COMMIT") as caught:
        three.pull(None)
    assert caught.value.facts["option"] == STRATEGY


WRONG = {
    "an offset of a stream": Checkpoint("topic,0:10,1:20", Version.V1),
    "an object in a commit": Checkpoint("20260101000000001#path/to/file.json", Version.V2),
    "a requested time that no timeline has": Checkpoint("20250101000000000", Version.V1),
    "a word": Checkpoint("earliest", Version.V2),
}


@pytest.mark.parametrize("checkpoint", WRONG.values(), ids=list(WRONG))
def test_a_checkpoint_of_another_kind_is_refused(three: Feed, checkpoint: Checkpoint) -> None:
    with pytest.raises(InvalidError, match=r"another kind of source|Unable to find completion"):
        three.pull(checkpoint, ALL)


def test_meta_columns_are_left_out_but_for_the_partition_path(three: Feed) -> None:
    drop = {"hoodie.streamer.source.hoodieincr.drop.all.meta.fields.from.source": "true"}
    for options, names in ((ALL, ["_hoodie_partition_path"]), ({**ALL, **drop}, [])):
        for after in (None, at(three.writes[0])):
            batch = three.pull(after, options)
            assert batch.rows is not None
            assert batch.rows.column_names == [*names, "id", "day", "ts", "note"]


def test_cleaned_writes_are_an_error_if_the_newest_files_may_not_stand_in() -> None:
    feed = Feed("COPY_ON_WRITE")
    for _ in range(4):
        feed.insert(10)
    feed.serve("clean", FEW)
    one = {INSTANTS: "1"}
    strict = {**one, "hoodie.datasource.read.incr.fallback.fulltablescan.enable": "false"}
    assert count(feed.pull(at(feed.writes[0]), one)) == 10
    with pytest.raises(InvalidError, match="cleaned"):
        feed.pull(at(feed.writes[0]), strict)
    assert count(feed.pull(at(feed.writes[2]), strict)) == 10


PREFIX = "hoodie.streamer.source.hoodieincr."
REFUSED = {
    "no path": ({STRATEGY: "READ_LATEST"}, InvalidError, "needs its path"),
    "a name that does not exist": (
        {f"{PREFIX}num_instant": "3"}, InvalidError, "no such option.*num_instants"),
    "a strategy that does not exist": (
        {STRATEGY: "READ_SOME"}, InvalidError, "READ_LATEST, READ_UPTO_LATEST_COMMIT"),
    "no instants": ({INSTANTS: "0"}, InvalidError, "1 or more"),
    "files of another format": (
        {f"{PREFIX}file.format": "orc"}, UnsupportedError, "not supported"),
    "a splitter that is not registered": (
        {"hoodie.streamer.snapshotload.query.splitter.class.name": "org.example.Mine"},
        InvalidError, "no such splitter.*bounded"),
    "a splitter without bounds": (
        {"hoodie.deltastreamer.snapshotload.query.splitter.class.name": "bounded"},
        InvalidError, r"max\.rows"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED.values(), ids=list(REFUSED))
def test_bad_options_are_refused(
    options: dict[str, str], kind: type[Exception], message: str
) -> None:
    path = {} if message == "needs its path" else {f"{PREFIX}path": "memory://source"}
    with pytest.raises(kind, match=message):
        HudiTableSource.from_options({**path, **options})


def test_a_source_is_made_from_options_of_either_prefix() -> None:
    old = "hoodie.deltastreamer.source.hoodieincr."
    options = {
        f"{old}path": "memory://source",
        f"{old}num_instants": "7",
        f"{old}missing.checkpoint.strategy": "read_latest",
        f"{PREFIX}file.format": "parquet",
        MAX_ROWS: "10",
    }
    source = HudiTableSource.from_options(options)
    assert source.settings.num_instants == 7
    assert source.settings.beginning == "READ_LATEST"
    assert source.splitter == BoundedLoad(max_rows=10)
    assert source_kind("hudi") is HudiTableSource
    assert source.resume_from("resumeFromInstantCompletionTime: 20260101000000000").text == (
        "20260101000000000"
    )


def test_the_page_documents_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ingestion.md").read_text("utf-8")
    keys = {key for key in TABLE_SOURCE_KEYS if not key.startswith("hoodie.deltastreamer.")}
    assert {key for key in keys if f"`{key}`" not in page} == set()
