"""Tables whose names, links, plans and properties lead elsewhere: nothing outside is ever touched.

A table is in a folder next to another one, which holds files of the same names, and a few files of
no table. The table is changed at random, then read, repaired, written to or maintained.
Whatever comes of that is an answer or an error of ours; all that stands around the table has the
same names, bytes, rights and times as before.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lakewright.client.ttl import TableTtl
from lakewright.clock import SystemClock
from lakewright.errors import LakewrightError
from lakewright.format.timeline_metadata import (
    format_clean_plan,
    format_compaction_plan,
    format_rollback_plan,
)
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import (
    CleanFile,
    CleanPlan,
    CompactionOperation,
    CompactionPlan,
    InstantRef,
    RetainedInstant,
    RollbackPlan,
    RollbackRequest,
)
from lakewright.scan.planner import plan_changes, plan_snapshot
from lakewright.storage.factory import storage_for
from lakewright.table.doctor.doctor import examine, repair
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.markers import marker_folder, spill_folder
from lakewright.table.savepoint import create_savepoint, restore, rollback_instant
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.local_reads import read_plan
from support.soak import SOAK, sized
from support.tables import WrittenTable, row

# Where something need not succeed for a write to, a warning says that it did not.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning"),
    pytest.mark.sampled(5),
]

# Of each pair of a change and an operation.
ROUNDS = sized(1, soak=25)
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
OPTIONS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "in_process",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    # So long that a slow machine lets none expire.
    "hoodie.client.heartbeat.interval_in_ms": "3600000",
}
WEEK_S = 7 * 24 * 3_600

Facts = dict[str, tuple[object, ...]]


@dataclass(frozen=True)
class Sandbox:
    """A table, and the files around it; `pristine` is a copy of the table before any change."""

    folder: Path
    pristine: Path
    saved: str
    dead: str
    plan: str

    @property
    def table(self) -> Path:
        # As long as the name of its neighbour: paths in files are changed in their place.
        return self.folder / "table"

    @property
    def other(self) -> Path:
        return self.folder / "other"

    def restore(self) -> None:
        """Put the table back as it was; what is around it was never changed."""
        remove(self.table)
        shutil.copytree(self.pristine, self.table, symlinks=True)

    def around(self) -> Facts:
        """All there is but the table: names, kinds, rights, times, bytes and where links lead."""
        entries: Facts = {}
        for path in sorted([self.folder, *self.folder.rglob("*")]):
            if path == self.table or self.table in path.parents:
                continue
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                content: object = os.readlink(path)
            else:
                content = path.read_bytes() if path.is_file() else None
            # The time of the folder itself changes when the table is put back.
            time = status.st_mtime_ns if path != self.folder else 0
            entries[str(path)] = (status.st_mode, time, status.st_nlink, content)
        return entries


def remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """A table with a savepoint, plans that wait, a TTL policy, and a writer that died at work."""
    folder = tmp_path_factory.mktemp("around")
    pristine = tmp_path_factory.mktemp("pristine") / "table"
    clock = ManualClock(SystemClock().now_ms() - WEEK_S * 1000)
    table = WrittenTable(storage_for(folder / "table"), clock, OPTIONS)
    table.create("MERGE_ON_READ")
    for number in range(7):
        table.upsert([row(f"{day} {n}", number, day=day) for day in DAYS for n in range(2)])
        clock.advance(60_000)
        if number in (1, 2, 3, 4):
            table.services().run("compaction")
    saved = load_snapshot(table.storage).timeline.by_completion[-2].requested_at
    create_savepoint(table.services().writer, saved, user="ann", comment="")
    TableTtl.for_table(table.storage, OPTIONS, clock).save(
        {"spec": "*", "units": "DAYS", "value": 365_000}
    )
    TableTtl.for_table(table.storage, OPTIONS, clock).enable(run_inline=False)
    plan = table.services().schedule("compaction")
    assert isinstance(plan, Instant), plan
    dead: list[str] = []

    def die() -> None:
        (pending,) = load_snapshot(table.storage).timeline.pending(Action.DELTA_COMMIT)
        dead.append(pending.requested_at)
        shutil.copytree(folder / "table", pristine, symlinks=True)
        # The modification time of its files shows whether a writer is alive.
        for path in pristine.rglob("*"):
            os.utime(path, times=(path.stat().st_mtime - WEEK_S,) * 2)

    table.upsert([row(f"{day} 9", 9, day=day) for day in DAYS], before_commit=die)
    shutil.copytree(pristine, folder / "other", symlinks=True)
    for name in ("notes.txt", "other/keep.txt", "other/sub/deep/keep.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, "utf-8")
    (folder / "notes.txt").chmod(0o640)
    return Sandbox(folder, pristine, saved, dead[0], plan.requested_at)


# ---------------------------------------------------------------- changes of the table


Change = Callable[[Sandbox, random.Random], None]


def unseal(table: Path) -> None:
    """Without checksum files, which would detect most changes before any other check."""
    for path in table.rglob(".*.crc"):
        path.unlink()


def put(path: Path, data: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def linked(path: Path, target: Path | str) -> None:
    """Have a link in a place, whatever was there."""
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def with_properties(sandbox: Sandbox, values: Mapping[str, str]) -> None:
    path = sandbox.table / ".hoodie" / "hoodie.properties"
    lines = path.read_text("utf-8").splitlines()
    remaining = [line for line in lines if line.partition("=")[0] not in values]
    remaining = [line for line in remaining if not line.startswith("hoodie.table.checksum")]
    text = "".join(f"{name}={value}\n" for name, value in values.items())
    path.write_text("\n".join(remaining) + "\n" + text, "utf-8")
    unseal(sandbox.table)


def files_of(table: Path, *suffixes: str) -> list[Path]:
    return sorted(
        path for path in table.rglob("*") if path.is_file() and path.name.endswith(suffixes)
    )


# Folders of the table that lead into the other one, or above.
FOLDERS = (
    *DAYS, "2026-01-09", "x", "x/y/z", ".hoodie/metadata", ".hoodie/.temp", ".hoodie/.aux",
    ".hoodie/.heartbeat", ".hoodie/timeline/history", ".hoodie/.lakewright", ".hoodie/.locks",
    ".hoodie/timeline", ".hoodie/.index_defs", ".hoodie/.schema",
)  # fmt: skip


def link_a_folder(sandbox: Sandbox, chance: random.Random) -> None:
    place = chance.choice(FOLDERS)
    same = sandbox.other / place
    targets = [sandbox.other, sandbox.folder, same if same.exists() else sandbox.other / DAYS[0]]
    linked(sandbox.table / place, chance.choice(targets))


def link_the_metadata_table(sandbox: Sandbox, chance: random.Random) -> None:
    with_properties(sandbox, {"hoodie.table.metadata.partitions": "files"})
    linked(sandbox.table / ".hoodie/metadata", chance.choice((sandbox.other, sandbox.folder)))


def link_folders_of_the_dead_writer(sandbox: Sandbox, chance: random.Random) -> None:
    places = (marker_folder(sandbox.dead), spill_folder(sandbox.dead), HEARTBEATS)
    linked(sandbox.table / chance.choice(places), chance.choice((sandbox.other, sandbox.folder)))


def link_a_partition_to_its_double(sandbox: Sandbox, chance: random.Random) -> None:
    """The other one's files carry the names of the dead writer's files, and of all others."""
    day = chance.choice(DAYS)
    linked(sandbox.table / day, sandbox.other / day)


def link_the_timeline(sandbox: Sandbox, chance: random.Random) -> None:
    place = chance.choice((".hoodie", ".hoodie/timeline"))
    linked(sandbox.table / place, sandbox.other / place)


def link_files(sandbox: Sandbox, chance: random.Random) -> None:
    for path in chance.sample(files_of(sandbox.table, ""), 3):
        same = sandbox.other / path.relative_to(sandbox.table)
        linked(path, chance.choice((same, sandbox.folder / "notes.txt")))


def link_to_what_is_not_there(sandbox: Sandbox, chance: random.Random) -> None:
    """A process that creates a file through such a link creates it elsewhere."""
    names = (
        ".hoodie/hoodie.properties.backup", ".hoodie/hoodie.properties.updated", ".hoodie/lock",
        ".hoodie/.heartbeat/" + sandbox.dead, f"{DAYS[0]}/.hoodie_partition_metadata",
        chance.choice(("2026-01-04", "2026-01-04/.hoodie_partition_metadata")),
        ".hoodie/.hoodie.properties.crc", f".hoodie/timeline/{sandbox.plan}.compaction.inflight",
    )  # fmt: skip
    for name in names:
        linked(sandbox.table / name, sandbox.folder / f"made-{chance.randrange(10)}")


def link_in_circles(sandbox: Sandbox, chance: random.Random) -> None:
    for place, target in (("x", "."), ("y/z", ".."), (f"{DAYS[0]}/up", "../.."), ("w", "w")):
        linked(sandbox.table / place, target)


def link_the_table(sandbox: Sandbox, chance: random.Random) -> None:
    """A table whose folder is a link is read and written where the link leads, nowhere else."""
    hidden = sandbox.table / "hidden"
    shutil.copytree(sandbox.pristine, hidden)
    for entry in sandbox.table.iterdir():
        if entry != hidden:
            remove(entry)
    for entry in hidden.iterdir():
        linked(sandbox.table / entry.name, chance.choice((sandbox.other, hidden)) / entry.name)


LINKS: tuple[Change, ...] = (
    link_a_folder, link_the_metadata_table, link_folders_of_the_dead_writer, link_files,
    link_a_partition_to_its_double, link_the_timeline, link_to_what_is_not_there, link_in_circles,
    link_the_table,
)  # fmt: skip

STRANGE = (
    b"\xff\xfe", b"a\nb", b"\x1b]0;PWNED\x07", b"\xed\xb2\x80", b"...", b"..%2f..%2fother",
    b"%2e%2e", b"-rf", b"~", b"$HOME", b"*",
    b" ", b"\xe2\x80\xae", b"n" * 255, b"\\..\\other", b"a=b=c", b":",
)  # fmt: skip


def strange_names(sandbox: Sandbox, chance: random.Random) -> None:
    base = os.fsencode(sandbox.table)
    places = (b".", DAYS[0].encode(), b".hoodie", b".hoodie/timeline", b".hoodie/.temp")
    for place in chance.sample(places, 2):
        name = chance.choice(STRANGE)
        folder = os.path.join(base, place, name)
        os.makedirs(folder, exist_ok=True)
        for inner in (b".hoodie_partition_metadata", chance.choice(STRANGE)):
            with open(os.path.join(folder, inner), "wb") as file:
                file.write(b"partitionDepth=1\ncommitTime=20260101000000000\n")


def strange_files(sandbox: Sandbox, chance: random.Random) -> None:
    """Names of data files and of instants, with something strange in a part of them."""
    pattern = chance.choice(
        (
            b"%s-0_0-0-0_" + sandbox.saved.encode() + b".parquet",
            b".%s-0_" + sandbox.saved.encode() + b".log.1_0-0-0",
            b"%s-0_0-0-0_" + sandbox.dead.encode() + b".parquet",
            b"0_0-0-0_%s.parquet",
            b"%s.deltacommit",
            sandbox.saved.encode() + b"_%s.deltacommit",
        )
    )
    folder = b".hoodie/timeline" if pattern.endswith(b"deltacommit") else DAYS[0].encode()
    name = pattern % chance.choice([strange for strange in STRANGE if len(strange) < 100])
    with open(os.path.join(os.fsencode(sandbox.table), folder, name), "wb") as file:
        file.write(chance.randbytes(20))


HUGE = ("9" * 17, "0" * 17, "9" * 40, "-1", "٢" * 17, "1e9", str(2**63), str(2**31))


def huge_numbers(sandbox: Sandbox, chance: random.Random) -> None:
    number, more = chance.choice(HUGE), chance.choice(HUGE)
    day = chance.choice(DAYS)
    names = (
        f".hoodie/timeline/{number}_{more}.deltacommit",
        f".hoodie/timeline/{number}.compaction.requested",
        f".hoodie/timeline/{number}.rollback.requested",
        f".hoodie/timeline/{number}.inflight",
        f"{day}/0-0_{number}-0-0_{sandbox.saved}.parquet",
        f"{day}/.0-0_{sandbox.saved}.log.{number}_0-0-0",
        f"{day}/0-0_0-0-0_{number}.parquet",
        f".hoodie/.heartbeat/{number}",
        f".hoodie/.temp/{number}/{day}/0-0_0-0-0_{number}.parquet.marker.CREATE",
        f".hoodie/timeline/history/{number}_{more}_{chance.choice(HUGE)}.parquet",
        ".hoodie/timeline/history/_version_",
    )
    for name in chance.sample(names, 4):
        put(sandbox.table / name, chance.choice((b"", number.encode())))


def markers_that_lead_elsewhere(sandbox: Sandbox, chance: random.Random) -> None:
    """Lists of markers, as Hudi's server of them writes them: a path on each line."""
    names = [
        path.relative_to(sandbox.other).as_posix() for path in files_of(sandbox.other, ".parquet")
    ]
    lines = [
        f"{chance.choice(UP)}{chance.choice([*names, 'keep.txt'])}.marker.{kind}"
        for kind in ("CREATE", "MERGE", "APPEND")
    ]
    folder = sandbox.table / marker_folder(sandbox.dead)
    put(folder / "MARKERS0", "\n".join(lines).encode())
    put(folder / "MARKERS.type", b"TIMELINE_SERVER_BASED")


