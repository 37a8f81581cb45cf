"""Rows that are grouped by a number, and what is computed of each group at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class GroupedRows:
    """Row numbers in the order of their groups; rows of one group keep their order.

    The rows of group `i` are `order[starts[i]:ends[i]]`; there is no empty group.
    """

    order: Numbers
    starts: Numbers
    ends: Numbers

    @classmethod
    def of(cls, numbers: Numbers) -> GroupedRows:
        """Group rows by a number for each."""
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
        return cls(order, starts, np.append(starts[1:], len(ordered))[: len(starts)])

    def last_true(self, flags: npt.NDArray[np.bool_]) -> Numbers:
        """Return where the last flag of each group is set, or the place before the group.

        `flags` is in the order of the groups.
        """
        places = np.where(flags, np.arange(len(flags)), -1)
        last = np.maximum.accumulate(places)[self.ends - 1] if len(places) else self.ends
        return np.maximum(last, self.starts - 1)


def reduce_spans(
    function: np.ufunc, values: npt.NDArray[Scalar], starts: Numbers, ends: Numbers
) -> npt.NDArray[Scalar]:
    """Reduce spans of values, none of which is empty, by a function of two values."""
    if not len(starts):
        return values[:0]
    # `reduceat` reduces from each place to the next one; places between two spans are left out.
    padded = np.append(values, values[-1:])
    bounds = np.stack([starts, ends], axis=1).reshape(-1)
    reduced: npt.NDArray[Any] = function.reduceat(padded, bounds)[::2]
    return reduced


def rows_of_spans(starts: Numbers, ends: Numbers) -> Numbers:
    """Return the numbers of all rows in some spans."""
    lengths = ends - starts
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows: Numbers = np.repeat(starts, lengths) + within
    return rows


def distinct_rows(rows: pa.RecordBatch, names: Sequence[str]) -> tuple[pa.RecordBatch, Numbers]:
    """Return the distinct rows of some columns, and for each row the number of its own."""
    numbers = np.zeros(rows.num_rows, np.int64)
    for name in names:
        coded = rows[name].dictionary_encode("encode")
        if len(coded.dictionary) > 1:
            both = numbers * len(coded.dictionary) + np.asarray(coded.indices)
            numbers = np.asarray(pa.array(both).dictionary_encode().indices).astype(np.int64)
    first = np.empty(int(numbers.max(initial=-1)) + 1, np.int64)
    # Where a number occurs several times, the last one is kept.
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return rows.select(list(names)).take(pa.array(first)), numbers
