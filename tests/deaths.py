"""At which moments of a change processes die."""

from __future__ import annotations

import pytest
from sizes import sized

# The second leaves the files that the first leaves one change later: see test_testing_storage.py.
each_death = pytest.mark.parametrize(
    "after_effect", sized([False], soak=[False, True]), ids=sized(["before"], ["before", "after"])
)