NAMES: tuple[Change, ...] = (
    strange_names, strange_files, huge_numbers, markers_that_lead_elsewhere,
)  # fmt: skip

UP = ("../other/", "../../around/other/", "/", "x/../../other/", "./../other/", "..\\other\\")


def swapped_paths(sandbox: Sandbox, chance: random.Random) -> None:
    """Paths within plans, commits and properties, changed to others of the same length."""
    unseal(sandbox.table)
    swaps = (
        (b"/table/", b"/other/"),
        (DAYS[0].encode(), b"../other//"),
        (DAYS[1].encode(), b".././other"),
        (DAYS[2].encode(), b"/../../../"),
        (DAYS[0].encode(), b".hoodie///"),
        (b".parquet", b"/../x/.."),
        (b"file:", b"s3a:/"),
    )
    hits = 0
    for old, new in chance.sample(swaps, 3):
        for path in files_of(sandbox.table / ".hoodie", ""):
            data = path.read_bytes()
            if old in data:
                path.write_bytes(data.replace(old, new))
                hits += 1
    assert hits


def hostile_paths(sandbox: Sandbox, chance: random.Random) -> list[tuple[str, str]]:
    """Partitions with paths of files in them, of which none is the table's."""
    theirs = chance.choice(files_of(sandbox.other, ".parquet")).relative_to(sandbox.other)
    name = theirs.name
    root = sandbox.folder.as_posix()
    return [
        (f"../other/{theirs.parent}", f"{root}/other/{theirs}"),
        (str(theirs.parent), f"{root}/other/{theirs}"),
        (str(theirs.parent), f"file://{root}/table/../other/{theirs}"),
        (f"{theirs.parent}/../../other/{theirs.parent}", name),
        ("..", "notes.txt"),
        ("", "../notes.txt"),
        (f"{root}/other/{theirs.parent}", name),
        (".hoodie", f"{root}/table/.hoodie/hoodie.properties"),
        (str(theirs.parent), f"../../other/{theirs}"),
        ("\x00", "\x00"),
        ("x" * 5000, "x" * 5000),
    ]


