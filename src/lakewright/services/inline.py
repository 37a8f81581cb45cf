"""The services that follow a write, in the same process: what Hudi's writers do unless told not to.

A service that is not due costs no call to storage: the timeline that the write has seen last tells.
The write is complete before the first of them begins.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from lakewright.core.plans import Skip
from lakewright.core.table_config import TableConfig, TableType
from lakewright.errors import ConflictError, LakewrightError
from lakewright.services.registry import service_by_name
from lakewright.services.runner import ServiceRunner
from lakewright.settings import option, option_keys, parse_bool, settings_from
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.write.commit import Commit


def _yes_or_no(text: str) -> bool | None:
    return parse_bool(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineSettings:
    """Which services follow a write."""

    compaction: bool | None = option(
        "hoodie.compact.inline",
        None,
        parse=_yes_or_no,
        doc="Whether a write to a merge-on-read table is followed by a compaction, if one is due. "
        "Unset: yes, unless compactions are only scheduled.",
    )
    schedule_compaction: bool = option(
        "hoodie.compact.schedule.inline",
        False,
        parse=parse_bool,
        doc="Whether a write schedules a compaction, if one is due, for others to execute.",
    )
    log_compaction: bool = option(
        "hoodie.log.compaction.inline",
        False,
        parse=parse_bool,
        doc="Whether a write is followed by a log compaction, if one is due.",
    )
    clustering: bool = option(
        "hoodie.clustering.inline",
        False,
        parse=parse_bool,
        aliases=("hoodie.datasource.clustering.inline.enable",),
        doc="Whether a write is followed by a clustering, if one is due.",
    )
    schedule_clustering: bool = option(
        "hoodie.clustering.schedule.inline",
        False,
        parse=parse_bool,
        doc="Whether a write schedules a clustering, if one is due, for others to execute.",
    )
    clean: bool = option(
        "hoodie.clean.automatic",
        True,
        parse=parse_bool,
        doc="Whether a write is followed by a clean, if one is due.",
    )
    archive: bool = option(
        "hoodie.archive.automatic",
        True,
        parse=parse_bool,
        doc="Whether a write is followed by archiving, if that is due.",
    )
    must_succeed: bool = option(
        "hoodie.fail.writes.on.inline.table.service.exception",
        True,
        parse=parse_bool,
        doc="Whether the failure of a service after a write is an error, though the write itself "
        "has completed; else it is a warning.",
    )

    def steps(self, config: TableConfig) -> Iterator[tuple[str, bool]]:
        """The services of this table, in order; and whether they are only scheduled."""
        if config.table_type is TableType.MERGE_ON_READ:
            inline = self.compaction
            if inline or (inline is None and not self.schedule_compaction):
                yield "compaction", False
            elif self.schedule_compaction:
                yield "compaction", True
            if self.log_compaction:
                yield "logcompaction", False
        if self.clustering or self.schedule_clustering:
            yield "clustering", not self.clustering
        if self.clean:
            yield "clean", False
        if self.archive:
            yield "archive", False


INLINE_KEYS = option_keys(InlineSettings)


def run_inline(runner: ServiceRunner, after: Snapshot) -> tuple[Commit | Skip, ...]:
    """Run what follows a write; `after` is the table as the write has left it."""
    settings = settings_from(InlineSettings, runner.options)
    results: list[Commit | Skip] = []
    for name, only_scheduled in settings.steps(after.config):
        try:
            found = _step(runner, name, after, only_scheduled=only_scheduled)
        except ConflictError as error:
            # Somebody else is at it, which is as good.
            found = [Skip(f"{name}: {error}")]
        except LakewrightError as error:
            if settings.must_succeed:
                error.add_note("The write before it has completed, only this service has not.")
                raise
            warnings.warn(f"{name} after a write failed: {error}", RuntimeWarning, stacklevel=3)
            found = [Skip(f"{name}: {error}")]
        results += found
        if any(isinstance(each, Commit) for each in found):
            after = load_snapshot(runner.storage)
    return tuple(results)


def _step(
    runner: ServiceRunner, name: str, after: Snapshot, *, only_scheduled: bool
) -> list[Commit | Skip]:
    service = service_by_name(name)
    done: list[Commit | Skip] = []
    if not only_scheduled and service.action:
        # What others have scheduled, or an attempt that died has left, comes first.
        waiting = after.timeline.pending(service.action)
        done += [runner.execute(instant.requested_at) for instant in waiting]
    early = service.due(runner.sight(after))
    if early is not None:
        return [*done, early]
    if only_scheduled:
        scheduled = runner.schedule(name)
        told = scheduled if isinstance(scheduled, Skip) else Skip(f"scheduled as {scheduled}")
        return [*done, told]
    return [*done, runner.run(name)]
