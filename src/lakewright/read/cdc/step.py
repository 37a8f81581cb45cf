"""What a query of change data reads: values that travel to the workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import pyarrow as pa

from lakewright.core.dealing import deal
from lakewright.core.schema import select_fields
from lakewright.core.slices import FileSlice
from lakewright.read.plan import (
    ReadPlan,
    decoding,
    pack,
    plan_of,
    plan_value,
    slice_of,
    slice_value,
    unpack,
)

OP, TIME, BEFORE, AFTER = "op", "ts_ms", "before", "after"
SCHEMA = pa.schema([(name, pa.string()) for name in (OP, TIME, BEFORE, AFTER)])

_OPEN_COST = 4 << 20
_TASK_BYTES = 64 << 20


class StepKind(Enum):
    """How the changes of one write to one file group are found."""

    LOGGED = auto()  # they are in change files
    INSERTED = auto()  # rows of a base file that the write added; it changed no others
    REPLACED = auto()  # all rows of `before` are gone
    REWRITTEN = auto()  # rows of the base file in `after` against those in `before`
    APPENDED = auto()  # rows whose keys are in the log files that only `after` has
    STATE = auto()  # all rows of `after`, as if each had just been inserted


@dataclass(frozen=True, slots=True)
class Step:
    """What one write did to one file group.

    `before` and `after` are its states right before and right after; `files` are paths of change
    files, relative to the table.
    """

    instant: str
    kind: StepKind
    before: FileSlice | None = None
    after: FileSlice | None = None
    files: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class GroupSteps:
    """The changes of one file group, in the order in which they became part of the table."""

    partition: str
    file_id: str
    steps: tuple[Step, ...]

    @property
    def cost(self) -> int:
        """What reading it takes, in bytes; opening a file counts as some."""
        slices = [item for step in self.steps for item in (step.before, step.after) if item]
        files = sum(1 + len(item.logs) for item in slices) + len(self.steps)
        read = sum(item.size for item in slices) + sum(step.size for step in self.steps)
        return read + files * _OPEN_COST


@dataclass(frozen=True)
class CdcPlan:
    """The file groups of a query of change data, and what becomes of their rows.

    `read` says which columns rows have before and after a change, and how versions are merged; it
    has no slices of its own. `columns` are those of the result, `instants` the writes that changed
    something, in the order in which they completed.
    """

    read: ReadPlan
    groups: tuple[GroupSteps, ...]
    columns: tuple[str, ...] = tuple(SCHEMA.names)
    instants: tuple[str, ...] = ()

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the changes that the query gives."""
        return select_fields(SCHEMA, self.columns)

    def with_groups(self, groups: Iterator[GroupSteps] | list[GroupSteps]) -> CdcPlan:
        """The same query on other file groups."""
        return replace(self, groups=tuple(groups))

    def in_order(self) -> list[CdcPlan]:
        """The plan cut into pieces that tell one write after the other."""
        instants = dict.fromkeys(instant for instant in self.instants)
        pieces = []
        for instant in instants:
            groups = [
                replace(group, steps=tuple(s for s in group.steps if s.instant == instant))
                for group in self.groups
            ]
            pieces.append(self.with_groups([group for group in groups if group.steps]))
        return pieces

    def tasks(self) -> list[CdcPlan]:
        """The plan cut into pieces of a fair size for one worker each."""
        total = sum(group.cost for group in self.groups)
        pieces = deal(self.groups, lambda group: group.cost, -(-total // _TASK_BYTES))
        return [self.with_groups(piece) for piece in pieces]


def encode_changes(plan: CdcPlan) -> str:
    """A plan as text, small enough to travel as an option of a data source."""
    return pack(
        {
            "read": plan_value(plan.read),
            "groups": [
                [group.partition, group.file_id, [_step_value(step) for step in group.steps]]
                for group in plan.groups
            ],
            "columns": plan.columns,
            "instants": plan.instants,
        }
    )


def decode_changes(text: str) -> CdcPlan:
    """The inverse of `encode_changes`; InvalidError for another text."""
    with decoding():
        value = unpack(text)
        return CdcPlan(
            read=plan_of(value["read"]),
            groups=tuple(
                GroupSteps(partition, file_id, tuple(_step_of(step) for step in steps))
                for partition, file_id, steps in value["groups"]
            ),
            columns=tuple(value["columns"]),
            instants=tuple(value["instants"]),
        )


def _step_value(step: Step) -> list[object]:
    before, after = (item and slice_value(item) for item in (step.before, step.after))
    return [step.instant, step.kind.name, before, after, step.files, step.size]


def _step_of(value: list[Any]) -> Step:
    instant, kind, before, after, files, size = value
    return Step(
        instant,
        StepKind[kind],
        slice_of(before) if before else None,
        slice_of(after) if after else None,
        tuple(files),
        size,
    )
