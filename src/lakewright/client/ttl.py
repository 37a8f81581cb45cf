"""`table.ttl`: the TTL settings and policies of a table.

Settings and policies are table properties. Each change reads, modifies and writes the properties
under the table's lock, so that concurrent changes by two processes are both kept.
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
from lakewright.table.locks.base import InProcessLock, Lock, acquired
from lakewright.table.options import with_optimistic_concurrency
from lakewright.table.properties import update_properties
from lakewright.table.snapshot import data_folders, load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.utils.deprecation import warn_renamed
from lakewright.utils.terminal import SafeConsole

Change = Callable[[Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class TtlConfig:
    """The TTL settings of a table and its policies, in the order of precedence."""

    settings: TtlSettings
    policies: tuple[TtlPolicy, ...]


@dataclass(frozen=True)
class TableTtl:
    """The TTL settings and policies of one table, as returned by `table.ttl`.

    Each call reads the current state of the table. Changes are made under the table's lock.

    Example:
        ```python
        table.ttl.save({"spec": "*", "units": "YEARS", "value": 1})
        table.ttl.save({"spec": "country=US/*", "units": "MONTHS", "value": 2})
        table.ttl.enable()
        table.ttl.explain()  # a decision for each partition; nothing is written
        table.run("ttl")
        ```
    """

    storage: Storage
    options: Mapping[str, str]
    clock: Clock

    @classmethod
    def for_table(
        cls, storage: Storage, options: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> TableTtl:
        """Return the TTL of the table in a storage.

        Args:
            storage: The storage of the table.
            options: Lock options, if the writers of the table use other locks than the default.
            clock: The clock; the system clock if omitted.
        """
        return cls(storage, with_optimistic_concurrency(options or {}), clock or SystemClock())

    def enable(self, *, run_inline: bool = True) -> TtlConfig:
        """Enable TTL, so that the policies of the table apply.

        Args:
            run_inline: Whether to check the trigger after each write. Otherwise TTL runs beside
                writes and after each clean.

        Returns:
            The new settings and the policies.
        """
        return self.configure(enabled=True, run_inline=run_inline)

    def disable(self) -> TtlConfig:
        """Disable TTL; the policies stay stored.

        Returns:
            The new settings and the policies.
        """
        return self.configure(enabled=False)

    def configure(
        self,
        *,
        enabled: bool | None = None,
        run_inline: bool | None = None,
        trigger_strategy: str | None = None,
        trigger_value: int | str | None = None,
        resolve_conflicts_by: str | None = None,
    ) -> TtlConfig:
        """Change the given settings in one step.

        Args:
            enabled: Whether the policies apply.
            run_inline: Whether to check the trigger after each write.
            trigger_strategy: `NUM_COMMITS` or `TIME_ELAPSED`.
            trigger_value: Number of commits or days after which an inline run is due.
            resolve_conflicts_by: `MAX_TTL` or `MIN_TTL`: which of several matching policies
                applies.

        Returns:
            The new settings and the policies.

        Raises:
            InvalidError: No setting was given, or a value is invalid.
        """
        values = {
            ENABLED: None if enabled is None else str(enabled).lower(),
            RUN_INLINE: None if run_inline is None else str(run_inline).lower(),
            TRIGGER: trigger_strategy,
            TRIGGER_VALUE: trigger_value,
            CONFLICT_RULE: resolve_conflicts_by,
        }
        changes = {key: str(value) for key, value in values.items() if value is not None}
        if not changes:
            raise InvalidError("no setting was given", known=sorted(values))
        return self._change(lambda properties: changes, partitioned=enabled is not False)

    def store(self, settings: Mapping[str, str]) -> TtlConfig:
        """Change settings by the keys under which they are stored, in one step.

        Args:
            settings: Values by key, such as `hoodie.ttl.enabled`.

        Returns:
            The new settings and the policies.

        Raises:
            InvalidError: A key or a value is invalid.
        """
        config = load_snapshot(self.storage).config
        has_record_key = bool(config.record_key_fields)
        validated_settings(
            settings, partitioned=bool(config.partition_fields), keyed=has_record_key
        )
        result = self._change(lambda properties: settings, partitioned=False)
        for policy in parse_policies(settings.get(POLICIES, "")):
            self._warn_if_unmatched(policy)
        return result

    def save(self, policy: Mapping[str, Any] | str) -> TtlConfig:
        """Add a policy, or replace the one with the same spec.

        Args:
            policy: A mapping or its JSON, with `spec`, `units`, `value` and optionally `level`.

        Returns:
            The settings and the new policies.

        Raises:
            InvalidError: The policy is invalid, or the table is not partitioned.

        Example:
            ```python
            table.ttl.save({"spec": "day=*", "units": "DAYS", "value": 30})
            ```
        """
        new_policy = parse_policy(policy)
        if new_policy.level is TtlLevel.RECORD:
            require_keys(load_snapshot(self.storage).config)
        result = self._change_policies(lambda policies: with_policy(policies, new_policy))
        self._warn_if_unmatched(new_policy)
        return result

    def _warn_if_unmatched(self, policy: TtlPolicy) -> None:
        if _matches_no_partition(self.storage, policy):
            text = f"no partition of the table matches {policy.spec!r} so far"
            warnings.warn(text, UserWarning, stacklevel=3)

    def delete(self, spec: str) -> TtlConfig:
        """Delete the policy with a spec.

        Args:
            spec: The spec of the policy.

        Returns:
            The settings and the remaining policies.

        Raises:
            InvalidError: There is no such policy.
        """
        return self._change_policies(
            lambda policies: without_policy(policies, spec), partitioned=False
        )

    def clear_policies(self) -> TtlConfig:
        """Delete all policies.

        Returns:
            The settings.
        """
        return self._change(lambda properties: {POLICIES: "[]"}, partitioned=False)

    @property
    def config(self) -> TtlConfig:
        """The current settings and policies."""
        return _ttl_config(load_snapshot(self.storage).config.properties)

    def update_partitions(self, progress: RefreshProgress | None = None) -> int:
        """Write the time of the last write into the metadata file of each partition.

        Run this once on a table that existed before TTL was enabled: later runs then need not
        search the archived timeline.

        Args:
            progress: Called with the number of processed partitions and their total number.

        Returns:
            The number of partitions that were updated.

        Raises:
            InvalidError: The table is not partitioned.
        """
        snapshot = load_snapshot(self.storage)
        check_writable(snapshot.config)
        if not snapshot.config.partition_fields:
            refuse_unpartitioned()
        return update_partitions(snapshot, progress)

    def explain(self, options: Mapping[str, str] | None = None) -> tuple[TtlDecision, ...]:
        """Return the decision on each partition, as if TTL were enabled; nothing is written.

        Args:
            options: TTL options for this call.

        Returns:
            For each partition, whether it is expired, by which policy, and what blocks its
            deletion.
        """
        snapshot = load_snapshot(self.storage)
        settings = {ENABLED: "true", **(options or {})}
        return tuple(explain(PlanningContext(snapshot, "", self.clock.now_ms(), settings)))

    # Deprecated names of version 0.1, to be removed in version 0.3.

    def on(self, *, run_inline: bool = True) -> TtlConfig:
        """Deprecated: use `enable`."""
        warn_renamed("ttl.on", "ttl.enable")
        return self.enable(run_inline=run_inline)

    def off(self) -> TtlConfig:
        """Deprecated: use `disable`."""
        warn_renamed("ttl.off", "ttl.disable")
        return self.disable()

    def settings(
        self,
        *,
        trigger_strategy: str | None = None,
        trigger_value: int | str | None = None,
        resolve_conflicts_by: str | None = None,
    ) -> TtlConfig:
        """Deprecated: use `configure`."""
        warn_renamed("ttl.settings", "ttl.configure")
        return self.configure(
            trigger_strategy=trigger_strategy,
            trigger_value=trigger_value,
            resolve_conflicts_by=resolve_conflicts_by,
        )

    def empty(self) -> TtlConfig:
        """Deprecated: use `clear_policies`."""
        warn_renamed("ttl.empty", "ttl.clear_policies")
        return self.clear_policies()

    def show(self) -> TtlConfig:
        """Deprecated: use `config`."""
        warn_renamed("ttl.show", "ttl.config")
        return self.config

    def _change_policies(
        self,
        change: Callable[[tuple[TtlPolicy, ...]], tuple[TtlPolicy, ...]],
        *,
        partitioned: bool = True,
    ) -> TtlConfig:
        def changed_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
            policies = parse_policies(properties.get(POLICIES, ""))
            return {POLICIES: format_policies(change(policies))}

        return self._change(changed_properties, partitioned=partitioned)

    def _change(self, change: Change, *, partitioned: bool = True) -> TtlConfig:
        """Change properties under the lock; InvalidError if a `partitioned` table is required."""
        manager = TransactionManager.from_options(self.storage, self.clock, self.options)

        def change_locked(lock: Lock) -> TtlConfig:
            config = load_snapshot(self.storage).config
            check_writable(config)
            if partitioned and not config.partition_fields:
                refuse_unpartitioned()

            def changed_properties(properties: dict[str, str]) -> Mapping[str, str]:
                validated = validated_settings(
                    change(properties), partitioned=bool(config.partition_fields)
                )
                return with_settings(properties, validated)

            lock.verify()
            return _ttl_config(update_properties(self.storage, changed_properties))

        with self._exclude_single_writers(manager):
            return manager.run_locked(change_locked)

    def _exclude_single_writers(self, manager: TransactionManager) -> AbstractContextManager[None]:
        """Hold the in-process lock, which single writers in this process take.

        Such writers do not take the lock of the given manager. If that is the in-process lock
        itself, nothing more is to be held.
        """
        in_process = TransactionManager.from_options(self.storage, self.clock, {}).new_lock()
        return (
            nullcontext() if isinstance(manager.new_lock(), InProcessLock) else acquired(in_process)
        )


def _matches_no_partition(storage: Storage, policy: TtlPolicy) -> bool:
    """Whether the table has partitions, none of which matches; stops listing at the first match."""
    paths = _partitions(storage)
    first = next(paths, None)
    return first is not None and not policy.matches(first) and not any(map(policy.matches, paths))


def _partitions(storage: Storage) -> Iterator[str]:
    for folder in data_folders(storage):
        for path, name in (split_path(file.path) for file in storage.list_tree(folder)):
            if name.startswith(PARTITION_METADATA):
                yield path


def _ttl_config(properties: Mapping[str, str]) -> TtlConfig:
    settings = ttl_settings(properties, {})
    return TtlConfig(settings, settings.in_order)


def update_with_bar(ttl: TableTtl) -> int:
    """Run `update_partitions` with a progress bar on stderr, which is shown only on a terminal."""
    with Progress(console=SafeConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("partitions", total=None)
        return ttl.update_partitions(
            lambda processed, total: bar.update(task, completed=processed, total=total)
        )
