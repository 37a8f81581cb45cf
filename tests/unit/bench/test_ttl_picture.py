"""The page and the picture of the load test of TTL, from stored results."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "ttl_picture.py"
MACHINE = {"cores": 2, "processor": "a processor", "memory_bytes": 2**34}
RACE: dict[str, Any] = {
    "made": "2026-01-02T03:04:05+00:00",
    "size": {"scale": 1.0},
    "machine": MACHINE,
    "load_before": 0.5,
    "parts": {
        "ttl_500": {"find": {"lakewright": 0.1}},
        "ttl_10000": {
            "load": {"lakewright": 60.0},
            "find": {"lakewright": 2.0, "hudi": 30.0},
            "run": {"lakewright": 3.0, "hudi": 90.0},
        },
    },
}
CLUSTER = {
    "made": "2026-01-03T00:00:00+00:00",
    "scale": 1.0,
    "partitions": 10_000,
    "machine": MACHINE,
    "seconds": {"load": 100.0, "update": 20.0, "find": 5.0, "run": 6.0, "clean": 9.0},
}


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ttl_picture", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_largest_workload_is_shown_next_to_the_cluster(script: ModuleType) -> None:
    page = script.as_page(RACE, CLUSTER)
    assert "| seconds | Lakewright | real Hudi | Lakewright, HDFS |" in page
    assert "| find the expired | 2.0 | 30.0 | 5.0 |" in page
    assert "| load | 60.0 |  | 100.0 |" in page
    assert "10,000 partitions" in page
    assert "15.0 times as long" in page
    assert "HDFS" not in script.as_page(RACE, None)


def test_a_cluster_with_other_partitions_is_reported_by_itself(script: ModuleType) -> None:
    page = script.as_page(RACE, {**CLUSTER, "partitions": 500})
    assert "| seconds | Lakewright | real Hudi |\n" in page
    assert "500 partitions; in seconds: load 100.0," in page


def test_every_number_has_a_bar(script: ModuleType) -> None:
    name, times = script.times_of(RACE, CLUSTER)
    assert name == "ttl_10000"
    drawing = ElementTree.fromstring(script.as_svg(times, "a title"))
    keys = 3
    bars = drawing.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == keys + sum(len(row) for row in times.values())
