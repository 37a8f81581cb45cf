"""The options of transactions: how writers of one table get along, with Hudi's own keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lakewright.model.plans import CANCELLABLE
from lakewright.model.table_config import TableConfig
from lakewright.options import at_least, option, option_keys, parse_bool, parse_word, settings_from

# Below this even a storage that answers at once would take living writers for dead, as in Hudi.
_LEAST_INTERVAL_MS = 1000


class Concurrency(StrEnum):
    """How many writers a table may have at once, and what becomes of their conflicts."""

    SINGLE = "SINGLE_WRITER"
    OPTIMISTIC = "OPTIMISTIC_CONCURRENCY_CONTROL"
    NON_BLOCKING = "NON_BLOCKING_CONCURRENCY_CONTROL"


class FailedWritesPolicy(StrEnum):
    """When pending writes are rolled back: at the next write, or once their writer is dead."""

    EAGER = "EAGER"
    LAZY = "LAZY"
    NEVER = "NEVER"


class ClusteringUpdateStrategy(StrEnum):
    """What becomes of an update of rows that a pending clustering is about to move."""

    REJECT = "REJECT"
    ALLOW = "ALLOW"


_UPDATES = {
    "SparkRejectUpdateStrategy": ClusteringUpdateStrategy.REJECT,
    "SparkAllowUpdateStrategy": ClusteringUpdateStrategy.ALLOW,
}


def _updates(text: str) -> ClusteringUpdateStrategy:
    word = text.strip().rpartition(".")[2]
    if word in _UPDATES:
        return _UPDATES[word]
    if word.upper() in list(ClusteringUpdateStrategy):
        return ClusteringUpdateStrategy(word.upper())
    raise ValueError(f"one of {', '.join([*_UPDATES, *ClusteringUpdateStrategy])} expected")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSettings:
    """Which lock keeps writers apart, and how long to wait for it."""

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
    """How a writer shows that it is alive, and when it counts as dead."""

    interval_ms: int = option(
        "hoodie.client.heartbeat.interval_in_ms",
        60_000,
        parse=at_least(_LEAST_INTERVAL_MS),
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
        """A heartbeat that is older than this is expired."""
        return self.interval_ms * self.misses


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """How a write begins, completes, and treats the writes of others."""

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
        parse=_updates,
        doc="What becomes of an update of rows that a pending clustering is about to move: "
        "SparkRejectUpdateStrategy refuses it, SparkAllowUpdateStrategy carries it out, upon which "
        "the clustering fails.",
    )
    rollback_by_markers: bool = option(
        "hoodie.rollback.using.markers",
        True,
        parse=parse_bool,
        doc="Find the files of a failed write by its markers; else by listing the table.",
    )

    @property
    def several_writers(self) -> bool:
        """Whether other writers may be at work."""
        return self.concurrency is not Concurrency.SINGLE

    @property
    def failed_writes(self) -> FailedWritesPolicy:
        """The policy in effect: with several writers nobody alive is rolled back."""
        eager = self.failed_writes_policy is FailedWritesPolicy.EAGER
        return (
            FailedWritesPolicy.LAZY if self.several_writers and eager else self.failed_writes_policy
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What becomes of the plans of compactions, log compactions and clusterings."""

    cancellable: bool = option(
        CANCELLABLE,
        False,
        parse=parse_bool,
        doc="Whether the plans that are made now are cancellable: writers do not wait for them, "
        "and they go when an execution fails.",
    )
    guard: bool | None = option(
        "hoodie.table.service.execution.guard",
        None,
        parse=parse_bool,
        doc="Whether a plan with a living heartbeat is left to the one who executes it, and every "
        "execution has a heartbeat. Unset: yes, where there may be several writers.",
    )
    rollback_delay_minutes: int = option(
        "hoodie.table.service.rollback.delay.minutes",
        0,
        parse=at_least(0),
        doc="How old a cancellable plan that nobody has begun must be before a lazy clean takes it "
        "back. 0: the next clean does, unless somebody is executing it.",
    )


PLAN_KEYS = option_keys(PlanSettings)


def plan_settings(config: TableConfig, options: Mapping[str, str]) -> PlanSettings:
    """What becomes of plans: what options say, else what was stored with the table."""
    stored = {key: config.properties[key] for key in PLAN_KEYS if config.properties.get(key)}
    return settings_from(PlanSettings, {**stored, **options})
