"""What all tests share: how long property tests search, and the tables made by real Hudi."""

from __future__ import annotations

import pytest
from golden_tables import GoldenTables
from hypothesis import HealthCheck, settings
from sizes import sized

settings.register_profile("check", deadline=None, max_examples=100)
settings.register_profile(
    "soak", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(sized("check", soak="soak"))


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenTables:
    """The tables made by real Hudi, unpacked when they are first asked for."""
    return GoldenTables(tmp_path_factory.mktemp("golden"))
