"""The wheel, built once, and an environment that holds it and what it asks for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import packages


@dataclass(frozen=True)
class Installed:
    """A wheel, its source distribution, and the Python of an environment that holds the wheel."""

    wheel: Path
    source: Path
    python: Path


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    wheel, source = packages.build(folder)
    return Installed(wheel, source, packages.make_environment(folder / "environment", wheel))
