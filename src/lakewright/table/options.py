"""The options of transactions, locks, heartbeats and plans, with Hudi's own keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lakewright.model.plans import CANCELLABLE
from lakewright.model.table_config import TableConfig
from lakewright.options import at_least, option, option_keys, parse_bool, parse_word, settings_from

# With a shorter interval running writers would seem to have failed even if storage answers at once;
# Hudi has the same limit.
_MIN_INTERVAL_MS = 1000


class Concurrency(StrEnum):
    """How many writers a table may have at once, and how their conflicts are handled."""

    SINGLE = "SINGLE_WRITER"
    OPTIMISTIC = "OPTIMISTIC_CONCURRENCY_CONTROL"
    NON_BLOCKING = "NON_BLOCKING_CONCURRENCY_CONTROL"


def with_optimistic_concurrency(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a process that runs beside other writers, unless they say otherwise."""
    return {"hoodie.write.concurrency.mode": Concurrency.OPTIMISTIC.value, **options}


class FailedWritesPolicy(StrEnum):
    """When pending writes are rolled back: at the next write, or once their heartbeat expired."""

    EAGER = "EAGER"
    LAZY = "LAZY"
    NEVER = "NEVER"


class ClusteringUpdateStrategy(StrEnum):
    """How an update of rows that a pending clustering is about to move is handled."""

    REJECT = "REJECT"
    ALLOW = "ALLOW"


_UPDATE_STRATEGIES = {
    "SparkRejectUpdateStrategy": ClusteringUpdateStrategy.REJECT,
    "SparkAllowUpdateStrategy": ClusteringUpdateStrategy.ALLOW,
}


class ConflictStrategy(StrEnum):
    """Which of two conflicting operations wins.

    SIMPLE: whichever completes first. PREFER_WRITER: writers take no notice of pending plans, and
    clusterings and compactions yield to writers that have announced the same file groups.
    """

    SIMPLE = "SIMPLE"
    PREFER_WRITER = "PREFER_WRITER"


_CONFLICT_STRATEGIES = {
    "SimpleConcurrentFileWritesConflictResolutionStrategy": ConflictStrategy.SIMPLE,
    "BucketIndexConcurrentFileWritesConflictResolutionStrategy": ConflictStrategy.SIMPLE,
    "PreferWriterConflictResolutionStrategy": ConflictStrategy.PREFER_WRITER,
}


def _parse_conflict_strategy(text: str) -> ConflictStrategy:
    name = text.strip().rpartition(".")[2]
    if name not in _CONFLICT_STRATEGIES:
        raise ValueError(f"one of {', '.join(_CONFLICT_STRATEGIES)} expected")
    return _CONFLICT_STRATEGIES[name]


