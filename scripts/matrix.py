"""Tries the wheel with each Python that is here and each PySpark minor version it takes.

With `--prepare` environments are made and nothing is started.
Prints a table as in docs/versions.md. Environments are kept beside the other downloads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from packages import PYTHONS, SPARKS, build, cache, find_python, make_environment, smoke


def tried(version: str, spark: str, wheel: Path, folder: Path, *, prepare: bool) -> str:
    """What came of one pair: the versions that worked, or the end of what went wrong."""
    python = find_python(version)
    if python is None:
        return "not on this machine"
    environment = cache() / "matrix" / f"python{version}-spark{spark}"
    try:
        environment.parent.mkdir(parents=True, exist_ok=True)
        within = make_environment(environment, wheel, python=python, spark=spark)
        return "ready" if prepare else f"works: {smoke(within, folder, '--spark')}"
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return f"FAILED: {str(error).strip().splitlines()[-1]}"


def main() -> int:
    """Try all pairs, or those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", nargs="*", default=PYTHONS)
    parser.add_argument("--spark", nargs="*", default=SPARKS)
    parser.add_argument("--prepare", action="store_true")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        wheel, _ = build(Path(name))
        print("| Python | PySpark | |\n|---|---|---|", flush=True)
        for version in arguments.python:
            for spark in arguments.spark:
                outcome = tried(version, spark, wheel, Path(name), prepare=arguments.prepare)
                failed += outcome.startswith("FAILED")
                print(f"| {version} | {spark} | {outcome} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
