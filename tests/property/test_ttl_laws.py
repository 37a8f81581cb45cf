"""Whatever happens to a table: no young partition is ever taken out, and every old one is."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.client.ttl import TableTtl
from lakewright.errors import ConflictError
from lakewright.model.instant import Instant, parse_time
from lakewright.model.plans import Skip
from lakewright.model.ttl import ConflictRule, TtlPolicy, parse_policies
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.write.writer import Commit
from support.soak import sized
from support.tables import NO_SERVICES, Row, WrittenTable, row

PARTITIONS = ("p1", "p2", "q1")
SERVED = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.clustering.inline.max.commits": "1",
}
policies = st.lists(
    st.builds(
        lambda spec, units, value: {"spec": spec, "units": units, "value": value},
        st.sampled_from(["*", "p*", "p1", "q?"]),
        st.sampled_from(["DAYS", "WEEKS", "MONTHS"]),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda policy: str(policy["spec"]),
)
partition = st.sampled_from(PARTITIONS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), partition),
        st.tuples(st.just("write"), partition),
        st.tuples(st.just("delete"), partition),
        st.tuples(st.just("wait"), st.integers(1, 40)),
        st.tuples(st.just("wait"), st.integers(-3, 40)),
        st.tuples(
            st.sampled_from(["run", "schedule"]),
            st.sampled_from(["compaction", "logcompaction", "clustering"]),
        ),
        st.tuples(st.just("run"), st.sampled_from(["clean", "archive"])),
        st.tuples(st.just("execute"), st.none()),
        st.tuples(st.just("update"), st.none()),
        st.tuples(st.just("expire"), st.none()),
    ),
    min_size=3,
    max_size=16,
)


@dataclass
class TtlHistory:
    """A table, and the expected times of its partitions."""

    table: WrittenTable
    clock: ManualClock
    policies: tuple[TtlPolicy, ...]
    rule: ConflictRule
    merges: bool
    written: dict[str, datetime] = field(default_factory=dict)
    number: int = 0

    def do(self, kind: str, what: Any) -> None:
        match kind:
            case "write":
                self._write("UPSERT", row(f"k-{what}", self._next(), day=what))
            case "delete":
                self._write("DELETE", row("nobody", self._next(), day=what))
            case "wait":
                self.clock.advance(round(what * 12 * 3_600_000))
            case "run" | "schedule":
                self._serve(kind, what)
            case "execute":
                for instant in load_snapshot(self.table.storage).timeline.pending():
                    self.table.services(SERVED).execute(instant.requested_at)
            case "update":
                TableTtl.for_table(self.table.storage).update_partitions()
            case "expire":
                self.expire()

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _write(self, operation: str, new: Row) -> None:
        # A pending clustering blocks updates of its rows.
        with suppress(ConflictError):
            commit = self.table.write(operation, [new])
            for path in commit.partitions:
                self.written[path] = parse_time(commit.completed_at)

    def _serve(self, kind: str, name: str) -> None:
        services = self.table.services(SERVED)
        if name.endswith("compaction") and not self.merges:
            return
        if name in ("clean", "archive") or not load_snapshot(self.table.storage).timeline.pending():
            outcome = services.run(name) if kind == "run" else services.schedule(name)
            assert isinstance(outcome, Commit | Skip | Instant)

    def expiry(self, path: str) -> datetime | None:
        pick = max if self.rule is ConflictRule.MAX_TTL else min
        expiries = [p.expiry(self.written[path]) for p in self.policies if p.matches(path)]
        return pick(expiries) if expiries else None

    def is_old(self, path: str) -> bool:
        expiry = self.expiry(path)
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.clock.now_ms())
        return expiry is not None and now > expiry

    def expire(self) -> None:
        old = {path for path in self.written if self.is_old(path)}
        outcome = self.table.services().run("ttl")
        expired = set(outcome.partitions) if isinstance(outcome, Commit) else set()
        assert expired <= old
        snapshot = load_snapshot(self.table.storage)
        pending = {path for _, plan in snapshot.pending_plans() for path in plan.partitions}
        assert expired == old - pending
        for path in expired:
            del self.written[path]
        live = {group.partition for group in snapshot.groups(snapshot.view())}
        assert live == set(self.written)


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@settings(max_examples=sized(10, 400), deadline=None)
@given(saved=policies, rule=st.sampled_from(list(ConflictRule)), course=steps)
def test_the_young_stay_and_the_old_go(
    table_type: str, saved: list[dict[str, object]], rule: ConflictRule, course: list[Any]
) -> None:
    clock = ManualClock()
    options = {
        "hoodie.ttl.enabled": "true",
        "hoodie.ttl.policies": json.dumps(saved),
        "hoodie.ttl.conflict.resolution.rule": rule.value,
    }
    table = WrittenTable(options=NO_SERVICES, clock=clock).create(table_type, options=options)
    history = TtlHistory(
        table, clock, parse_policies(json.dumps(saved)), rule, table_type == "MERGE_ON_READ"
    )
    for kind, what in [("write", PARTITIONS[0]), *course, ("execute", None), ("expire", None)]:
        history.do(kind, what)