def plan_file(sandbox: Sandbox, instant: Instant, data: bytes) -> None:
    put(sandbox.table / ".hoodie/timeline" / instant.file_name, data)


def a_clean_plan(sandbox: Sandbox, chance: random.Random) -> None:
    paths = chance.sample(hostile_paths(sandbox, chance), 3)
    at = f"{int(sandbox.dead) + 1}"
    plan = CleanPlan(
        policy="KEEP_LATEST_COMMITS",
        earliest_to_retain=RetainedInstant(
            requested_at=sandbox.saved, action="deltacommit", state="COMPLETED"
        ),
        files={partition: (CleanFile(path=path),) for partition, path in paths},
        deleted_partitions=tuple(partition for partition, _ in chance.sample(paths, 1)),
    )
    plan_file(sandbox, Instant(at, Action.CLEAN, State.REQUESTED), format_clean_plan(plan))


def a_rollback_plan(sandbox: Sandbox, chance: random.Random) -> None:
    paths = chance.sample(hostile_paths(sandbox, chance), 3)
    at = f"{int(sandbox.dead) + 1}"
    plan = RollbackPlan(
        instant=InstantRef(sandbox.dead, "deltacommit"),
        requests=tuple(
            RollbackRequest(partition=partition, file_id="", files=(path,), latest_base_instant="")
            for partition, path in paths
        ),
    )
    plan_file(sandbox, Instant(at, Action.ROLLBACK, State.REQUESTED), format_rollback_plan(plan))


