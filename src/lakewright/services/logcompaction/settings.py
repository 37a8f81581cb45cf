"""The options of log compaction, with Hudi's own keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.services.planning_settings import LogPlanningSettings
from lakewright.settings import at_least, option


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionSettings(LogPlanningSettings):
    """When log files are worth to be made one."""

    blocks_threshold: int = option(
        "hoodie.log.compaction.blocks.threshold",
        5,
        parse=at_least(1),
        doc="How many log files, since its base file or the last log compaction, make a file group "
        "worth it; and how many delta commits before it is tried.",
    )
