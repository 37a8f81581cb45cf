"""The measurements of scale: what they count is right, and what must be flat is flat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

import pytest
from bench.scale import __main__ as command
from bench.scale.curves import Curve, exponent
from bench.scale.meter import MeteredStorage, Point, measure
from bench.scale.report import as_json, as_svg, as_text
from bench.scale.subject import Subject
from bench.scale.subjects import SUBJECTS, Expired
from bench.scale.table import Shape, synthetic_table

from lakewright.scan.planner import plan_changes, plan_snapshot
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot

FLAT = {subject.name: subject for subject in SUBJECTS if subject.flat}


def curve(seconds: list[float], calls: list[int], *, flat: bool = True) -> Curve:
    points = [
        Point(10 ** (power + 1), count, 0, duration, 0.0)
        for power, (duration, count) in enumerate(zip(seconds, calls, strict=True))
    ]
    return Curve("job", "files", flat, tuple(points))


def test_the_jobs_that_must_be_flat_are_among_the_subjects() -> None:
    services = {"compaction, 10 changed", "debt in 10"}
    queries = {"timeline", "one partition", "changes in 10", "history, snapshot"}
    assert set(FLAT) == {*queries, *services}


@pytest.mark.parametrize("subject", FLAT.values(), ids=list(FLAT))
def test_the_number_of_partitions_costs_nothing(subject: Subject) -> None:
    points = [measure(subject, size, repeats=1) for size in (100, 1_000, 100_000)]
    assert len({point.calls for point in points}) == 1


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_every_subject_runs(subject: Subject) -> None:
    point = measure(subject, min(subject.sizes), repeats=1)
    assert point.calls >= 2


SHAPES = {
    "side by side": Shape(partitions=12, groups=2),
    "in months": Shape(partitions=12, groups=2, per_month=5),
    "more than are listed one by one": Shape(partitions=2_500),
    "with several versions": Shape(partitions=3, groups=4, bases=2, logs=3, touched=1),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_a_synthetic_table_reads_as_its_shape_says(shape: Shape) -> None:
    storage = synthetic_table(shape)
    slices = plan_snapshot(load_snapshot(storage)).slices
    assert len(slices) == shape.partitions * shape.groups
    assert {item.partition for item in slices} == {
        storage.partition(number) for number in range(shape.partitions)
    }
    assert sum(len(item.logs) for item in slices) == len(slices) * shape.logs + shape.touched


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_a_tree_holds_what_its_folders_hold(shape: Shape) -> None:
    storage = synthetic_table(shape)
    folders = [storage.partition(number) for number in range(shape.partitions)]
    listed = [file for folder in folders for file in storage.list_files(folder)]
    hoodie = list(storage.list_tree(".hoodie"))
    assert sorted(storage.list_tree(""), key=lambda file: file.path) == sorted(
        [*hoodie, *listed], key=lambda file: file.path
    )


def test_the_last_instant_is_found_in_the_partitions_that_it_touched() -> None:
    storage = synthetic_table(Shape(partitions=1_000, archived=25))
    snapshot = load_snapshot(storage)
    plan = plan_changes(snapshot, since=snapshot.timeline.by_completion[-2].completed_at)
    assert [item.partition for item in plan.plan.slices] == [
        storage.partition(number) for number in range(0, 1_000, 100)
    ]
    assert len(snapshot.archived_times) == 25


def test_a_meter_counts_paths_and_bytes() -> None:
    storage = MeteredStorage(MemoryStorage.fresh({"a/x": b"12", "a/y": b"345"}))
    storage.read_many(["a/x", "a/y"])
    storage.read("a/x")
    assert len(list(storage.list_tree("a"))) == 2
    assert (storage.requests, storage.bytes_read) == (4, 7)


def test_half_of_an_aged_table_is_expired() -> None:
    subject = Expired()
    storage = MeteredStorage(subject.build(1_000))
    expired = subject.run(storage)
    # The last instant has renewed the first of them.
    assert expired == tuple(f"d{number:07d}" for number in range(2, 1_000, 2))
    assert storage.requests < 2 * 1_000 + 50


class _Growing:
    """Asks for as many files as there are, though it has promised not to."""

    name: ClassVar[str] = "growing"
    unit: ClassVar[str] = "files"
    sizes: ClassVar[tuple[int, ...]] = (1, 10)
    default_size: ClassVar[int] = 10
    flat: ClassVar[bool] = True
    changes: ClassVar[bool] = False

    def build(self, size: int) -> Storage:
        return MemoryStorage.fresh({f"f{number}": b"" for number in range(size)})

    def run(self, storage: Storage) -> object:
        return [storage.read(file.path) for file in storage.list_files("")]


def test_a_subject_that_grows_against_its_promise_is_reported() -> None:
    subject = _Growing()
    points = [measure(subject, size, repeats=1) for size in subject.sizes]
    assert [point.calls for point in points] == [2, 11]
    assert "growing: storage calls depend on files: [2, 11]" in (
        Curve.of(subject, points).broken_promises()
    )


PROMISES: dict[str, tuple[list[float], list[int], bool, int]] = {
    "noise is no growth": ([1.0, 1.3, 0.9], [4, 4, 4], True, 0),
    "one more call is too many": ([1.0, 1.0, 1.0], [4, 4, 5], True, 1),
    "time that doubles with every decade is growth": ([1.0, 2.0, 4.0], [4, 4, 4], True, 1),
    "what promised nothing may grow": ([1.0, 10.0, 100.0], [1, 10, 100], False, 0),
}


@pytest.mark.parametrize(("seconds", "calls", "flat", "count"), PROMISES.values(), ids=PROMISES)
def test_a_promise(seconds: list[float], calls: list[int], flat: bool, count: int) -> None:
    assert len(curve(seconds, calls, flat=flat).broken_promises()) == count


POWERS: dict[str, tuple[list[tuple[float, float]], float | None]] = {
    "a square": ([(10, 300), (100, 30_000), (1_000, 3_000_000)], 2.0),
    "a constant": ([(10, 7), (1_000, 7)], 0.0),
    "one size has no slope": ([(10, 7)], None),
}


@pytest.mark.parametrize(("pairs", "expected"), POWERS.values(), ids=list(POWERS))
def test_an_exponent(pairs: list[tuple[float, float]], expected: float | None) -> None:
    fitted = exponent(pairs)
    assert fitted == (None if expected is None else pytest.approx(expected))


def test_curves_as_text_data_and_drawing() -> None:
    curves = [curve([0.001, 0.01, 0.1], [1, 10, 100], flat=False)]
    assert "time n^1.00, calls n^1.00" in as_text(curves)
    assert json.loads(as_json(curves))[0]["time_exponent"] == pytest.approx(1)
    drawing = ElementTree.fromstring(as_svg(curves))
    lines = drawing.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len((line.get("points") or "").split()) for line in lines] == [3]


def test_the_command_measures_in_processes_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--only", "timeline", "--most", "1000", "--out", str(tmp_path)]) == 0
    assert "timeline" in capsys.readouterr().out
    (written,) = json.loads((tmp_path / "scale.json").read_text("utf-8"))
    assert [point["size"] for point in written["points"]] == [1_000]
    assert written["points"][0]["peak"] is not None
