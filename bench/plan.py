"""Which steps a race takes, in which order, and what is left out for whom. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

LAKEWRIGHT = "lakewright"
HUDI = "hudi"
DELTA = "delta"
ICEBERG = "iceberg"
LIMIT = "limit"
RACERS = (LAKEWRIGHT, HUDI, DELTA, ICEBERG)
SYSTEMS = (LAKEWRIGHT, LIMIT, HUDI, DELTA, ICEBERG)

HOT_YEAR = "1995"
COMMIT_ROWS = 100

# The load test of partition TTL. Real Hudi 1.2 cannot keep partitions for more than 24 days.
AGED_FIELD = "l_suppkey"
AGED_DAYS = 30
RETAINED_DAYS = 20
RETAINED_ROWS = f"{AGED_FIELD} % 2 = 1"
SUPPLIERS = 10_000  # at scale 1


class Kind(StrEnum):
    """A table that every system keeps in its own way."""

    COW = "cow"
    MOR = "mor"
    BUCKET = "bucket"
    TINY = "tiny"
    TINY_NOT_DURABLE = "tiny_not_durable"
    FEED = "feed"
    MANY = "many"
    AGED = "aged"

    @property
    def is_tiny(self) -> bool:
        """Whether it is filled by tiny commits."""
        return self in (Kind.TINY, Kind.TINY_NOT_DURABLE)


class Do(StrEnum):
    """What the process of a system can be asked."""

    LOAD = "load"
    UPSERT = "upsert"
    DELETE = "delete"
    COMMITS = "commits"
    SCAN = "scan"
    CHANGES = "changes"
    COMPACT = "compact"
    CLUSTER = "cluster"
    MAKE_MANY = "make_many"
    PLAN = "plan"
    MAKE_AGED = "make_aged"
    TTL = "ttl"
    CHECK = "check"
    KEEP = "keep"
    RESTORE = "restore"
    LIMIT_LOAD = "limit_load"
    LIMIT_REWRITE = "limit_rewrite"
    LIMIT_SCAN = "limit_scan"


_SERVICES = (Do.COMPACT, Do.CLUSTER)


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing that is measured. `starts` names the change that the table must hold before."""

    name: str
    about: str
    kind: Kind
    do: Do
    source: str = ""
    starts: str = ""
    optimized: bool = False
    racers: tuple[str, ...] = RACERS
    limit: Do | None = None
    memory: bool = False
    partitions: int = 0

    @property
    def resulting_change(self) -> str:
        """The change that the table holds afterwards."""
        if self.do in _SERVICES:
            return f"{self.do} {self.starts}"
        return self.starts if self.do is Do.SCAN else self.source

    def why_not(self, system: str) -> str | None:
        """The reason why a system does not take part; None if it does."""
        if system == LIMIT:
            return None if self.limit else "there is no bare work to compare it with"
        if system in self.racers:
            return None
        return f"{system} has nothing of the kind"


HUDIS = (LAKEWRIGHT, HUDI)