def a_compaction_plan(sandbox: Sandbox, chance: random.Random) -> None:
    paths = chance.sample(hostile_paths(sandbox, chance), 2)
    plan = CompactionPlan(
        operations=tuple(
            CompactionOperation(
                partition=partition,
                file_id=chance.choice(("../../other", path.rpartition("/")[2][:38], "..")),
                base_instant=chance.choice((sandbox.saved, "..", "9" * 17)),
                logs=(path,),
                base_file=path,
            )
            for partition, path in paths
        )
    )
    plan_file(
        sandbox,
        Instant(sandbox.plan, Action.COMPACTION, State.REQUESTED),
        format_compaction_plan(plan),
    )


PLANS: tuple[Change, ...] = (swapped_paths, a_clean_plan, a_rollback_plan, a_compaction_plan)

PROPERTIES: dict[str, tuple[str, ...]] = {
    "hoodie.table.name": ("../other", "n\\u001b]0;x\\u0007", "\\udc80", ""),
    "hoodie.timeline.path": ("../../other/.hoodie/timeline", "..", "/", "../..", "\\u0000"),
    "hoodie.timeline.history.path": ("../../../other", "/tmp", "", "history/../.."),
    "hoodie.archivelog.folder": ("../../other", "/", ".."),
    "hoodie.table.metadata.partitions": ("files,../../other", "../other", "files"),
    "hoodie.table.metadata.partitions.inflight": ("../../other", "files"),
    "hoodie.table.partition.fields": ("../other", "day,day", "", "no"),
    "hoodie.table.recordkey.fields": ("", "no", "id,id"),
    "hoodie.table.version": ("9" * 40, "-1", "8", "0", "x"),
    "hoodie.timeline.layout.version": ("9" * 40, "1", "-2"),
    "hoodie.table.base.file.format": ("../PARQUET", "ORC"),
    "hoodie.table.type": ("COPY_ON_WRITE", "../MOR"),
    "hoodie.datasource.write.hive_style_partitioning": ("true", "maybe"),
    "hoodie.table.timezone.timezone": ("../../etc", "LOCAL"),
    "hoodie.table.timeline.timezone": ("../../etc/passwd", "LOCAL", "UTC"),
    "hoodie.table.index.defs.path": ("../../other/keep.txt", "/etc/passwd"),
    "hoodie.table.base.path": ("/", "../other"),
    "hoodie.ttl.policies": ("[]", "[", '[{"spec":"../*","units":"DAYS","value":1}]', "9" * 40),
    "hoodie.table.partition.metafile.use.base.format": ("true", "x"),
}


