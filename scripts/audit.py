"""Looks up locked packages in a copy of the Python Packaging Advisory Database.

For machines from which no index can be asked, where pip-audit has nothing to look at:
`scripts/audit.py FOLDER LOCKFILE...`, FOLDER being a checkout of the database. Prints what was
found, and ends with 1 if anything was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packages import hashed
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Hole:
    """A known hole of one version of a package."""

    package: str
    version: str
    advisory: str
    aliases: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.package} {self.version}: {', '.join((self.advisory, *self.aliases))}"


def holes(advisories: Path, package: str, version: str) -> Iterator[Hole]:
    """The holes of a version that a database tells of."""
    name = canonicalize_name(package)
    for path in sorted((advisories / "vulns" / name).glob("*.yaml")):
        advisory = yaml.safe_load(path.read_text("utf-8"))
        if "withdrawn" not in advisory and any(
            _affects(affected_package, name, version) for affected_package in advisory["affected"]
        ):
            yield Hole(package, version, advisory["id"], tuple(advisory.get("aliases", ())))


def _affects(affected: Mapping[str, Any], name: str, version: str) -> bool:
    if canonicalize_name(affected["package"]["name"]) != name:
        return False
    ranges = [
        version_range
        for version_range in affected.get("ranges", ())
        if version_range["type"] == "ECOSYSTEM"
    ]
    listed = version in affected.get("versions", ())
    return listed or any(
        _is_within(version_range["events"], Version(version)) for version_range in ranges
    )


def _is_within(events: list[Mapping[str, str]], version: Version) -> bool:
    """Whether a version lies between an event that opens a range and the one that ends it."""
    inside = False
    for event in events:
        for kind, text in event.items():
            border = _version(text)
            if kind == "introduced" and version >= border:
                inside = True
            elif (kind == "fixed" and version >= border) or (
                kind == "last_affected" and version > border
            ):
                inside = False
    return inside


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def main() -> int:
    """Look up all packages of some lock files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("advisories", type=Path)
    parser.add_argument("locks", nargs="+", type=Path)
    arguments = parser.parse_args()
    advisory_count = sum(1 for _ in (arguments.advisories / "vulns").glob("*/*.yaml"))
    if not advisory_count:
        parser.error(f"{arguments.advisories} holds no advisory (vulns/NAME/ID.yaml)")
    all_holes: set[Hole] = set()
    count = 0
    for lock in arguments.locks:
        for package in hashed(lock.read_text("utf-8")):
            count += 1
            all_holes.update(holes(arguments.advisories, package.name, package.version))
    for hole in sorted(all_holes, key=str):
        print(hole)
    print(
        f"{count} versions looked up in {advisory_count} advisories: {len(all_holes)} known holes"
    )
    return 1 if all_holes else 0


if __name__ == "__main__":
    sys.exit(main())
