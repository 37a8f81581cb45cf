"""The command: races what was chosen and writes the results."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.cluster import load_test
from bench.crew import Member, WorkerError, crew_of
from bench.picture import as_svg
from bench.plan import (
    FULL,
    HUDIS,
    LIMIT,
    WORKLOADS,
    Do,
    Kind,
    Size,
    Workload,
    chosen_systems,
    chosen_workloads,
    plan_race,
    skipped_workloads,
)
from bench.progress import Progress
from bench.race import Ledger, Race
from bench.report import as_json, as_markdown
from bench.results import Outcome
from bench.source import ROWS, TINY, Source, generate_lineitem, prepare

RESULTS = Path(__file__).with_name("results")
JAR_NAMES = {
    "hudi": "LAKEWRIGHT_HUDI_JAR",
    "delta": "LAKEWRIGHT_DELTA_JARS",
    "iceberg": "LAKEWRIGHT_ICEBERG_JARS",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for."""

    size: Size
    workloads: tuple[Workload, ...]
    systems: tuple[str, ...]
    cores: int
    memory: str
    work: Path
    keep: bool
    lineitem: tuple[Path, ...]
    warm: bool = True  # without it the first measurements hold the loading of classes

    @property
    def racers(self) -> tuple[str, ...]:
        """The systems with a process of their own."""
        return tuple(system for system in self.systems if system != LIMIT)


def race(order: Order) -> Outcome:
    """Race as ordered; the tables are removed afterwards unless they are to be kept."""
    steps = plan_race(order.size, order.workloads, order.systems)
    load = os.getloadavg()[0]
    with _work_folder(order) as work:
        source = _source(order, work)
        sample = source.files(ROWS)[0]
        config: dict[str, Any] = {"cores": order.cores, "memory": order.memory}
        with crew_of(order.racers, work=work, sample=sample, **config) as crew:
            progress = Progress(len(steps) + len(crew), sys.stderr)
            versions = {}
            for system, member in crew.items():
                progress.at(f"warming up  {system}")
                versions[system] = _version(system, member)
                if order.warm:
                    _warm_up(member, source)
            ledger = Ledger(source, next(iter(crew.values())))
            running = Race(crew, source, ledger)
            running.run(steps, progress)
            progress.say("")
            rows = running.ledger.rows()
    return Outcome(
        {**_facts(order, versions, rows), "load_before": load},
        tuple(running.measurements),
        tuple(running.checks),
        tuple(running.failures),
    )


@contextmanager
def _work_folder(order: Order) -> Iterator[Path]:
    order.work.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="race-", dir=order.work))
    try:
        yield work
    finally:
        if order.keep:
            print(f"kept: {work}", file=sys.stderr)
        else:
            shutil.rmtree(work, ignore_errors=True)


def _source(order: Order, work: Path) -> Source:
    lineitem = _lineitem(order, work)
    return prepare(lineitem, work / "source", order.size.commits, order.size.feed)


def _lineitem(order: Order, work: Path) -> list[Path]:
    if order.lineitem:
        return list(order.lineitem)
    peers = os.environ.get("LAKEWRIGHT_PEERS_PYTHON")
    if peers is None:
        raise ValueError("the generator of TPC-H is not there: start it by ./dev bench")
    program = Path(peers).with_name("tpchgen-cli")
    return generate_lineitem(program, order.size.scale, work / "generated")


def _version(system: str, member: Member) -> str:
    versions = member.send({"do": "versions"})
    if system in JAR_NAMES:
        system_version = Path(os.environ[JAR_NAMES[system]].split(",")[0]).stem.rpartition("-")[2]
    else:
        system_version = version(system)
    spark, java, python = (versions[name] for name in ("spark", "java", "python"))
    return f"{system_version} on Spark {spark}, Java {java}, Python {python}"


def _warm_up(member: Member, source: Source) -> None:
    commits = source.files("tiny")[:1]
    serves = [Kind.COW, *([Kind.MOR] if member.system in HUDIS else [])]
    files = source.files(TINY)
    member.send({"do": "warm_up", "files": files, "commits": commits, "serves": serves})


def _facts(order: Order, versions: dict[str, str], rows: int) -> dict[str, Any]:
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "size": asdict(order.size),
        "rows": rows,
        "machine": _machine(order),
        "versions": versions,
        "left_out": skipped_workloads(order.workloads, order.systems),
    }


