"""`python -m bench.scale`: measure every subject as it grows, each point in its own process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.scale.curves import Curve
from bench.scale.meter import Point, measure
from bench.scale.report import as_json, as_svg, as_text
from bench.scale.subject import Subject
from bench.scale.subjects import SUBJECTS

_ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; 1 if something grows that must not."""
    options = _parser().parse_args(arguments)
    by_name = {subject.name: subject for subject in SUBJECTS}
    if options.point:
        name, size = options.point
        print(json.dumps(asdict(measure(by_name[name], int(size)))))
        return 0
    chosen = [by_name[name] for name in options.only] if options.only else list(SUBJECTS)
    curves = []
    for subject in chosen:
        points = [_measure_apart(subject, size) for size in sizes_of(subject, options)]
        curves.append(Curve.of(subject, points))
        print(as_text(curves[-1:]), flush=True)
    if options.out:
        _write(options.out, curves)
    broken = [sentence for curve in curves for sentence in curve.broken_promises()]
    print("\n".join(["", *broken]) if broken else "\nwhat must be flat is flat")
    return 1 if broken else 0


def sizes_of(subject: Subject, options: argparse.Namespace) -> list[int]:
    """The sizes at which a subject is measured; always its smallest."""
    max_size = options.most or (max(subject.sizes) if options.full else subject.default_size)
    return [size for size in subject.sizes if size <= max_size] or [min(subject.sizes)]


def _measure_apart(subject: Subject, size: int) -> Point:
    """Measure in a new process: only so does the peak of memory belong to one point."""
    command = [sys.executable, "-m", "bench.scale", "--point", subject.name, str(size)]
    process = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, check=True, text=True)
    return Point(**json.loads(process.stdout))


def _write(folder: Path, curves: Sequence[Curve]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scale.json").write_text(as_json(curves), "utf-8")
    (folder / "scale.svg").write_text(as_svg(curves), "utf-8")
    (folder / "scale.txt").write_text(as_text(curves) + "\n", "utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev scale", description=__doc__)
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="SUBJECT", help=str(names))
    parser.add_argument("--most", type=int, metavar="SIZE", help="the largest size")
    parser.add_argument("--full", action="store_true", help="the full sizes: ten minutes or more")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write JSON, SVG and text here")
    parser.add_argument("--point", nargs=2, metavar=("SUBJECT", "SIZE"), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
