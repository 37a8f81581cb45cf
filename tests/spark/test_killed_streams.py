"""A table is streamed into others by a process that is killed again and again."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from sizes import sized
from victims import doomed, said
from written import NO_SERVICES, WrittenTable, row

from lakewright.clock import SystemClock
from lakewright.interfaces.streaming import BATCHES
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot

PROGRAM = Path(__file__).with_name("stream_process.py")
OPERATIONS = ("upsert", "insert")
KILLS = sized(1, soak=25)
_PATIENCE_S = 300


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


def traces(folder: Path) -> int:
    """How many files the targets' timelines and Spark's own notes have."""
    notes = [folder / f"checkpoint-{operation}" for operation in OPERATIONS]
    kept = [*(note / "offsets" for note in notes), *(note / "commits" for note in notes)]
    return sum(len(list(place.glob("[0-9]*"))) for place in (*timelines(folder), *kept))


def unnoted(folder: Path) -> int:
    """How many batches more the targets have than Spark has noted the end of."""
    done = sum(len(list(place.glob("[0-9]*_*commit"))) for place in timelines(folder))
    notes = [folder / f"checkpoint-{operation}" / "commits" for operation in OPERATIONS]
    return done - sum(len(list(place.glob("[0-9]*"))) for place in notes)


def timelines(folder: Path) -> list[Path]:
    return [folder / operation / ".hoodie" / "timeline" for operation in OPERATIONS]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_stream_that_is_killed_hands_every_change_over_once(kind: str, tmp_path: Path) -> None:
    source, chance = Source(tmp_path / "source", kind), random.Random(7)
    errors = tmp_path / "errors.log"
    for life in range(KILLS):
        for _ in range(4):
            source.write()
        moment = traces(tmp_path) + chance.randint(1, 20)
        with doomed(PROGRAM, str(tmp_path), "on", *OPERATIONS, errors=errors) as process:
            assert said(process) == "READY", errors.read_text()[-4000:]
            source.write()
            deadline = time.monotonic() + _PATIENCE_S
            # Every other time as soon as a batch is written and Spark does not know: it replays it.
            while traces(tmp_path) < moment or (life % 2 == 0 and not unnoted(tmp_path)):
                assert process.poll() is None, errors.read_text()[-4000:]
                assert time.monotonic() < deadline, errors.read_text()[-4000:]
                time.sleep(0.002)
    with doomed(PROGRAM, str(tmp_path), "out", *OPERATIONS, errors=errors) as process:
        assert [said(process), said(process)] == ["READY", "DONE"], errors.read_text()[-4000:]
    assert_complete(source, tmp_path)


def assert_complete(source: Source, folder: Path) -> None:
    expected = source.table.rows()
    upserted = WrittenTable(LocalStorage(str(folder / "upsert")))
    assert upserted.rows() == expected
    # Inserts keep every version that was handed over: none may be there twice.
    inserted = WrittenTable(LocalStorage(str(folder / "insert"))).rows()
    versions = Counter((each["id"], each["ts"]) for each in inserted)
    assert set(versions.values()) == {1}
    newest = {key: max(ts for other, ts in versions if other == key) for key, _ in versions}
    assert newest == {each["id"]: each["ts"] for each in expected}
    for operation in OPERATIONS:
        numbers = batches(LocalStorage(str(folder / operation)))
        assert sorted(numbers) == list(range(len(numbers)))
        assert len(numbers) > KILLS


def batches(storage: LocalStorage) -> list[int]:
    """The numbers of the batches that a table has."""
    snapshot = load_snapshot(storage)
    commits = snapshot.commits((*snapshot.archived, *snapshot.timeline.completed_writes))
    notes = [json.loads(commit.extra[BATCHES]) for commit in commits if BATCHES in commit.extra]
    return [int(number) for note in notes for number in note.values()]
