"""Builds the wheel, and environments that hold it and what it asks for, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
SMOKE = ROOT / "scripts" / "smoke.py"
# Extras that bring little; the others come with clients of whole clouds.
LIGHT_EXTRAS = ("glue", "hive", "metrics", "s3", "ui")
PYTHONS = ("3.11", "3.12", "3.13")
SPARKS = ("4.1", "4.2", "4.3")
_PINS = ROOT / "requirements" / "dev.txt"
_OF_SPARK = ("pyspark", "py4j")


@dataclass(frozen=True)
class Installed:
    """A wheel, its source distribution, and the Python of an environment that holds the wheel."""

    wheel: Path
    source: Path
    python: Path


def build(folder: Path) -> tuple[Path, Path]:
    """Build wheel and source distribution into a folder; give both."""
    options = ("--python", sys.executable, "--no-build-isolation", "--out-dir", str(folder))
    uv("build", "-q", "--offline", "--no-cache", *options, str(ROOT))
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def make_environment(
    folder: Path,
    wheel: Path,
    *,
    python: str = sys.executable,
    extras: Sequence[str] = (),
    spark: str | None = None,
) -> Path:
    """Install the wheel into an environment of its own; gives that one's Python.

    Versions are those of the lock file; with `spark`, such as 4.2, PySpark is the newest of that
    minor version.
    """
    uv("venv", "-q", "--clear", "--python", python, str(folder))
    install(folder / "bin" / "python", wheel, extras, spark=spark)
    return folder / "bin" / "python"


def add_extra(python: Path, wheel: Path, extra: str) -> None:
    """Install what an extra brings into an environment that holds the wheel."""
    install(python, wheel, [extra])


def install(
    python: Path, wheel: Path, extras: Sequence[str] = (), *, spark: str | None = None
) -> None:
    """Install the wheel and what it asks for: versions of the lock file, checked by its hashes.

    From what is kept here, or else from the index. One that names no age for its files would have
    PySpark, a source of 450 MB, built anew each time it is asked; so it is not asked where nothing
    is missing.
    """
    locked = [
        package
        for package in hashed(_PINS.read_text("utf-8"))
        # It has one version of PySpark: of others there are no hashes here.
        if not spark or package.name not in _OF_SPARK
    ]
    texts = {(package.name, package.version): package.text for package in locked}
    pins = [f"{package.name}=={package.version}{package.marker}" for package in locked]
    pins += [f"pyspark=={spark}.*"] if spark else []
    with tempfile.TemporaryDirectory() as name:
        requested, constraints, resolved = (
            Path(name) / package for package in ("asked", "pins", "wanted")
        )
        requested.write_text(f"lakewright[{','.join(extras)}] @ {wheel.as_uri()}\n", "utf-8")
        constraints.write_text("\n".join(pins), "utf-8")
        resolve = ("compile", "-q", "--no-header", "--no-annotate", "--python", str(python))
        _run_offline_first(*resolve, "-c", str(constraints), "-o", str(resolved), str(requested))
        resolved_pins = re.findall(r"(?m)^([\w.-]+)==(\S+)", resolved.read_text("utf-8"))
        free = [
            f"{package}=={version}"
            for package, version in resolved_pins
            if (package, version) not in texts
        ]
        if free and not spark:
            raise RuntimeError(f"not in the lock file: {', '.join(free)}")
        resolved.write_text("".join(texts.get(package, "") for package in resolved_pins), "utf-8")
        into = ("install", "-q", "--python", str(python), "--no-deps")
        _run_offline_first(*into, "--require-hashes", "-r", str(resolved))
        _run_offline_first(*into, *free, str(wheel))


@dataclass(frozen=True)
class Locked:
    """A version of a package in a lock file: where its marker holds, and its lines with hashes."""

    name: str
    version: str
    marker: str
    text: str


def hashed(lock: str) -> list[Locked]:
    """What a lock file holds."""
    entry = re.compile(
        r"^(?P<name>[\w.-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)(?P<marker>[^\\\n]*)\\\n"
        r"(?P<hashes>(?: +--hash=\S+(?: \\)?\n)+)",
        re.MULTILINE,
    )
    return [
        Locked(name, version, marker.rstrip(), f"{name}=={version} \\\n{hashes}")
        for name, version, marker, hashes in entry.findall(lock)
    ]


def _run_offline_first(*arguments: str) -> None:
    try:
        uv("pip", *arguments, "--offline")
    except RuntimeError:
        uv("pip", *arguments)


def packages_in(python: Path) -> set[str]:
    """The names of what an environment holds."""
    listed = uv("pip", "freeze", "--python", str(python))
    return {re.split(r"==| @ ", line)[0] for line in listed.split("\n") if line}


def remove(python: Path, names: set[str]) -> None:
    """Take packages out of an environment."""
    if names:
        uv("pip", "uninstall", "-q", "--python", str(python), *sorted(names))


def smoke(python: Path, folder: Path, *arguments: str, minutes: float = 4) -> str:
    """Run the smoke test in an environment, from an empty folder; give what it says."""
    process = subprocess.run(
        [str(python), "-I", str(SMOKE), *arguments],
        cwd=folder,
        env=clean_environment(),
        timeout=minutes * 60,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(f"the smoke test failed:\n{process.stdout}\n{process.stderr}")
    return process.stdout.strip()


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that would bring in another Python or Spark."""
    ours = ("PYTHON", "PYSPARK", "SPARK_", "VIRTUAL_ENV")
    return {name: text for name, text in os.environ.items() if not name.startswith(ours)}


def find_python(version: str) -> str | None:
    """A Python of this minor version that runs: on PATH, or one of pyenv's."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        if candidate and not subprocess.run([candidate, "-V"], capture_output=True).returncode:
            return candidate
    return None


def cache() -> Path:
    """Where downloads are kept from run to run."""
    return Path(os.environ.get("LAKEWRIGHT_CACHE") or Path.home() / ".cache" / "lakewright")


def uv(*arguments: str) -> str:
    """Run uv, which fetches no Python; give what it says."""
    uv_cache = os.environ.get("UV_CACHE_DIR") or str(cache() / "uv")
    uv_environment = {"UV_CACHE_DIR": uv_cache, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
    process = subprocess.run(
        [str(UV), *arguments],
        env=clean_environment() | uv_environment,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(
            f"uv {' '.join(arguments[:2])} failed:\n{process.stdout}\n{process.stderr}"
        )
    return process.stdout
