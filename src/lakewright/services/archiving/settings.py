"""The options of archiving, with Hudi's own keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.errors import InvalidError
from lakewright.format.history import MERGE_BYTES
from lakewright.settings import at_least, option, parse_bool

_MIN, _MAX = "hoodie.keep.min.commits", "hoodie.keep.max.commits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivingSettings:
    """How long the active timeline may grow, and how history is kept."""

    keep_min: int = option(
        _MIN,
        20,
        parse=at_least(1),
        doc="So many commits stay on the active timeline. More do where the retention of the "
        "cleaner, or a service that is yet to come, needs them there.",
    )
    keep_max: int = option(
        _MAX,
        30,
        parse=at_least(2),
        doc="Archive when there are more commits than this on the active timeline.",
    )
    batch: int = option(
        "hoodie.commits.archival.batch",
        10,
        parse=at_least(1),
        doc="How many commits are archived at once; more are done one batch after the other.",
    )
    beyond_savepoint: bool = option(
        "hoodie.archive.beyond.savepoint",
        False,
        parse=parse_bool,
        doc="Archive commits behind a savepoint too, all but the saved ones.",
    )
    block_on_clean: bool = option(
        "hoodie.archive.block.on.latest.clean.ectr",
        False,
        parse=parse_bool,
        doc="Never archive what the last clean has retained, however long the timeline grows.",
    )
    merge_files: int = option(
        "hoodie.timeline.compaction.batch.size",
        10,
        parse=at_least(2),
        doc="So many files of one level of history become one file of the next.",
    )
    merge_bytes: int = option(
        "hoodie.timeline.compaction.target.file.max.bytes",
        MERGE_BYTES,
        parse=at_least(1),
        doc="About how large a file of history may become.",
    )
    manifests_retained: int = option(
        "hoodie.timeline.manifest.retained.versions",
        3,
        parse=at_least(1),
        doc="So many states of history stay readable, for readers that began with one of them.",
    )

    def __post_init__(self) -> None:
        if self.keep_max <= self.keep_min:
            raise InvalidError(
                f"{_MAX} must be greater than {_MIN}", maximum=self.keep_max, minimum=self.keep_min
            )