WORKLOADS = (
    Workload(
        "load", "bulk load of all rows, partitioned by year of shipment",
        Kind.COW, Do.LOAD, limit=Do.LIMIT_LOAD, memory=True),
    Workload(
        "upsert_spread_cow", "5 % of the rows updated and 2 % new ones, in all partitions",
        Kind.COW, Do.UPSERT, "spread", limit=Do.LIMIT_REWRITE, memory=True),
    Workload(
        "upsert_spread_mor", "the same on a merge-on-read table",
        Kind.MOR, Do.UPSERT, "spread", memory=True),
    Workload(
        "upsert_spread_mor_bucket", "the same on a merge-on-read table with a bucket index",
        Kind.BUCKET, Do.UPSERT, "spread", racers=HUDIS, memory=True),
    Workload(
        "upsert_hot", "20 % of the rows of one year updated",
        Kind.COW, Do.UPSERT, "hot", limit=Do.LIMIT_REWRITE),
    Workload(
        "delete", "1 % of the rows deleted by key, in all partitions",
        Kind.COW, Do.DELETE, "delete", limit=Do.LIMIT_REWRITE),
    Workload(
        "tiny_commit", f"upserts of {COMMIT_ROWS} rows in a row; seconds for each",
        Kind.TINY, Do.COMMITS, "tiny"),
    Workload(
        "tiny_commit_not_durable",
        "the same with durable=false: no commit waits for the disk",
        Kind.TINY_NOT_DURABLE, Do.COMMITS, "tiny", racers=(LAKEWRIGHT,)),
    Workload(
        "scan", "aggregates over all columns and over two, of the table as loaded",
        Kind.COW, Do.SCAN, limit=Do.LIMIT_SCAN),
    Workload(
        "scan_mor", "the same of a merge-on-read table after upsert_spread_mor",
        Kind.MOR, Do.SCAN, starts="spread"),
    Workload(
        "scan_ro", "the same of its base files alone",
        Kind.MOR, Do.SCAN, starts="spread", optimized=True, racers=HUDIS, limit=Do.LIMIT_SCAN),
    Workload(
        "compact", "compaction of all file groups after 5 % of the rows were updated",
        Kind.MOR, Do.COMPACT, starts="touch", racers=HUDIS, limit=Do.LIMIT_REWRITE),
    Workload(
        "cluster", "all rows sorted by part within their partitions",
        Kind.COW, Do.CLUSTER, limit=Do.LIMIT_REWRITE),
    Workload(
        "changes", "the rows that the last commit changed, and the last ten, out of many",
        Kind.FEED, Do.CHANGES, "feed", racers=(LAKEWRIGHT, HUDI, DELTA)),
    *(
        Workload(
            f"plan_{count}",
            f"scheduling a compaction when 10 of {count} partitions changed: incremental planning "
            "by Lakewright, planning over all partitions by Hudi",
            Kind.MANY, Do.PLAN, racers=HUDIS, partitions=count)
        for count in (100, 1_000, 10_000)
    ),
    *(
        Workload(
            f"ttl_{count}",
            f"a TTL run that expires half of {count} partitions, one for each supplier; its parts "
            "are load, update, find, run and clean",
            Kind.AGED, Do.TTL, racers=HUDIS, partitions=count)
        for count in (500, SUPPLIERS)
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """How much is raced."""

    scale: float = 0.05
    rounds: int = 3
    commits: int = 30
    scans: int = 2
    partitions: int = 1_000
    feed: int = 12

    def fits(self, workload: Workload) -> bool:
        """Whether a table with the partitions of a workload can be made."""
        most = SUPPLIERS * self.scale if workload.do is Do.TTL else self.partitions
        return workload.partitions <= most

    def commits_of(self, round_number: int) -> range:
        """The tiny commits of one round: together the rounds make all of them, in a row."""
        return range(
            self.commits * round_number // self.rounds,
            self.commits * (round_number + 1) // self.rounds,
        )


FULL = Size(scale=1.0, rounds=5, commits=200, scans=3, partitions=10_000, feed=50)


@dataclass(frozen=True, slots=True)
class Step:
    """One request to the process of one system; only `counted` ones are measured."""

    round: int
    workload: str
    system: str
    do: Do
    kind: Kind
    source: str = ""
    starts: str = ""
    optimized: bool = False
    first: int = 0
    count: int = 0
    counted: bool = False
    memory: bool = False

    @property
    def process(self) -> str:
        """Whose process does it: the limit is taken beside Lakewright, which also makes tables."""
        ours = self.system == LIMIT or self.do in {Do.MAKE_MANY, Do.MAKE_AGED}
        return LAKEWRIGHT if ours else self.system


def chosen_workloads(prefixes: Sequence[str]) -> tuple[Workload, ...]:
    """The workloads whose name begins with one of the prefixes; all of them without any."""
    for prefix in prefixes:
        if not any(workload.name.startswith(prefix) for workload in WORKLOADS):
            raise ValueError(f"--only {prefix}: no workload has such a name")
    return tuple(
        workload
        for workload in WORKLOADS
        if not prefixes or any(workload.name.startswith(prefix) for prefix in prefixes)
    )


def chosen_systems(names: Sequence[str]) -> tuple[str, ...]:
    """The systems named, in their usual order; the limit comes along with Lakewright."""
    unknown = sorted(set(names) - set(SYSTEMS))
    if unknown:
        raise ValueError(f"--system {','.join(unknown)}: there are {', '.join(SYSTEMS)}")
    if not names:
        return SYSTEMS
    chosen = set(names) | ({LIMIT} if LAKEWRIGHT in names else set())
    if LIMIT in chosen and LAKEWRIGHT not in chosen:
        raise ValueError("--system limit: it is measured in the process of lakewright, name both")
    return tuple(system for system in SYSTEMS if system in chosen)


def rotated(systems: Sequence[str], by: int) -> tuple[str, ...]:
    """The systems beginning with another one in every round; the limit follows Lakewright."""
    racers = [system for system in systems if system != LIMIT]
    turn = by % len(racers)
    order: list[str] = []
    for system in racers[turn:] + racers[:turn]:
        order += [system, LIMIT] if system == LAKEWRIGHT and LIMIT in systems else [system]
    return tuple(order)


@dataclass(slots=True)
class _Planner:
    """Knows, while planning, which state each system's tables are in."""

    size: Size
    copied: set[tuple[str, Kind]] = field(default_factory=set)
    states: dict[tuple[str, Kind], str | None] = field(default_factory=dict)

    def steps(self, number: int, workload: Workload, system: str) -> Iterator[Step]:
        if system == LIMIT:
            assert workload.limit is not None
            yield self._step(number, workload, system, workload.limit, counted=True)
            return
        if workload.do is Do.PLAN:
            if number == 0:
                yield self._step(number, workload, system, Do.MAKE_MANY)
            yield self._step(number, workload, system, Do.PLAN, counted=True)
            return
        if workload.do is Do.CHANGES:
            yield from self._changes(number, workload, system)
            return
        if workload.do is Do.TTL:
            yield from self._ttl(number, workload, system)
            return
        if workload.do is not Do.LOAD:
            yield from self._prepared(number, workload, system)
        counted = self._step(number, workload, system, workload.do, counted=True)
        yield counted
        table_key = (system, workload.kind)
        self.states[table_key] = workload.resulting_change
        if workload.do is Do.LOAD and table_key not in self.copied:
            self.copied.add(table_key)
            yield self._step(number, workload, system, Do.KEEP)
        # The next rounds do the same to the same rows; only tiny commits go on.
        if number == 0 or workload.do is Do.COMMITS:
            yield self._step(number, workload, system, Do.CHECK)

    def _changes(self, number: int, workload: Workload, system: str) -> Iterator[Step]:
        """A table with many commits is made once; reading does not change it."""
        if number == 0:
            yield self._step(number, workload, system, Do.LOAD)
            yield self._step(number, workload, system, Do.COMMITS)
        yield self._step(number, workload, system, Do.CHANGES, counted=True)
        if number == 0:
            yield self._step(number, workload, system, Do.CHECK)

    def _ttl(self, number: int, workload: Workload, system: str) -> Iterator[Step]:
        """The table is there anew in every round, made by Lakewright for all: it can back-date."""
        yield self._step(number, workload, system, Do.MAKE_AGED)
        yield self._step(number, workload, system, Do.TTL, counted=True)
        if number == 0:
            yield self._step(number, workload, system, Do.CHECK)

    def _prepared(self, number: int, workload: Workload, system: str) -> Iterator[Step]:
        table_key = (system, workload.kind)
        if table_key not in self.copied:
            self.copied.add(table_key)
            self.states[table_key] = ""
            yield self._step(number, workload, system, Do.LOAD)
            yield self._step(number, workload, system, Do.KEEP)
        if workload.do is Do.COMMITS and number > 0:
            return
        if self.states.get(table_key) == workload.starts:
            return
        yield self._step(number, workload, system, Do.RESTORE)
        if workload.starts:
            yield self._step(number, workload, system, Do.UPSERT, source=workload.starts)

    def _step(
        self,
        number: int,
        workload: Workload,
        system: str,
        do: Do,
        *,
        source: str | None = None,
        counted: bool = False,
    ) -> Step:
        commits = self.size.commits_of(number)
        if do is Do.COMMITS and workload.kind is Kind.FEED:
            commits = range(self.size.feed)
        return Step(
            round=number,
            workload=workload.name,
            system=system,
            do=do,
            kind=workload.kind,
            source=workload.source if source is None else source,
            starts=workload.starts,
            optimized=workload.optimized,
            first=commits.start,
            count=workload.partitions
            or (len(commits) if Do.COMMITS in (do, workload.do) else self.size.scans),
            counted=counted,
            memory=counted and workload.memory and system != LIMIT,
        )


def plan_race(
    size: Size, workloads: Iterable[Workload], systems: Sequence[str]
) -> tuple[Step, ...]:
    """All steps: in every round each workload by all systems, in rotated order."""
    planner = _Planner(size)
    chosen = tuple(filter(size.fits, workloads))
    return tuple(
        step
        for number in range(size.rounds)
        for workload in chosen
        for system in rotated(systems, number)
        if workload.why_not(system) is None
        for step in planner.steps(number, workload, system)
    )


def skipped_workloads(
    workloads: Iterable[Workload], systems: Sequence[str]
) -> dict[str, dict[str, str]]:
    """For each workload the systems that do not take part, with the reason."""
    return {
        workload.name: reasons
        for workload in workloads
        if (
            reasons := {
                system: reason
                for system in systems
                if (reason := workload.why_not(system)) is not None
            }
        )
    }
