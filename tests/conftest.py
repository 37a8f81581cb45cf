"""What all tests share: how long property tests search, and the tables made by real Hudi."""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from lakewright.storage import memory
from support.golden import GoldenTables
from support.metadata_tables import MetadataTables
from support.soak import CHECK, left_to_a_check, sized

# The same examples in each check; a soak run looks for new ones.
settings.register_profile(
    "check", deadline=None, max_examples=15 if CHECK else 6, derandomize=True, database=None
)
settings.register_profile(
    "soak", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(sized("check", soak="soak"))

# The command line is made of its signatures once, and not again for each call.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to a check what it proves in more detail; a file or test that is named runs."""
    named = any(Path(argument.split("::")[0]).is_file() for argument in config.args)
    left = [] if CHECK or named else left_to_a_check(items)
    if left:
        config.hook.pytest_deselected(items=left)
        ids = set(map(id, left))
        items[:] = [item for item in items if id(item) not in ids]


_KEPT_AREAS: set[str] = set()


def pytest_collection_finish() -> None:
    """Some thousand tests and their modules stay until the end: no collector need look at them."""
    _KEPT_AREAS.update(memory._AREAS)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget the tables in memory that the tests of a file have made."""
    if nextitem is None or nextitem.path != item.path:
        for label in memory._AREAS.keys() - _KEPT_AREAS:
            del memory._AREAS[label]


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenTables:
    """The tables made by real Hudi, unpacked when they are first asked for."""
    return GoldenTables(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="session")
def metadata_tables(tmp_path_factory: pytest.TempPathFactory) -> MetadataTables:
    """The metadata tables made by real Hudi, unpacked when they are first asked for."""
    return MetadataTables(tmp_path_factory.mktemp("metadata_tables"))
