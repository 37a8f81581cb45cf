"""From measurements to ratios, page and picture."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.picture import as_svg, position, scale_of
from bench.report import all_ratios, as_json, as_markdown, targets_with_results
from bench.results import Check, Failure, Measurement, Outcome, Total
from bench.targets import Target

FACTS = {
    "made": "2026-01-02T03:04:05+00:00",
    "size": {"scale": 0.1, "rounds": 3, "commits": 30, "scans": 2},
    "rows": 600_572,
    "machine": {
        "cores": 2,
        "processors": 2,
        "processor": "a processor",
        "memory_bytes": 2**34,
        "driver_memory": "3g",
    },
    "versions": {"lakewright": "0.1.0 on Spark 4.3.0", "hudi": "1.2.0 on Spark 3.5.9"},
    "left_out": {},
}


def measured(workload: str, system: str, *seconds: float, peak: int | None = None) -> Measurement:
    return Measurement(0, workload, system, seconds, peak_bytes=peak)


RATIOS: dict[str, tuple[list[Measurement], dict[str, dict[str, float]]]] = {
    "the median counts, not the mean": (
        [measured("load", "lakewright", 1, 2, 30), measured("load", "hudi", 8, 8, 8)],
        {"load": {"hudi": 4}}),
    "measurements of all rounds count together": (
        [measured("load", "lakewright", 1), measured("load", "lakewright", 3),
         measured("load", "hudi", 4)],
        {"load": {"hudi": 2}}),
    "the best peer is the fastest of Delta and Iceberg": (
        [measured("load", "lakewright", 2), measured("load", "delta", 3),
         measured("load", "iceberg", 9)],
        {"load": {"best_peer": 1.5}}),
    "the limit is ours over theirs": (
        [measured("load", "lakewright", 3), measured("load", "limit", 2)],
        {"load": {"limit": 1.5}}),
    "finding what is expired is judged by itself": (
        [replace(measured("ttl_500", "lakewright", 2), parts={"find": [1.0], "update": [9.0]}),
         replace(measured("ttl_500", "hudi", 8), parts={"find": [20.0]})],
        {"ttl_500": {"hudi": 4, "hudi_find": 20}}),
    "without our own time there is no ratio": ([measured("load", "hudi", 3)], {}),
    "the slope compares the last ten commits with the first ten": (
        [measured("tiny_commit", "lakewright", *[1.0] * 10, *[9.0] * 5, *[2.0] * 10)],
        {"tiny_commit": {"slope": 2}}),
    "memory is the greatest peak over what all went through": (
        [measured("load", "lakewright", 1, peak=100), measured("load", "delta", 1, peak=150),
         measured("upsert_spread_cow", "lakewright", 1, peak=200),
         measured("upsert_spread_cow", "delta", 1, peak=300),
         measured("upsert_spread_mor_bucket", "lakewright", 1, peak=900)],
        {"load": {"best_peer": 1}, "upsert_spread_cow": {"best_peer": 1},
         "memory": {"best_peer": 1.5}}),
}  # fmt: skip


@pytest.mark.parametrize(("measurements", "expected"), RATIOS.values(), ids=list(RATIOS))
def test_ratios(measurements: list[Measurement], expected: dict[str, dict[str, float]]) -> None:
    assert all_ratios(measurements) == expected


def test_targets_are_bounds_from_below_or_from_above() -> None:
    assert Target("load", "hudi", 3).is_met(3)
    assert not Target("load", "hudi", 3).is_met(2.9)
    assert Target("load", "limit", 3, at_most=True).is_met(3)
    assert not Target("load", "limit", 3, at_most=True).is_met(3.1)


def test_a_target_that_was_not_measured_is_neither_met_nor_missed() -> None:
    judged = {
        (t["workload"], t["against"]): t["met"] for t in targets_with_results({"load": {"hudi": 4}})
    }
    assert judged["load", "hudi"] is True
    assert judged["load", "best_peer"] is None


@pytest.fixture
def outcome() -> Outcome:
    measurements = (
        measured("load", "lakewright", 1.0, peak=2**30),
        measured("load", "hudi", 5.0, peak=2**31),
        measured("load", "delta", 0.25, peak=2**31),
        measured("delete", "lakewright", 1.0),
        measured("delete", "hudi", 4.0),
    )
    checks = (Check(0, "load", "hudi", Total(3, 7), Total(3, 7)),)
    return Outcome(FACTS, measurements, checks)


def stored(outcome: Outcome) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(as_json(outcome)))
    return result


def test_the_page_shows_seconds_ratios_targets_and_checks(outcome: Outcome) -> None:
    page = as_markdown(stored(outcome))
    assert "| `load` | 1.00 | 5.00 | 0.25 | 5.00 | 0.25 |  |" in page
    assert "| `load` | hudi | ≥ 3 | 5.00 | yes |" in page
    assert "| `load` | best_peer | ≥ 1.2 | 0.25 | **no** |" in page
    assert "| `changes` | hudi | ≥ 3 |  | not measured |" in page
    assert "All 1 checks of rows agree." in page


def test_wrong_rows_and_failures_make_the_outcome_unsound_and_are_reported(
    outcome: Outcome,
) -> None:
    assert outcome.is_sound
    wrong = Check(0, "load", "delta", Total(2, 7), Total(3, 7))
    worse = replace(outcome, checks=(wrong,), failures=(Failure(0, "delete", "delta", "no"),))
    assert not worse.is_sound
    page = as_markdown(stored(worse))
    assert "delta holds other rows after `load`" in page
    assert "delta failed in `delete`: 'no'" in page


def test_the_picture_is_xml_and_shows_losses_as_such(outcome: Outcome) -> None:
    picture = ElementTree.fromstring(as_svg(stored(outcome)))
    bars = [e.get("class") for e in picture.iter() if e.tag.endswith("rect")][3:]
    assert bars == ["hudi", "loss", "hudi", "hudi", "best_peer"]
    texts = [e.text for e in picture.iter() if e.tag.endswith("text")]
    assert "0.25x best of Delta and Iceberg" in texts


def test_the_scale_is_logarithmic_with_one_inside() -> None:
    low, high = scale_of([0.3, 5])
    assert (low, high) == (0.25, 8)
    steps = [position(value, low, high) for value in (0.25, 0.5, 1, 2, 4, 8)]
    gaps = [after - before for before, after in pairwise(steps)]
    assert max(gaps) - min(gaps) < 0.5


def test_a_total_changes_by_what_comes_and_goes() -> None:
    after = Total(10, 100).with_change(Total(3, 40), Total(2, 15))
    assert after == Total(11, 125)
    assert Total(11, None).allows(after)
    assert not Total(12, None).allows(after)
    assert not Total(11, 126).allows(after)
