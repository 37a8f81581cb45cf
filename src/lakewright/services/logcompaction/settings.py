"""The options of log compaction, with Hudi's own keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.settings import at_least, option, parse_bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionSettings:
    """When log files are worth to be made one."""

    enabled: bool = option(
        "hoodie.log.compaction.enable",
        False,
        parse=parse_bool,
        doc="Whether writes that run services beside them may compact log files. A log compaction "
        "that is asked for by name needs no permission.",
    )
    inline: bool = option(
        "hoodie.log.compaction.inline",
        False,
        parse=parse_bool,
        doc="Whether a log compaction is tried after each write.",
    )
    blocks_threshold: int = option(
        "hoodie.log.compaction.blocks.threshold",
        5,
        parse=at_least(1),
        doc="How many log files, since its base file or the last log compaction, make a file group "
        "worth it; and how many delta commits before it is tried.",
    )
    incremental: bool = option(
        "hoodie.table.services.incremental.enabled",
        True,
        parse=parse_bool,
        doc="Whether planning looks only at partitions that were written, or left out, since the "
        "last plan; else at all of the table.",
    )
    max_file_size: int = option(
        "hoodie.parquet.max.file.size",
        125_829_120,
        parse=at_least(1),
        doc="What writing a base file is taken to cost where there is none yet.",
    )