def properties(sandbox: Sandbox, chance: random.Random) -> None:
    names = chance.sample(sorted(PROPERTIES), chance.choice((1, 1, 2, 3)))
    with_properties(sandbox, {name: chance.choice(PROPERTIES[name]) for name in names})


CHANGES: tuple[Change, ...] = (*NAMES, *PLANS, properties)

# Options of writers, which are their own: they may be wrong, but lead nowhere.
WRITE_OPTIONS: dict[str, tuple[str, ...]] = {
    "hoodie.clean.commits.retained": ("9" * 40, "-1", "0", "x"),
    "hoodie.clean.policy": ("KEEP_LATEST_BY_HOURS", "../other", ""),
    "hoodie.client.heartbeat.interval_in_ms": ("0", "9" * 30, "-5"),
    "hoodie.compaction.strategy": ("../x", "os.system", "UnBoundedCompactionStrategy"),
    "hoodie.compaction.target.io": ("9" * 40, "-1"),
    "hoodie.datasource.write.partitionpath.field": ("../other", "day"),
    "hoodie.datasource.write.partitionpath.urlencode": ("true", "x"),
    "hoodie.parquet.max.file.size": ("-1", "9" * 40, "1"),
    "hoodie.rollback.using.markers": ("false", "x"),
    "hoodie.write.markers.type": ("TIMELINE_SERVER_BASED", "../x"),
    "hoodie.ttl.policies": ('[{"spec":"*","units":"SECONDS","value":1}]', "..", "[" * 5000),
    "hoodie.keep.min.commits": ("9" * 40, "0"),
}


