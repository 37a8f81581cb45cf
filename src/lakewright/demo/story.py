"""The state of the demo as a value, and its report: ten lines of text or a JSON document. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lakewright.demo.checks import HUDI_RS, Check, Lateness
from lakewright.demo.events import Recipe
from lakewright.model.event_time import time_text
from lakewright.model.freshness import ViewFreshness
from lakewright.model.instant import Instant, InstantTime
from lakewright.model.watermark import CompletionDefinition

_UNKNOWN = ViewFreshness()
_DEFINITIONS = {
    CompletionDefinition.LAST_COMMIT: "the least event time of the last commit",
    CompletionDefinition.WATERMARK: "the watermark",
}
_NONE_LATE = Lateness(0, 0)


@dataclass(frozen=True, slots=True)
class Round:
    """An ingested batch."""

    number: int
    rows: int
    inserted: int
    updated: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction by event time.

    Its planning considered `looked_at` of all `partitions`. It compacts log files with rows before
    the event time `until`: `folded` of them, and `left` are uncompacted after it. If nothing was to
    be compacted, `skipped` is the reason.
    """

    looked_at: int
    partitions: int
    until: int
    folded: int = 0
    left: int = 0
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Consumed:
    """How much of the change feed the consumer has read."""

    changes: int = 0
    commits: int = 0
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """The partitions that TTL deleted, and the number of deleted rows in the change feed."""

    partitions: tuple[str, ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Clustering:
    """A cancellable clustering that was executed during an ingest.

    `winner` is the commit that preempted it, None if the clustering completed first. `files` is the
    number of files that were rolled back, and `left` are the paths of leftover files.
    """

    instant: InstantTime
    groups: int
    winner: str | None = None
    reason: str = ""
    files: int = 0
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """The requested and the completion time of an instant, in milliseconds; None if pending."""

    action: str
    begin: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Story:
    """The state of the demo; `doing` is the current step, `messages` are of finished steps."""

    path: str
    recipe: Recipe
    doing: str = ""
    rounds: tuple[Round, ...] = ()
    compactions: tuple[Compacted, ...] = ()
    consumed: Consumed = Consumed()
    expired: Expired = Expired()
    clusterings: tuple[Clustering, ...] = ()
    snapshot: ViewFreshness = _UNKNOWN
    read_optimized: ViewFreshness = _UNKNOWN
    definition: CompletionDefinition = CompletionDefinition.LAST_COMMIT
    log_files: int = 0
    log_bytes: int = 0
    bars: tuple[Bar, ...] = ()
    messages: tuple[str, ...] = ()
    lateness: Lateness = _NONE_LATE
    checks: tuple[Check, ...] = ()
    took_s: float = 0.0

    @property
    def rows(self) -> int:
        """The number of events ingested so far."""
        return sum(result.rows for result in self.rounds)

    def complete_until(self, view: ViewFreshness) -> int | None:
        """The event time up to which a view is complete, by the definition of the table."""
        return view.complete_until(self.definition)

    @property
    def preempted(self) -> Clustering | None:
        """The clustering that an ingest preempted, if any."""
        return next(
            (clustering for clustering in self.clusterings if clustering.winner is not None), None
        )

    @property
    def passed(self) -> bool:
        """Whether checks have run and none has failed."""
        return bool(self.checks) and all(check.passed is not False for check in self.checks)


def summary(story: Story) -> list[str]:
    """The report in ten lines."""
    recipe = story.recipe
    inserted = sum(result.inserted for result in story.rounds)
    updated = sum(result.updated for result in story.rounds)
    read_optimized = story.read_optimized
    return [
        f"Table: {inserted:,} rides of {len(recipe.days) + 1} days, merge-on-read, from seed "
        f"{recipe.seed}; {story.took_s:.0f} s in all.",
        f"Ingest: {story.rows:,} events in {len(story.rounds)} batches; {updated:,} updates, "
        f"{story.lateness.late:,} events late, {story.lateness.overtaken:,} of them after newer "
        "ones.",
        f"Incremental services: {_planning(story.compactions)}.",
        f"Event time: {_event_time(story.compactions)}.",
        f"Fast view: complete up to {event_time_text(story.complete_until(read_optimized))}, by "
        f"{_DEFINITIONS[story.definition]}; newest row "
        f"{event_time_text(read_optimized.freshness)}, the snapshot's "
        f"{event_time_text(story.snapshot.freshness)}.",
        f"Change feed: {story.consumed.changes:,} changes of {story.consumed.commits} commits, in "
        "the order in which they completed.",
        f"TTL: {_ttl(story.expired)}.",
        f"Clustering: {_clustering(story)}.",
        f"Checks against plain Python: {_python_checks(story.checks)}.",
        f"Check against {HUDI_RS}: {_hudi_rs_check(story.checks)}.",
    ]


def document(story: Story) -> dict[str, Any]:
    """The report as a JSON document."""
    return {
        "path": story.path,
        "seed": story.recipe.seed,
        "today": story.recipe.today.isoformat(),
        "took_s": round(story.took_s, 1),
        "passed": story.passed,
        "batches": [asdict(result) for result in story.rounds],
        "events": story.rows,
        "late": asdict(story.lateness),
        "compactions": [asdict(compaction) for compaction in story.compactions],
        "change_feed": asdict(story.consumed),
        "ttl": asdict(story.expired),
        "clusterings": [asdict(clustering) for clustering in story.clusterings],
        "freshness": {
            "definition": story.definition.value,
            "snapshot": asdict(story.snapshot),
            "read_optimized": asdict(story.read_optimized),
        },
        "debt": {"log_files": story.log_files, "log_bytes": story.log_bytes},
        "checks": [asdict(check) for check in story.checks],
        "summary": summary(story),
    }


def event_time_text(ms: int | None) -> str:
    """Format an event time, to the minute."""
    return "unknown" if ms is None else time_text(ms)[:16].replace("T", " ")


def bars(instants: Iterable[Instant]) -> tuple[Bar, ...]:
    """The bars of the instants of a timeline."""
    return tuple(
        Bar(
            instant.action,
            _milliseconds(instant.requested_at),
            None if instant.completed_at is None else _milliseconds(instant.completed_at),
        )
        for instant in instants
    )


def _milliseconds(time: str) -> int:
    seconds = datetime.strptime(time[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return int(seconds.timestamp()) * 1000 + int(time[14:17] or 0)


def _planning(compactions: Sequence[Compacted]) -> str:
    if not compactions:
        return "no compaction was planned"
    first, *later = compactions
    text = f"planning considered {first.looked_at} of {first.partitions} partitions the first time"
    if later:
        counts = ", ".join(f"{result.looked_at} of {result.partitions}" for result in later)
        text = f"{text}, then {counts}"
    return text


def _event_time(compactions: Sequence[Compacted]) -> str:
    completed = [compaction for compaction in compactions if not compaction.skipped]
    if not completed:
        return "nothing was compacted"
    log_files = sum(compaction.folded for compaction in completed)
    return (
        f"{len(completed)} compactions of {log_files} log files, the last up to "
        f"{event_time_text(completed[-1].until)}; uncompacted log files with newer rows: "
        f"{completed[-1].left}"
    )


def _ttl(expired: Expired) -> str:
    if not expired.partitions:
        return "nothing was deleted"
    days = ", ".join(expired.partitions)
    return f"deleted {days} with {expired.rows:,} rows"


def _clustering(story: Story) -> str:
    preempted = story.preempted
    completed = sum(clustering.winner is None for clustering in story.clusterings)
    prefix = f"{completed} completed before an ingest could, then " if completed else ""
    if preempted is None:
        return f"{prefix}none was preempted by an ingest"
    leftover = f"{len(preempted.left)} files" if preempted.left else "nothing"
    return (
        f"{prefix}a plan of {preempted.groups} file groups was preempted by commit "
        f"{preempted.winner} of an ingest; files rolled back: {preempted.files}, "
        f"{leftover} left over"
    )


def _python_checks(checks: Sequence[Check]) -> str:
    run = [check for check in checks if check.name != HUDI_RS]
    failed = [f"{check.name} WRONG ({check.seen})" for check in run if not check.passed]
    if failed:
        return "; ".join(failed)
    return f"{len(run)} of {len(run)} passed ({', '.join(check.name for check in run)})"


def _hudi_rs_check(checks: Sequence[Check]) -> str:
    hudi_rs = next((check for check in checks if check.name == HUDI_RS), None)
    return "not run" if hudi_rs is None else str(hudi_rs)
