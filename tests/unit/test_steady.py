"""No test depends on how fast the machine is: clocks, short expiries and impatience stay out.

A test that needs time takes a ManualClock; one that waits for another process or thread waits with
`support.processes.wait_until`; one that shows what something costs counts calls, steps or imports,
and `./dev bench` measures. Each rule is a function from a file to its offences, and each is shown
to bite.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

CLOCKS = {
    "time": {
        f"{name}{unit}"
        for name in ("monotonic", "perf_counter", "process_time", "sleep", "thread_time", "time")
        for unit in ("", "_ns")
    },
    "os": {"times"},
    "resource": {"getrusage"},
    "timeit": {"default_timer", "repeat", "timeit"},
}
# Processes that live by the machine's clock; elsewhere a driven clock says when these are over.
REAL = ("browser", "concurrent", "contract", "fuzz", "interop", "packaging", "spark")
EXPIRIES = (
    "hoodie.client.heartbeat.interval_in_ms",
    "hoodie.client.heartbeat.tolerable.misses",
    "hoodie.write.lock.storage.renew.interval.secs",
    "hoodie.write.lock.storage.validity.timeout.secs",
)
SHORTEST_S = 120

# Each with the reason why a slow machine does no harm there.
ALLOWED = {
    "support/processes.py": "waits for processes, up to a limit that only a hang reaches",
    "support/spark.py": "asks again and again until a query has started",
    "browser/conftest.py": "asks again and again until the server has started",
    "fuzz/test_hostile_tables.py": "an hour, and values that are refused",
    "interop/test_cancellable.py": "an hour: longer than usual",
    "interop/test_shared_lock.py": "a lock that must not be free: given up sooner on no machine",
    "spark/lost_attempts/sitecustomize.py": "makes tasks slow; how slow decides nothing",
    "spark/test_spark_work.py": "tasks that wait at a gate",
}


def clocks(path: str, tree: ast.Module) -> Iterator[str]:
    """The machine's clock is read, or slept by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            read = CLOCKS.get(node.module or "", set())
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name in read)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = node.value.id, node.attr
            yield from [f"{module}.{name}"] if name in CLOCKS.get(module, ()) else []


def short_lives(path: str, tree: ast.Module) -> Iterator[str]:
    """Heartbeats or locks of real processes expire after another time than the usual minutes."""
    if path.startswith(REAL):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in EXPIRIES:
                yield str(node.value)


def impatience(path: str, tree: ast.Module) -> Iterator[str]:
    """Something is given up before minutes are over; 0 is no wait. A page counts milliseconds."""
    shortest = SHORTEST_S * (1000 if path.startswith("browser") else 1)
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
    for node in keywords:
        limit = node.value.value if isinstance(node.value, ast.Constant) else None
        if node.arg == "timeout" and isinstance(limit, int | float) and 0 < limit < shortest:
            yield f"timeout={limit}"


RULES = (clocks, short_lives, impatience)


def offences(path: str, text: str) -> list[str]:
    tree = ast.parse(text)
    return [f"{path}: {rule.__name__}: {offence}" for rule in RULES for offence in rule(path, tree)]


@cache
def offences_by_file() -> dict[str, list[str]]:
    files = [file for file in TESTS.rglob("*.py") if "golden" not in file.parts]
    texts = {str(file.relative_to(TESTS)): file.read_text("utf-8") for file in files}
    return {path: bad for path, text in texts.items() if (bad := offences(path, text))}


def test_no_test_depends_on_how_fast_the_machine_is() -> None:
    assert [
        bad for path, listed in offences_by_file().items() if path not in ALLOWED for bad in listed
    ] == []


def test_nothing_is_allowed_that_is_not_there() -> None:
    assert set(ALLOWED) - set(offences_by_file()) == set()


BITES: dict[str, tuple[Callable[[str, ast.Module], Iterator[str]], str, str]] = {
    "a clock": (clocks, "unit/test_x.py", "import time\ntime.perf_counter()"),
    "a sleep by another name": (clocks, "unit/test_x.py", "from time import sleep as rest"),
    "the time of the processor": (clocks, "unit/test_x.py", "resource.getrusage(1)"),
    "a heartbeat of a second": (
        short_lives,
        "spark/test_x.py",
        "{'hoodie.client.heartbeat.interval_in_ms': '1000'}",
    ),
    "half a minute": (impatience, "unit/test_x.py", "process.communicate(timeout=30)"),
    "half a minute of a page": (impatience, "browser/test_x.py", "expect(timeout=30_000)"),
}


@pytest.mark.parametrize(("rule", "path", "text"), BITES.values(), ids=list(BITES))
def test_a_rule_bites(
    rule: Callable[[str, ast.Module], Iterator[str]], path: str, text: str
) -> None:
    assert len(list(rule(path, ast.parse(text)))) == 1


GOOD = {
    "a driven clock": ("unit/test_x.py", "table.clock.sleep(5)"),
    "a driven clock that lets a heartbeat expire": (
        "unit/test_x.py",
        "{'hoodie.client.heartbeat.interval_in_ms': '1000'}",
    ),
    "the zone of the machine": ("unit/test_x.py", "time.tzset()"),
    "one look": ("unit/test_x.py", "freshness(timeout=0)"),
    "minutes": ("unit/test_x.py", "process.communicate(timeout=600)"),
}


@pytest.mark.parametrize(("path", "text"), GOOD.values(), ids=list(GOOD))
def test_good_code_is_left_alone(path: str, text: str) -> None:
    assert offences(path, text) == []
