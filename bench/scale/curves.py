"""Points put together: the exponent of a curve, and whether it keeps its promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.scale.meter import Point
from bench.scale.subject import Subject

MAX_FLAT_EXPONENT = 0.2


@dataclass(frozen=True, slots=True)
class Curve:
    """The cost of a subject at growing sizes."""

    name: str
    unit: str
    flat: bool
    points: tuple[Point, ...]

    @classmethod
    def of(cls, subject: Subject, points: Sequence[Point]) -> Curve:
        """The curve of a subject from its points in any order."""
        ordered = tuple(sorted(points, key=lambda point: point.size))
        return cls(subject.name, subject.unit, subject.flat, ordered)

    @property
    def time_exponent(self) -> float | None:
        """With which power of the size the time grows: 0 is flat, 1 linear."""
        return exponent([(point.size, point.seconds) for point in self.points])

    @property
    def call_exponent(self) -> float | None:
        """With which power of the size the storage calls grow."""
        return exponent([(point.size, point.calls) for point in self.points])

    def broken_promises(self) -> list[str]:
        """What a flat subject does that depends on the size, a sentence each."""
        if not self.flat:
            return []
        calls = {point.calls for point in self.points}
        broken = []
        if len(calls) > 1:
            broken.append(f"{self.name}: storage calls depend on {self.unit}: {sorted(calls)}")
        grows = self.time_exponent
        if grows is not None and grows >= MAX_FLAT_EXPONENT:
            broken.append(f"{self.name}: time grows with {self.unit}, exponent {grows:.2f}")
        return broken


def exponent(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The slope of log(cost) over log(size) by least squares; None for fewer than two sizes.

    >>> round(exponent([(10, 300), (100, 30_000), (1000, 3_000_000)]), 6)
    2.0
    """
    logs = [(math.log(size), math.log(cost)) for size, cost in pairs]
    middle = sum(x for x, _ in logs) / max(1, len(logs))
    height = sum(y for _, y in logs) / max(1, len(logs))
    spread = sum((x - middle) ** 2 for x, _ in logs)
    if not spread:
        return None
    return sum((x - middle) * (y - height) for x, y in logs) / spread
