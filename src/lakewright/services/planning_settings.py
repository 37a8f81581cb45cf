"""The options that services which rewrite file groups have in common."""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.settings import at_least, option, parse_bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningSettings:
    """How much of the table planning looks at."""

    incremental: bool = option(
        "hoodie.table.services.incremental.enabled",
        True,
        parse=parse_bool,
        doc="Whether planning looks only at partitions that were written, or left out, since the "
        "last plan; else at all of the table.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlanningSettings(PlanningSettings):
    """The same, where plans weigh log files."""

    max_file_size: int = option(
        "hoodie.parquet.max.file.size",
        125_829_120,
        parse=at_least(1),
        doc="What writing a base file is taken to cost where there is none yet.",
    )
