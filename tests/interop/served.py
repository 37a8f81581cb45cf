"""Tables whose services we and real Hudi schedule and execute in turn, and what readers see."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Self

import pyarrow as pa
from histories import SharedTable
from hudi import HudiTableBuilder
from real_hudi import Row
from test_writing import LISTED, Question, queries

from lakewright.model.file_group import BaseFile, parse_data_file
from lakewright.model.instant import Instant
from lakewright.model.plans import ClusteringPlan, CompactionPlan
from lakewright.services.base import plan_codec
from lakewright.storage.local import LocalStorage
from lakewright.table.markers import MarkerKind, create_marker
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.write.writer import Commit
from support.golden import as_json
from support.tables import WrittenTable, list_data_files

Options = Mapping[str, str]

# No service but those that a test asks for.
_QUIET = {
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}
_SESSION_KEYS = (
    "hoodie.metadata.enable",
    "hoodie.metadata.index.column.stats.enable",
    "hoodie.write.auto.upgrade",
)
_TIMELINE = ".hoodie/timeline"


@dataclass
class ServedTable(SharedTable):
    """A table, its model, and the two that write it and run its services."""

    @property
    def written(self) -> WrittenTable:
        table = super().written
        return replace(table, options={**table.options, **_QUIET})

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(str(self.path))

    def copied(self, to: Path) -> Self:
        """The same table somewhere else."""
        other = type(self)(self.hudi, Path(shutil.copytree(self.path, to)), self.kind)
        other.model, other.later = deepcopy(self.model), self.later
        return other

    def plan_by_us(self, service: str, options: Options) -> str:
        scheduled = self.written.services(options).schedule(service)
        assert isinstance(scheduled, Instant), scheduled
        return scheduled.requested_at

    def execute_by_us(self, instant: str) -> Commit:
        return self.written.services().execute(instant)

    def run_by_us(self, service: str, options: Options) -> Commit:
        commit = self.written.services(options).run(service)
        assert isinstance(commit, Commit), commit
        return commit

    def plan_by_them(self, service: str, options: Options) -> str:
        before = {i.requested_at for i in self.snapshot.timeline}
        self.call(f"run_{service}", f"op => 'schedule', {self._options_text(options)}")
        waiting = {i.requested_at for i in self.snapshot.timeline.pending(service)}
        (planned,) = waiting - before
        return planned

    def execute_by_them(self, service: str, instant: str) -> None:
        """Its compactions take an instant as a number, its clusterings as a text."""
        which = f"timestamp => {instant}" if service == "compaction" else f"instants => '{instant}'"
        self.call(f"run_{service}", f"op => 'execute', {which}, {self._options_text({})}")

    def shown_by_them(self, service: str) -> dict[str, str]:
        """The plans that real Hudi lists, and how far each is."""
        return {row["timestamp"]: row["state"] for row in self.call(f"show_{service}")}

    def call(self, procedure: str, arguments: str = "") -> list[Row]:
        all_arguments = ", ".join(filter(None, [f"path => '{self.path}'", arguments]))
        return self.hudi.sql(f"call {procedure}({all_arguments})", self._session)

    @property
    def _session(self) -> dict[str, str]:
        """What procedures do not take as an argument."""
        return {key: self.kind.their_options[key] for key in _SESSION_KEYS}

    def _options_text(self, options: Options) -> str:
        """Options as procedures take them."""
        settings = {"hoodie.metadata.enable": self._metadata, **options}
        return "options => '{}'".format(",".join(f"{k}={v}" for k, v in settings.items()))

    def plan_at(self, instant: str, service: str) -> CompactionPlan | ClusteringPlan:
        plan = self.snapshot.plan_of(instant, service)
        assert plan is not None
        return plan

    def rewrite_plan(
        self, instant: str, service: str, plan: CompactionPlan | ClusteringPlan
    ) -> None:
        """Put another plan in the place of one, whose checksum file must go with it."""
        name = f"{instant}.{service}.requested"
        (self.path / _TIMELINE / f".{name}.crc").unlink(missing_ok=True)
        self.storage.replace(f"{_TIMELINE}/{name}", plan_codec(service).format(plan))

    def die_at(self, instant: str, spare: Path) -> None:
        """Let us execute a plan and be killed after the first data file; tried out on a copy."""
        for survive in count():
            trial = self.copied(spare / str(survive))
            if trial._killed_after(instant, survive) and trial.files_of(instant):
                assert self._killed_after(instant, survive)
                return

    def _killed_after(self, instant: str, survive: int) -> bool:
        storage = CrashingStorage(self.storage, survive)
        try:
            replace(self.written, storage=storage).services().execute(instant)
        except Crash:
            return True
        return False

    def undo_completion(self, instant: str) -> None:
        """Make an execution one that was killed just before it completed, with its markers."""
        for file in (self.path / _TIMELINE).glob(f"*{instant}_*"):
            file.unlink()
        for path in self.files_of(instant):
            is_base = isinstance(parse_data_file(path.rpartition("/")[2]), BaseFile)
            kind = MarkerKind.MERGE if is_base else MarkerKind.CREATE
            create_marker(self.storage, instant, path, kind)

    def forget_execution(self, instant: str, service: str) -> None:
        """Leave nothing of an execution but its plan."""
        files = [*self.files_of(instant), f"{_TIMELINE}/{instant}.{service}.inflight"]
        self.storage.delete_many(files)
        for file in (self.path / _TIMELINE).glob(f"*{instant}_*"):
            file.unlink()

    def files_recorded(self, instant: str) -> list[str]:
        """The data files that the commit of an instant names."""
        instants = [i for i in self.snapshot.timeline.completed() if i.requested_at == instant]
        (commit,) = self.snapshot.commits(instants)
        return sorted(stat.path or "" for stat in commit.write_stats())

    def files_of(self, instant: str) -> list[str]:
        """The data files that carry an instant in their name."""
        named = [(path, path.rpartition("/")[2]) for path in list_data_files(self.storage)]
        parsed = [(path, parse_data_file(name)) for path, name in named]
        return [path for path, file in parsed if file is not None and file.instant == instant]


def stamped(row: Row) -> str:
    """A row with the time of the commit that it is of."""
    return f"{row['_hoodie_commit_time']} {as_json(row)}"


def our_answer(table: ServedTable, question: Question) -> list[str]:
    plan = question.ours(load_snapshot(table.storage))
    rows = read_plan(table.storage, plan).to_pylist(maps_as_pydicts="strict")
    return sorted(map(stamped, rows))


def hudi_rs_answer(table: ServedTable, question: Question) -> list[str]:
    reader = HudiTableBuilder.from_base_uri(str(table.path)).build()
    batches = [pa.record_batch(batch) for batch in reader.read(question.hudi_rs)]
    rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    return sorted(map(stamped, rows))


def check(table: ServedTable, *, ranges: int = 99) -> list[str]:
    """All readers see the same in the table and in its last ranges; returns the rows of it.

    Real Hudi reads without its metadata table, and with it where there is one. hudi-rs reads no
    ranges: it leaves out rows that were overwritten since.
    """
    views = queries(table, since=None)
    changes = queries(table, since="")[len(views) :]
    questions = [*views, *changes[max(0, len(changes) - ranges) :]]
    ours = {question.name: our_answer(table, question) for question in questions}
    assert sorted(text.partition(" ")[2] for text in ours["snapshot"]) == table.expected
    reads = [(question, {**LISTED, **question.theirs}) for question in questions]
    if table.is_indexed:
        reads += [(question, question.theirs) for question in views]
    theirs = table.hudi.read_all(table.path, [options for _, options in reads])
    for (question, _), rows in zip(reads, theirs, strict=True):
        assert (question.name, sorted(map(stamped, rows))) == (question.name, ours[question.name])
    for question in views:
        assert (question.name, hudi_rs_answer(table, question)) == (
            question.name,
            ours[question.name],
        )
    return ours["snapshot"]


@contextmanager
def same_rows(table: ServedTable, *, ranges: int = 99) -> Iterator[None]:
    """What happens in the block changes no row and no commit time, for any reader."""
    before = our_answer(table, queries(table, since=None)[0])
    yield
    assert check(table, ranges=ranges) == before
