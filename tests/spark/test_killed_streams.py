"""Tables are streamed into others by a process that is killed again and again."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from stream_process import start

from lakewright.client.stream_sink import BATCHES
from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from support.processes import killed_process, read_line, wait_while_running
from support.soak import sized, some
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.thorough

PROGRAM = Path(__file__).with_name("stream_process.py")
KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
STREAMED = some(list(product(KINDS, ("insert", "upsert"))), 0, 3)
KILLS = sized(1, soak=25)


class Source:
    """The table that is read; every write changes some rows and brings a new one."""

    def __init__(self, folder: Path, kind: str) -> None:
        storage = LocalStorage(str(folder))
        self.table = WrittenTable(storage, SystemClock(), NO_SERVICES).create(kind)
        self.writes = 0

    def write(self) -> None:
        self.writes += 1
        new = row(f"new{self.writes}", self.writes, day="2026-01-02")
        changed = [row(f"k{n}", self.writes, f"v{self.writes}") for n in range(self.writes % 3 + 1)]
        self.table.upsert([new, *changed])
        if self.writes % 5 == 0:
            self.table.services({"hoodie.clustering.async.max.commits": "1"}).run("clustering")


@dataclass(frozen=True)
class Target:
    """A table that a query writes to, in the folder of its source."""

    folder: Path
    operation: str

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(str(self.folder / self.operation))

    @property
    def traces(self) -> int:
        """How many files the timeline and Spark's own notes have."""
        return len(self._commits()) + len(self._noted("offsets")) + len(self._noted("commits"))

    @property
    def has_unnoted(self) -> bool:
        """Whether it has a batch more than Spark has noted the end of."""
        return len(self._commits("_*commit")) > len(self._noted("commits"))

    def _commits(self, end: str = "") -> list[Path]:
        timeline = self.folder / self.operation / ".hoodie" / "timeline"
        return list(timeline.glob(f"[0-9]*{end}"))

    def _noted(self, name: str) -> list[Path]:
        return list((self.folder / f"checkpoint-{self.operation}" / name).glob("[0-9]*"))


@pytest.mark.slow
def test_streams_that_are_killed_deliver_every_change_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    sources = {kind: Source(tmp_path / kind / "source", kind) for kind in KINDS}
    targets = [Target(tmp_path / kind, operation) for kind, operation in STREAMED]
    arguments = [text for target in targets for text in (str(target.folder), target.operation)]
    chance, errors = random.Random(7), tmp_path / "errors.log"

    def is_time(moment: int, *, replays: bool) -> bool:
        written = sum(target.traces for target in targets) >= moment
        return written and (not replays or any(target.has_unnoted for target in targets))

    for life in range(KILLS):
        for source in [*sources.values()] * 2:
            source.write()
        # Each write makes five of them in each target.
        moment = sum(target.traces for target in targets) + chance.randint(1, 10 * len(targets))
        with killed_process(PROGRAM, *arguments, errors=errors) as process:
            assert read_line(process) == "READY", errors.read_text()[-4000:]
            for source in sources.values():
                source.write()
            # Every other time as soon as a batch is written and Spark does not know: it replays it.
            wait_while_running(
                partial(is_time, moment, replays=life % 2 == 0), process, errors=errors
            )
    with warnings.catch_warnings():
        # A batch that Spark replays.
        warnings.filterwarnings("ignore", "a batch was left out: .* in the table already")
        for target in targets:
            start(spark, target.folder, target.operation, all_there_is=True).awaitTermination()
    for target in targets:
        assert_complete(sources[target.folder.name], target)


def assert_complete(source: Source, target: Target) -> None:
    expected, rows = source.table.rows(), WrittenTable(target.storage).rows()
    if target.operation == "upsert":
        assert rows == expected
    else:
        # Inserts keep every version of the source: none may be there twice.
        versions = Counter((record["id"], record["ts"]) for record in rows)
        assert set(versions.values()) == {1}
        newest = {key: max(ts for other, ts in versions if other == key) for key, _ in versions}
        assert newest == {record["id"]: record["ts"] for record in expected}
    numbers = batches(target.storage)
    assert sorted(numbers) == list(range(len(numbers)))
    assert len(numbers) > KILLS


def batches(storage: LocalStorage) -> list[int]:
    """The numbers of the batches that a table has."""
    snapshot = load_snapshot(storage)
    commits = snapshot.commits((*snapshot.archived, *snapshot.timeline.completed_writes))
    notes = [json.loads(commit.extra[BATCHES]) for commit in commits if BATCHES in commit.extra]
    return [int(number) for note in notes for number in note.values()]
