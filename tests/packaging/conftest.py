"""The wheel, built once, and an environment that holds it and what it asks for."""

from __future__ import annotations

import packages
import pytest
from packages import Installed


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    wheel, source = packages.build(folder)
    return Installed(wheel, source, packages.make_environment(folder / "environment", wheel))