def _machine(order: Order) -> dict[str, Any]:
    return {
        "cores": order.cores,
        "processors": os.cpu_count(),
        "processor": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "driver_memory": order.memory,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown processor"


def write_load_test(order: Order, folder: Path) -> Path:
    """Run the load test of TTL on a cluster, as large as the scale allows; gives its JSON."""
    counts = [w.partitions for w in order.workloads if w.do is Do.TTL and order.size.fits(w)]
    if not counts:
        raise ValueError("--hdfs is for the workloads of TTL, and none of these fits the scale")
    with _work_folder(order) as work:
        lineitem = _lineitem(order, work)
        load_before = os.getloadavg()[0]
        measured = load_test(
            lineitem, work, count=max(counts), cores=order.cores, memory=order.memory
        )
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    result = {"made": made_at, "scale": order.size.scale, "load_before": load_before, **measured}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"ttl-hdfs-{made_at[:10]}.json"
    file.write_text(json.dumps({**result, "machine": _machine(order)}, indent=1) + "\n", "utf-8")
    return file


def _prefix(result: dict[str, Any]) -> str:
    """What sets the results of the load test of TTL apart from those of a whole race."""
    names = result["medians"].keys()
    return "ttl-" if names and all(name.startswith("ttl_") for name in names) else ""


def write_results(outcome: Outcome, folder: Path) -> Path:
    """Write JSON, Markdown and picture side by side; gives the Markdown."""
    result = json.loads(json.dumps(as_json(outcome)))
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{_prefix(result)}{str(outcome.facts['made'])[:10]}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    stem.with_suffix(".svg").write_text(as_svg(result), "utf-8")
    page = f"{as_markdown(result)}\n![Ratios]({stem.name}.svg)\n"
    stem.with_suffix(".md").write_text(page, "utf-8")
    return stem.with_suffix(".md")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--only", default="", help="workloads, by the beginning of their names")
    parser.add_argument("--system", default="", help="systems, separated by commas")
    parser.add_argument("--scale", type=float, help="scale of TPC-H; 1 is six million rows")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, help="how often everything is repeated")
    parser.add_argument("--commits", type=int, help="tiny commits in a row")
    parser.add_argument("--memory", default="3g", help="of each Spark driver")
    parser.add_argument("--full", action="store_true", help="larger and longer: takes hours")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--work", type=Path, help="folder of the tables")
    parser.add_argument("--keep", action="store_true", help="leave the tables there")
    parser.add_argument("--lineitem", type=Path, nargs="+", default=[], help="files to race with")
    parser.add_argument(
        "--hdfs", action="store_true", help="the load test of TTL alone, on a cluster with HDFS"
    )
    parser.add_argument("--list", action="store_true", help="what there is, and no race")
    return parser


def parse_order(arguments: Sequence[str]) -> tuple[Order, argparse.Namespace]:
    """The order that the words of a command line give; a ValueError tells what is wrong."""
    parsed = _parser().parse_args(arguments)
    sizes = {name: getattr(parsed, name) for name in ("scale", "rounds", "commits")}
    size = replace(
        FULL if parsed.full else Size(), **{name: value for name, value in sizes.items() if value}
    )
    cache = os.environ.get("LAKEWRIGHT_CACHE") or tempfile.gettempdir()
    order = Order(
        size=size,
        workloads=chosen_workloads(_names(parsed.only)),
        systems=chosen_systems(_names(parsed.system)),
        cores=parsed.cores,
        memory=parsed.memory,
        work=parsed.work or Path(cache, "bench"),
        keep=parsed.keep,
        lineitem=tuple(parsed.lineitem),
    )
    return order, parsed


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def listing() -> str:
    """What can be raced."""
    return "\n".join(f"  {workload.name:<26}{workload.about}" for workload in WORKLOADS)


def main(arguments: Sequence[str]) -> int:
    """Race and report; 0 if every system did everything and all rows agree."""
    try:
        order, parsed = parse_order(arguments)
        if parsed.list:
            print(listing())
            return 0
        if parsed.hdfs:
            print(write_load_test(order, parsed.out))
            return 0
        outcome = race(order)
    except (ValueError, WorkerError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    page = write_results(outcome, parsed.out)
    print(page.read_text("utf-8"))
    print(f"written: {page}", file=sys.stderr)
    return 0 if outcome.is_sound else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