def options_of(chance: random.Random) -> dict[str, str]:
    names = chance.sample(sorted(WRITE_OPTIONS), chance.choice((0, 0, 1, 2)))
    return {name: chance.choice(WRITE_OPTIONS[name]) for name in names}


# ---------------------------------------------------------------- operations on the table


def opened(sandbox: Sandbox, chance: random.Random) -> WrittenTable:
    options = {**OPTIONS, **options_of(chance)}
    return WrittenTable(storage_for(sandbox.table), ManualClock(SystemClock().now_ms()), options)


def read(table: WrittenTable, sandbox: Sandbox) -> None:
    snapshot = load_snapshot(table.storage)
    for plan in (plan_snapshot(snapshot), plan_changes(snapshot, since="20200101000000000").plan):
        read_plan(table.storage, plan)


def doctor(table: WrittenTable, sandbox: Sandbox) -> None:
    examine(table.storage, table.clock)


def mend(table: WrittenTable, sandbox: Sandbox) -> None:
    writer = table.services().writer
    repair(writer, examine(writer.storage, writer.clock, writer.heartbeat))


def upsert(table: WrittenTable, sandbox: Sandbox) -> None:
    table.upsert([row(f"{day} 0", 50, day=day) for day in (*DAYS, "2026-01-04", "x")])


def roll_back_pending(table: WrittenTable) -> None:
    waiting = load_snapshot(table.storage).timeline.pending()
    later = (instant for instant in waiting if instant.action in ("deltacommit", "compaction"))
    for instant in sorted(later, key=str, reverse=True):
        rollback_instant(table.services().writer, instant.requested_at)


def roll_back_the_newest(table: WrittenTable, sandbox: Sandbox) -> None:
    roll_back_pending(table)
    for newest in load_snapshot(table.storage).timeline.by_completion[-1:]:
        rollback_instant(table.services().writer, newest.requested_at)


def roll_back_the_dead(table: WrittenTable, sandbox: Sandbox) -> None:
    rollback_instant(table.services().writer, sandbox.dead)


