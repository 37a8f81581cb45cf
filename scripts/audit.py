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
        told = yaml.safe_load(path.read_text("utf-8"))
        if "withdrawn" not in told and any(
            _affects(each, name, version) for each in told["affected"]
        ):
            yield Hole(package, version, told["id"], tuple(told.get("aliases", ())))


def _affects(affected: Mapping[str, Any], name: str, version: str) -> bool:
    if canonicalize_name(affected["package"]["name"]) != name:
        return False
    ranges = [each for each in affected.get("ranges", ()) if each["type"] == "ECOSYSTEM"]
    listed = version in affected.get("versions", ())
    return listed or any(_is_within(each["events"], Version(version)) for each in ranges)


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
    told = parser.parse_args()
    known = sum(1 for _ in (told.advisories / "vulns").glob("*/*.yaml"))
    if not known:
        parser.error(f"{told.advisories} holds no advisory (vulns/NAME/ID.yaml)")
    found: set[Hole] = set()
    count = 0
    for lock in told.locks:
        for each in hashed(lock.read_text("utf-8")):
            count += 1
            found.update(holes(told.advisories, each.name, each.version))
    for hole in sorted(found, key=str):
        print(hole)
    print(f"{count} versions looked up in {known} advisories: {len(found)} known holes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
