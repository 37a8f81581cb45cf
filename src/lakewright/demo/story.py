"""What has happened in the demo so far, as a value, and the ten lines that tell it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lakewright.demo.events import Recipe
from lakewright.demo.expected import Check, Lateness
from lakewright.model.freshness import ViewFreshness
from lakewright.model.instant import Instant, InstantTime

HUDI_RS = "hudi-rs"

_UNKNOWN = ViewFreshness()
_NONE_LATE = Lateness(0, 0)


@dataclass(frozen=True, slots=True)
class Round:
    """A batch that was brought into the table."""

    number: int
    rows: int
    inserted: int
    updated: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction by event time: how many partitions its planning looked at, of how many.

    `until` is the event time before which it folds log files; `left` are those that wait after it,
    and `skipped` tells why nothing was due, if so.
    """

    looked_at: int
    partitions: int
    until: int
    folded: int = 0
    left: int = 0
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Consumed:
    """What the consumer of the change feed has read."""

    changes: int = 0
    commits: int = 0
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """What TTL has taken out: partitions, and the rows that the consumer was told of."""

    partitions: tuple[str, ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Clustering:
    """A cancellable clustering that was executed while an ingest committed.

    `winner` is the commit that was faster, None where the clustering was. `files` is how many files
    were taken back, and `left` what is still there of it, by path.
    """

    instant: InstantTime
    groups: int
    winner: str | None = None
    reason: str = ""
    files: int = 0
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """An instant of the timeline: from when to when, in milliseconds; `end` is None if pending."""

    action: str
    begin: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Story:
    """The demo so far; `doing` is what it is at, and `said` what services did, in order."""

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
    log_files: int = 0
    log_bytes: int = 0
    bars: tuple[Bar, ...] = ()
    said: tuple[str, ...] = ()
    lateness: Lateness = _NONE_LATE
    checks: tuple[Check, ...] = ()
    took_s: float = 0.0

    @property
    def rows(self) -> int:
        """Events that were brought so far."""
        return sum(each.rows for each in self.rounds)

    @property
    def preempted(self) -> Clustering | None:
        """The clustering that gave way, if one has."""
        return next((each for each in self.clusterings if each.winner is not None), None)

    @property
    def passed(self) -> bool:
        """Whether no check has failed."""
        return bool(self.checks) and all(check.passed is not False for check in self.checks)


def summary(story: Story) -> list[str]:
    """What happened, in ten lines."""
    recipe = story.recipe
    inserted = sum(each.inserted for each in story.rounds)
    updated = sum(each.updated for each in story.rounds)
    fast = story.read_optimized
    return [
        f"Table: {inserted:,} rides of {len(recipe.days) + 1} days, merge-on-read, from seed "
        f"{recipe.seed}; {story.took_s:.0f} s in all.",
        f"Ingest: {story.rows:,} events in {len(story.rounds)} batches; {updated:,} updates, "
        f"{story.lateness.late:,} events late, {story.lateness.overtaken:,} of them after newer "
        "ones.",
        f"Incremental services: {_planning(story.compactions)}.",
        f"Event time: {_event_time(story.compactions)}.",
        f"Fast view: complete up to {moment(fast.completion)}, newest row "
        f"{moment(fast.freshness)}; the snapshot's newest is {moment(story.snapshot.freshness)}.",
        f"Change feed: {story.consumed.changes:,} changes of {story.consumed.commits} commits, in "
        "the order in which they completed.",
        f"TTL: {_expired(story.expired)}.",
        f"Clustering: {_clustering(story)}.",
        f"Checks against plain Python: {_checked(story.checks)}.",
        f"Check against {HUDI_RS}: {_hudi_rs(story.checks)}.",
    ]


def document(story: Story) -> dict[str, Any]:
    """The same for programs."""
    return {
        "path": story.path,
        "seed": story.recipe.seed,
        "today": story.recipe.today.isoformat(),
        "took_s": round(story.took_s, 1),
        "passed": story.passed,
        "batches": [asdict(each) for each in story.rounds],
        "events": story.rows,
        "late": asdict(story.lateness),
        "compactions": [asdict(each) for each in story.compactions],
        "change_feed": asdict(story.consumed),
        "ttl": asdict(story.expired),
        "clusterings": [asdict(each) for each in story.clusterings],
        "freshness": {
            "snapshot": asdict(story.snapshot),
            "read_optimized": asdict(story.read_optimized),
        },
        "debt": {"log_files": story.log_files, "log_bytes": story.log_bytes},
        "checks": [asdict(check) for check in story.checks],
        "summary": summary(story),
    }


def moment(ms: int | None) -> str:
    """An event time, to the minute."""
    if ms is None:
        return "unknown"
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M}"


def bars(instants: Iterable[Instant]) -> tuple[Bar, ...]:
    """The instants of a timeline, from their request to their completion."""
    return tuple(
        Bar(
            each.action,
            _milliseconds(each.requested_at),
            None if each.completed_at is None else _milliseconds(each.completed_at),
        )
        for each in instants
    )


def _milliseconds(time: str) -> int:
    read = datetime.strptime(time[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return int(read.timestamp()) * 1000 + int(time[14:17] or 0)


def _planning(compactions: Sequence[Compacted]) -> str:
    if not compactions:
        return "no compaction was planned"
    first, *later = compactions
    told = f"planning looked at {first.looked_at} of {first.partitions} partitions the first time"
    if later:
        counts = ", ".join(f"{each.looked_at} of {each.partitions}" for each in later)
        told = f"{told}, then at {counts}"
    return told


def _event_time(compactions: Sequence[Compacted]) -> str:
    done = [each for each in compactions if not each.skipped]
    if not done:
        return "nothing was compacted"
    folded = sum(each.folded for each in done)
    return (
        f"{len(done)} compactions folded {folded} log files, the last up to "
        f"{moment(done[-1].until)}; log files left with newer rows: {done[-1].left}"
    )


def _expired(expired: Expired) -> str:
    if not expired.partitions:
        return "nothing was taken out"
    days = ", ".join(expired.partitions)
    return f"took out {days}, and with it {expired.rows:,} rows"


def _clustering(story: Story) -> str:
    gave_way = story.preempted
    quicker = sum(each.winner is None for each in story.clusterings)
    before = f"{quicker} completed before an ingest could, then " if quicker else ""
    if gave_way is None:
        return f"{before}none gave way to an ingest"
    left = f"{len(gave_way.left)} files" if gave_way.left else "nothing"
    return (
        f"{before}a plan of {gave_way.groups} file groups gave way to commit {gave_way.winner} of "
        f"an ingest; files taken back: {gave_way.files}, {left} left of it"
    )


def _checked(checks: Sequence[Check]) -> str:
    asked = [check for check in checks if check.name != HUDI_RS]
    wrong = [f"{check.name} WRONG ({check.seen})" for check in asked if not check.passed]
    if wrong:
        return "; ".join(wrong)
    return f"{len(asked)} of {len(asked)} passed ({', '.join(check.name for check in asked)})"


def _hudi_rs(checks: Sequence[Check]) -> str:
    found = next((check for check in checks if check.name == HUDI_RS), None)
    return "not asked" if found is None else str(found)
