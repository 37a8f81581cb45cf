"""The watermark: the greatest event time seen, less an allowed lateness.

It is the second definition of completion, beside that of the RFC. Rows up to the watermark are
taken to have arrived; those that arrive after it has passed them are late, and are counted.

A commit stores a `WatermarkRecord`, JSON in its extra metadata under `lakewright.watermark`, if a
lateness is set. It names its own commit, since other writers may copy extra metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

WATERMARK_KEY = "lakewright.watermark"


class CompletionDefinition(StrEnum):
    """Which event time counts as the completion of a view.

    - LAST_COMMIT: the RFC's, the least event time of the last commit that added rows;
    - WATERMARK: the greatest event time of all commits, less the allowed lateness.
    """

    LAST_COMMIT = "last_commit"
    WATERMARK = "watermark"


@dataclass(frozen=True, slots=True)
class WatermarkRecord:
    """What a commit records for the watermark.

    - `at` is the commit's own requested time;
    - `lateness_ms` is the allowed lateness; None if the watermark was switched off;
    - `before` is what was complete before the commit: by the watermark of the snapshot, or of the
      read-optimized view for a table service, which rewrites older rows;
    - `late_rows` are, by partition, the rows of the commit at or before the table's watermark.
    """

    at: str
    lateness_ms: int | None
    before: int | None = None
    late_rows: Mapping[str, int] = field(default_factory=dict)


def format_watermark_record(record: WatermarkRecord) -> str:
    """Return the JSON text of a record; the inverse of `parse_watermark_record`."""
    tree = {
        "at": record.at,
        "lateness": record.lateness_ms,
        "before": record.before,
        "late_rows": dict(sorted(record.late_rows.items())),
    }
    return json.dumps(tree, separators=(",", ":"))


def parse_watermark_record(extra: Mapping[str, str], at: str) -> WatermarkRecord | None:
    """Return the record that the commit requested at `at` wrote itself; None without a valid one.

    >>> record = WatermarkRecord("7", 1000, 5, {"day": 2})
    >>> extra = {WATERMARK_KEY: format_watermark_record(record)}
    >>> parse_watermark_record(extra, "7") == record, parse_watermark_record(extra, "8")
    (True, None)
    """
    text = extra.get(WATERMARK_KEY)
    if not text:
        return None
    try:
        tree = json.loads(text)
        if tree["at"] != at:
            return None
        return WatermarkRecord(
            at,
            _time(tree["lateness"]),
            _time(tree["before"]),
            {str(path): int(count) for path, count in tree["late_rows"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _time(value: int | None) -> int | None:
    return None if value is None else int(value)
