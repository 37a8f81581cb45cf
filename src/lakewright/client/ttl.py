"""`table.ttl`: the settings and policies by which old partitions leave a table.

All of them are among the table's properties, and change under its lock: of two processes that
change something at once both changes are there afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.progress import Progress

from lakewright.clock import Clock, SystemClock
from lakewright.errors import InvalidError
from lakewright.model.file_group import PARTITION_METADATA
from lakewright.model.ttl import (
    CONFLICT_RULE,
    ENABLED,
    POLICIES,
    RUN_INLINE,
    TRIGGER,
    TRIGGER_VALUE,
    TtlLevel,
    TtlPolicy,
    TtlSettings,
    format_policies,
    parse_policies,
    parse_policy,
    refuse_unpartitioned,
    ttl_settings,
    validated_settings,
    with_policy,
    with_settings,
    without_policy,
)
from lakewright.services.base import PlanningContext
from lakewright.services.ttl.hooks import RefreshProgress, update_partitions
from lakewright.services.ttl.planner import TtlDecision
from lakewright.services.ttl.record_ttl import require_keys
from lakewright.services.ttl.service import explain
from lakewright.storage.base import Storage, split_path
from lakewright.table.feature_checks import check_writable
from lakewright.table.locks.base import InProcessLock, Lock, held
from lakewright.table.properties import update_properties
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.utils.terminal import SafeConsole

# Whoever changes settings has writers beside them.
_SEVERAL_WRITERS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
_META_FOLDER = ".hoodie"

Change = Callable[[Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class TtlConfig:
    """The settings of a table, and its policies: those first that go first if several match."""

    settings: TtlSettings
    policies: tuple[TtlPolicy, ...]


@dataclass(frozen=True)
class TableTtl:
    """Partition TTL of one table; each call looks at the table as it is then."""

    storage: Storage
    options: Mapping[str, str]
    clock: Clock

    @classmethod
    def for_table(
        cls, storage: Storage, options: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> TableTtl:
        """`options` are about locks, where writers of the table need other than the usual ones."""
        return cls(storage, {**_SEVERAL_WRITERS, **(options or {})}, clock or SystemClock())

    def on(self, *, run_inline: bool = True) -> TtlConfig:
        """Put the policies in force; `run_inline` has the trigger checked after each write."""
        return self.configure(enabled=True, run_inline=run_inline)

    def off(self) -> TtlConfig:
        """Put the policies out of force; they stay saved."""
        return self.configure(enabled=False)

    def settings(
        self,
        *,
        trigger_strategy: str | None = None,
        trigger_value: int | str | None = None,
        resolve_conflicts_by: str | None = None,
    ) -> TtlConfig:
        """Change the settings that are given; whether TTL is on stays as it is."""
        return self.configure(
            trigger_strategy=trigger_strategy,
            trigger_value=trigger_value,
            resolve_conflicts_by=resolve_conflicts_by,
        )

    def configure(
        self,
        *,
        enabled: bool | None = None,
        run_inline: bool | None = None,
        trigger_strategy: str | None = None,
        trigger_value: int | str | None = None,
        resolve_conflicts_by: str | None = None,
    ) -> TtlConfig:
        """Change what is given, all of it in one step."""
        given = {
            ENABLED: None if enabled is None else str(enabled).lower(),
            RUN_INLINE: None if run_inline is None else str(run_inline).lower(),
            TRIGGER: trigger_strategy,
            TRIGGER_VALUE: trigger_value,
            CONFLICT_RULE: resolve_conflicts_by,
        }
        told = {key: str(value) for key, value in given.items() if value is not None}
        if not told:
            raise InvalidError("no setting was given", known=sorted(given))
        return self._change(lambda properties: told, partitioned=enabled is not False)

    def store(self, settings: Mapping[str, str]) -> TtlConfig:
        """Change settings by the keys under which they are stored, all of them in one step."""
        config = load_snapshot(self.storage).config
        keyed = bool(config.record_key_fields)
        validated_settings(settings, partitioned=bool(config.partition_fields), keyed=keyed)
        shown = self._change(lambda properties: settings, partitioned=False)
        for policy in parse_policies(settings.get(POLICIES, "")):
            self._warn_of_none(policy)
        return shown

    def save(self, policy: Mapping[str, Any] | str) -> TtlConfig:
        """Add a policy, or put it in the place of the one with the same spec.

        A policy is a mapping, or its JSON, with `spec`, `units`, `value`, and maybe `level`.
        """
        new = parse_policy(policy)
        if new.level is TtlLevel.RECORD:
            require_keys(load_snapshot(self.storage).config)
        shown = self._change_policies(lambda old: with_policy(old, new))
        self._warn_of_none(new)
        return shown

    def _warn_of_none(self, policy: TtlPolicy) -> None:
        if _matches_none(self.storage, policy):
            text = f"no partition of the table matches {policy.spec!r} so far"
            warnings.warn(text, UserWarning, stacklevel=3)

    def delete(self, spec: str) -> TtlConfig:
        """Take out the policy with a spec; InvalidError if there is none."""
        return self._change_policies(lambda old: without_policy(old, spec), partitioned=False)

    def empty(self) -> TtlConfig:
        """Take out all policies."""
        return self._change(lambda properties: {POLICIES: "[]"}, partitioned=False)

    def show(self) -> TtlConfig:
        """The settings and policies as they are."""
        return _shown(load_snapshot(self.storage).config.properties)

    def update_partitions(self, progress: RefreshProgress | None = None) -> int:
        """Write into each partition when it was last written to; gives how many were behind.

        Once is enough: it spares runs the search in history. `progress` is told how many partitions
        are done, and how many there are.
        """
        snapshot = load_snapshot(self.storage)
        check_writable(snapshot.config)
        if not snapshot.config.partition_fields:
            refuse_unpartitioned()
        return update_partitions(snapshot, progress)

    def explain(self, options: Mapping[str, str] | None = None) -> tuple[TtlDecision, ...]:
        """What would become of each partition now, and why; nothing is written.

        Policies count as if TTL were on.
        """
        snapshot = load_snapshot(self.storage)
        told = {ENABLED: "true", **(options or {})}
        return tuple(explain(PlanningContext(snapshot, "", self.clock.now_ms(), told)))

    def _change_policies(
        self,
        change: Callable[[tuple[TtlPolicy, ...]], tuple[TtlPolicy, ...]],
        *,
        partitioned: bool = True,
    ) -> TtlConfig:
        def changed(properties: Mapping[str, str]) -> Mapping[str, str]:
            old = parse_policies(properties.get(POLICIES, ""))
            return {POLICIES: format_policies(change(old))}

        return self._change(changed, partitioned=partitioned)

    def _change(self, change: Change, *, partitioned: bool = True) -> TtlConfig:
        """Read, modify and write under the lock; `partitioned` is what the table has to be."""
        writer = TransactionManager.from_options(self.storage, self.clock, self.options)

        def done(lock: Lock) -> TtlConfig:
            config = load_snapshot(self.storage).config
            check_writable(config)
            if partitioned and not config.partition_fields:
                refuse_unpartitioned()

            def changed(old: dict[str, str]) -> Mapping[str, str]:
                new = validated_settings(change(old), partitioned=bool(config.partition_fields))
                return with_settings(old, new)

            lock.verify()
            return _shown(update_properties(self.storage, changed))

        with self._without_lone_writers(writer):
            return writer.run_locked(done)

    def _without_lone_writers(self, writer: TransactionManager) -> AbstractContextManager[None]:
        """Keep out writers of this process that know of no others: they have a lock of their own.

        Nothing is to be done where it is the one that is taken anyway.
        """
        lone = TransactionManager.from_options(self.storage, self.clock, {}).new_lock()
        return nullcontext() if isinstance(writer.new_lock(), InProcessLock) else held(lone)


def _matches_none(storage: Storage, policy: TtlPolicy) -> bool:
    """Whether the table has partitions, and none for this policy; stops looking at the first."""
    paths = _partitions(storage)
    first = next(paths, None)
    return first is not None and not policy.matches(first) and not any(map(policy.matches, paths))


def _partitions(storage: Storage) -> Iterator[str]:
    for folder in storage.list_folders(""):
        files = storage.list_tree(folder) if folder != _META_FOLDER else ()
        for path, name in (split_path(file.path) for file in files):
            if name.startswith(PARTITION_METADATA):
                yield path


def _shown(properties: Mapping[str, str]) -> TtlConfig:
    settings = ttl_settings(properties, {})
    return TtlConfig(settings, settings.in_order)


# ------------------------------------------------------------------------------------------------
# A bar that tells how many partitions are done: on stderr, and only where that is a terminal.


def update_with_bar(ttl: TableTtl) -> int:
    """Fill in when each partition was last written to; gives how many were behind."""
    with Progress(console=SafeConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("partitions", total=None)
        return ttl.update_partitions(
            lambda done, total: bar.update(task, completed=done, total=total)
        )
