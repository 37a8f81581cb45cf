"""Which blocks of a slice's log files count, and in which order they are merged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lakewright.format.log_blocks import BlockKind, LogBlock


def effective_blocks(
    blocks: Sequence[LogBlock], commits: Collection[str] | None = None
) -> list[LogBlock]:
    """The blocks that count, in merge order, from all blocks in the order of their files.

    - A command block (from tables of older versions) takes back the blocks of its target instant.
    - A block of a log compaction stands for the blocks it was made of, and takes the place of the
      newest of them: writes that came after those are merged after it.
    - A log compaction writes its own instant into the rows. Where rows are asked for by the
      `commits` that wrote them, the blocks it was made of count in its place if they are there.
    """
    rolled_back = {b.target_instant for b in blocks if b.kind is BlockKind.COMMAND}
    data = [
        block
        for block in blocks
        if block.kind is not BlockKind.COMMAND and block.instant not in rolled_back
    ]
    last_position = {block.instant: position for position, block in enumerate(data)}
    covers = {b.instant: b.compacted_instants for b in data if b.compacted_instants}
    if commits is not None:
        needless = {
            instant
            for instant, parts in covers.items()
            if all(part in last_position for part in parts if part in commits)
        }
        data = [block for block in data if block.instant not in needless]
        covers = {instant: parts for instant, parts in covers.items() if instant not in needless}
    covered = {part for parts in covers.values() for part in parts}

    def place(instant: str) -> int:
        # A log compaction is made of older blocks; anything else is no order to follow.
        parts = (i for i in covers.get(instant, ()) if i in last_position and i < instant)
        return max(map(place, parts), default=last_position[instant])

    kept = [block for block in data if block.instant not in covered]
    return sorted(kept, key=lambda block: place(block.instant))