def _parse_update_strategy(text: str) -> ClusteringUpdateStrategy:
    name = text.strip().rpartition(".")[2]
    if name in _UPDATE_STRATEGIES:
        return _UPDATE_STRATEGIES[name]
    if name.upper() in list(ClusteringUpdateStrategy):
        return ClusteringUpdateStrategy(name.upper())
    raise ValueError(
        f"one of {', '.join([*_UPDATE_STRATEGIES, *ClusteringUpdateStrategy])} expected"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSettings:
    """Which lock the writers of a table take, and how long to wait for it."""

    provider: str | None = option(
        "hoodie.write.lock.provider",
        None,
        parse=str.strip,
        doc="`in_process`, `file`, `storage`, or the class name of Hudi's provider of that kind. "
        "Unset: `in_process` for a single writer; else `storage` where the store has conditional "
        "writes that real Hudi uses (s3, gs, azure) and `file` elsewhere.",
    )
    wait_ms: int = option(
        "hoodie.write.lock.wait_time_ms",
        60_000,
        parse=int,
        doc="How long to wait for the lock before giving up.",
    )
    retry_ms: int = option(
        "hoodie.write.lock.wait_time_ms_between_retry",
        1_000,
        parse=int,
        doc="How long to wait between two attempts to take the lock, at most.",
    )
    file_path: str = option(
        "hoodie.write.lock.filesystem.path",
        "",
        parse=str.strip,
        doc="The folder of the lock file, below the table; unset: `.hoodie`.",
    )
    file_expire_minutes: int = option(
        "hoodie.write.lock.filesystem.expire",
        0,
        parse=int,
        doc="A lock file of this age is taken over; 0: never.",
    )
    storage_validity_s: int = option(
        "hoodie.write.lock.storage.validity.timeout.secs",
        300,
        parse=int,
        doc="How long a storage lock is valid without renewal.",
    )
    storage_renew_s: int = option(
        "hoodie.write.lock.storage.renew.interval.secs",
        30,
        parse=int,
        doc="How often a storage lock is renewed while it is held.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    """How often a writer renews its heartbeat, and when a heartbeat is expired."""

    interval_ms: int = option(
        "hoodie.client.heartbeat.interval_in_ms",
        60_000,
        parse=at_least(_MIN_INTERVAL_MS),
        doc="How often the heartbeat file is renewed; 1000 or more.",
    )
    misses: int = option(
        "hoodie.client.heartbeat.tolerable.misses",
        2,
        parse=at_least(1),
        doc="A heartbeat older than this many intervals is expired.",
    )

    @property
    def expires_after_ms(self) -> int:
        """The age above which a heartbeat is expired."""
        return self.interval_ms * self.misses


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """How a write begins and commits, and how it treats writes of other processes."""

    concurrency: Concurrency = option(
        "hoodie.write.concurrency.mode",
        Concurrency.SINGLE,
        parse=parse_word(Concurrency),
        doc="SINGLE_WRITER, OPTIMISTIC_CONCURRENCY_CONTROL, or NON_BLOCKING_CONCURRENCY_CONTROL "
        "(merge-on-read with bucket index).",
    )
    failed_writes_policy: FailedWritesPolicy = option(
        "hoodie.clean.failed.writes.policy",
        FailedWritesPolicy.EAGER,
        parse=parse_word(FailedWritesPolicy),
        aliases=("hoodie.cleaner.policy.failed.writes",),
        doc="EAGER: the next write rolls back pending writes. LAZY, which several writers imply: "
        "only those whose heartbeat has expired.",
    )
    clock_skew_ms: int = option(
        "hoodie.time.generator.max_expected_clock_skew_ms",
        200,
        parse=int,
        doc="How far the clocks of several writers may be apart; a single writer does not wait.",
    )
    conflict_retries: int = option(
        "hoodie.write.num.retries.on.conflict.failures",
        0,
        parse=int,
        doc="How often a write that lost against another is planned and done again.",
    )
    early_conflicts: bool = option(
        "hoodie.write.concurrency.early.conflict.detection.enable",
        False,
        parse=parse_bool,
        doc="Look for other writers of the same file group before each file, not only at the end.",
    )
    clustering_updates: ClusteringUpdateStrategy = option(
        "hoodie.clustering.updates.strategy",
        ClusteringUpdateStrategy.REJECT,
        parse=_parse_update_strategy,
        doc="How an update of rows that a pending clustering is about to move is handled: "
        "SparkRejectUpdateStrategy refuses it, SparkAllowUpdateStrategy carries it out, upon which "
        "the clustering fails; with optimistic concurrency only if the writer is preferred.",
    )
    conflict_strategy: ConflictStrategy = option(
        "hoodie.write.lock.conflict.resolution.strategy",
        ConflictStrategy.SIMPLE,
        parse=_parse_conflict_strategy,
        doc="Which of two conflicting operations wins: whichever completes first, or, with "
        "PreferWriterConflictResolutionStrategy, a writer over a clustering or compaction that is "
        "pending.",
    )
    fail_on_pending_ingestion: bool = option(
        "hoodie.clustering.fail.on.pending.ingestion.during.conflict.resolution",
        False,
        parse=parse_bool,
        doc="With PreferWriterConflictResolutionStrategy: whether a clustering also fails if a "
        "writer with a live heartbeat has announced no file groups yet.",
    )
    rollback_by_markers: bool = option(
        "hoodie.rollback.using.markers",
        True,
        parse=parse_bool,
        doc="Find the files of a failed write by its markers; else by listing the table.",
    )

    @property
    def prefers_writers(self) -> bool:
        """Whether plans of all kinds yield to pending writes."""
        return self.conflict_strategy is ConflictStrategy.PREFER_WRITER

    @property
    def yields_to_clustering(self) -> bool:
        """Whether a write fails for a pending clustering of the same file groups.

        As in Hudi, updates that are allowed still conflict with it where conflicts are checked.
        """
        rejects = self.clustering_updates is ClusteringUpdateStrategy.REJECT
        checks = self.concurrency is Concurrency.OPTIMISTIC
        return (rejects or checks) and not self.prefers_writers

    @property
    def several_writers(self) -> bool:
        """Whether other writers may be running."""
        return self.concurrency is not Concurrency.SINGLE

    @property
    def failed_writes(self) -> FailedWritesPolicy:
        """The policy in effect: several writers imply LAZY, which spares live heartbeats."""
        eager = self.failed_writes_policy is FailedWritesPolicy.EAGER
        return (
            FailedWritesPolicy.LAZY if self.several_writers and eager else self.failed_writes_policy
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """How plans of compactions, log compactions and clusterings are executed and cancelled."""

    cancellable: bool = option(
        CANCELLABLE,
        False,
        parse=parse_bool,
        doc="Whether the plans that are made now are cancellable: writers do not wait for them, "
        "and they are rolled back when an execution fails.",
    )
    guard: bool | None = option(
        "hoodie.table.service.execution.guard",
        None,
        parse=parse_bool,
        doc="Whether every execution has a heartbeat, and a plan with a live heartbeat is not "
        "executed by another process. Unset: yes, where there may be several writers.",
    )
    rollback_delay_minutes: int = option(
        "hoodie.table.service.rollback.delay.minutes",
        0,
        parse=at_least(0),
        doc="How old a cancellable plan that was not started must be before a lazy clean rolls it "
        "back. 0: the next clean does, unless the plan is being executed.",
    )
    expire_clusterings: bool = option(
        "hoodie.clustering.enable.expirations",
        False,
        parse=parse_bool,
        doc="Whether clusterings that are not cancellable expire: the client that schedules one "
        "has to execute it, and a lazy clean rolls back old ones without a live heartbeat.",
    )
    clusterings_expire_minutes: int = option(
        "hoodie.clustering.expiration.threshold.mins",
        60,
        parse=at_least(0),
        doc="How old a clustering must be to expire.",
    )
    escalate_after: int = option(
        "lakewright.plan.escalate.after",
        0,
        parse=at_least(0),
        doc="How often in a row writers may preempt cancellable clusterings of a partition, before "
        "its plan is an ordinary one, which writers wait for. 0: always.",
    )


PLAN_KEYS = option_keys(PlanSettings)


def plan_settings(config: TableConfig, options: Mapping[str, str]) -> PlanSettings:
    """Return the settings for plans: from `options`, else from the table's properties."""
    stored = {key: config.properties[key] for key in PLAN_KEYS if config.properties.get(key)}
    return settings_from(PlanSettings, {**stored, **options})