def restore_the_saved(table: WrittenTable, sandbox: Sandbox) -> None:
    restore(table.services().writer, sandbox.saved)


def service(name: str) -> Callable[[WrittenTable, Sandbox], None]:
    def run(table: WrittenTable, sandbox: Sandbox) -> None:
        if name == "clustering":
            roll_back_pending(table)
        table.services().run(name)

    run.__name__ = name
    return run


def expire(table: WrittenTable, sandbox: Sandbox) -> None:
    """By a policy that takes out whatever there is."""
    policy = '[{"spec": "*", "units": "DAYS", "value": 1}]'
    options = {"hoodie.ttl.policies": policy, "hoodie.ttl.enabled": "true"}
    roll_back_pending(table)
    table.services({**options, **table.options}).run("ttl")


def compaction(table: WrittenTable, sandbox: Sandbox) -> None:
    table.services().execute(sandbox.plan)


def execute_what_waits(table: WrittenTable, sandbox: Sandbox) -> None:
    for instant in load_snapshot(table.storage).timeline.pending():
        if instant.action in ("clean", "compaction"):
            table.services().execute(instant.requested_at)


OPERATIONS: tuple[Callable[[WrittenTable, Sandbox], None], ...] = (
    read, doctor, mend, upsert, roll_back_the_newest, roll_back_the_dead, restore_the_saved,
    service("clean"), compaction, service("archive"), service("clustering"), expire,
    execute_what_waits,
)  # fmt: skip


def play(sandbox: Sandbox, change: Change, operation: Any) -> None:
    """Change the table, do something with it, and compare all that is around it."""
    for number in range(ROUNDS):
        chance = random.Random(f"{change.__name__} {operation.__name__} {number}")
        sandbox.restore()
        change(sandbox, chance)
        table = opened(sandbox, chance)
        before = sandbox.around()
        try:
            operation(table, sandbox)
        except LakewrightError:
            pass  # Nothing else may come of it.
        finally:
            after = sandbox.around()
            touched = {path for path in {*before, *after} if before.get(path) != after.get(path)}
            assert touched == set(), f"round {number}"


@pytest.fixture(autouse=True)
def away(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that is compared as well: no relative path leads out of what is compared."""
    monkeypatch.chdir(sandbox.folder)


def pairs(changes: Sequence[Change]) -> list[tuple[Change, Any]]:
    """Each change with each operation in a soak run; else with every third, others in turn."""
    return [
        (change, operation)
        for (i, change), (j, operation) in product(enumerate(changes), enumerate(OPERATIONS))
        if SOAK or (i + j) % 3 == 0
    ]


@pytest.mark.parametrize(
    ("change", "operation"), pairs(CHANGES), ids=lambda function: function.__name__
)
def test_nothing_outside_is_touched(sandbox: Sandbox, change: Change, operation: Any) -> None:
    play(sandbox, change, operation)


@pytest.mark.parametrize(
    ("change", "operation"), pairs(LINKS), ids=lambda function: function.__name__
)
def test_nothing_is_touched_through_a_link(
    sandbox: Sandbox, change: Change, operation: Any
) -> None:
    play(sandbox, change, operation)


def test_operations_do_something_where_nothing_is_wrong(sandbox: Sandbox) -> None:
    """Each of them changes the table, but those that only look: else they would prove nothing."""
    same: set[str] = set()
    for operation in OPERATIONS:
        sandbox.restore()
        around = sandbox.around()
        before = {path: path.lstat().st_mtime_ns for path in files_of(sandbox.table, "")}
        clock = ManualClock(SystemClock().now_ms())
        table = WrittenTable(storage_for(sandbox.table), clock, OPTIONS)
        operation(table, sandbox)
        after = {path: path.lstat().st_mtime_ns for path in files_of(sandbox.table, "")}
        same.update({operation.__name__} if before == after else ())
        assert sandbox.around() == around
    assert same == {"read", "doctor"}
