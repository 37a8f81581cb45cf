"""The time that a partition's path names."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lakewright.model.partition_time import partition_end


def ms(*parts: int) -> int:
    return round(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]


ENDS: dict[str, tuple[str, int | None, int | None]] = {
    "a day ends with the next": ("2026-01-31", None, ms(2026, 2, 1)),
    "with slashes too": ("2026/01/31", None, ms(2026, 2, 1)),
    "with names too": ("day=2026-01-31", None, ms(2026, 2, 1)),
    "levels behind it change nothing": ("2026-01-31/country=no", None, ms(2026, 2, 1)),
    "an hour ends with the next": ("2026-01-31/05", None, ms(2026, 1, 31, 6)),
    "the last hour ends the day": ("day=2026-01-31/hour=23", None, ms(2026, 2, 1)),
    "an hour in one level with the day": ("2026-01-31-05", None, ms(2026, 1, 31, 6)),
    "there are 24 hours": ("2026-01-31/24", None, ms(2026, 2, 1)),
    "it lasts for the interval of the options": ("2026-01-31", 7 * 86_400_000, ms(2026, 2, 7)),
    "what names no time has no end": ("country=no", None, None),
    "nor has a day that there is not": ("2026-02-30", None, None),
}


@pytest.mark.parametrize(("path", "interval", "expected"), ENDS.values(), ids=list(ENDS))
def test_ends(path: str, interval: int | None, expected: int | None) -> None:
    assert partition_end(path, UTC, interval) == expected
