"""Builds the wheel, and environments that hold it and what it asks for, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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


@dataclass(frozen=True)
class Installed:
    """A wheel, its source distribution, and the Python of an environment that holds the wheel."""

    wheel: Path
    source: Path
    python: Path


def build(folder: Path) -> tuple[Path, Path]:
    """Build wheel and source distribution into a folder; give both."""
    where = ("--python", sys.executable, "--no-build-isolation", "--out-dir", str(folder))
    uv("build", "-q", "--offline", "--no-cache", *where, str(ROOT))
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
    asked = f"lakewright[{','.join(extras)}] @ {wheel.as_uri()}"
    uv("venv", "-q", "--clear", "--python", python, str(folder))
    pins = _PINS
    if spark:
        pins = folder / "pins.txt"
        pins.write_text(f"{pins_without_spark()}\npyspark=={spark}.*\n", "utf-8")
    install(folder / "bin" / "python", asked, "-c", str(pins))
    return folder / "bin" / "python"


def pins_without_spark() -> str:
    """The versions of the lock file, without hashes, and without what PySpark decides about."""
    lines = re.findall(r"^[\w.-]+(?:\[[^\]]*\])?==[^\\\n]+", _PINS.read_text("utf-8"), re.MULTILINE)
    of_spark = ("pyspark[", "pyspark=", "py4j=")
    return "\n".join(
        re.sub(r"\[.*?\]", "", line) for line in lines if not line.startswith(of_spark)
    )


def add_extra(python: Path, wheel: Path, extra: str) -> None:
    """Install what an extra brings into an environment that holds the wheel."""
    install(python, f"lakewright[{extra}] @ {wheel.as_uri()}", "-c", str(_PINS))


def install(python: Path, *wanted: str) -> None:
    """Install from what is kept here, or else from the index.

    An index that names no age for its files would have PySpark, a source of 450 MB, built anew each
    time it is asked; so it is not asked where nothing is missing.
    """
    command = ("pip", "install", "-q", "--python", str(python), *wanted)
    try:
        uv(*command, "--offline")
    except RuntimeError:
        uv(*command)


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
    done = subprocess.run(
        [str(python), "-I", str(SMOKE), *arguments],
        cwd=folder,
        env=clean_environment(),
        timeout=minutes * 60,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the smoke test failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that would bring in another Python or Spark."""
    ours = ("PYTHON", "PYSPARK", "SPARK_", "VIRTUAL_ENV")
    return {name: text for name, text in os.environ.items() if not name.startswith(ours)}


def find_python(version: str) -> str | None:
    """A Python of this minor version that runs: on PATH, or one of pyenv's."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *map(str, kept)):
        if candidate and not subprocess.run([candidate, "-V"], capture_output=True).returncode:
            return candidate
    return None


def cache() -> Path:
    """Where downloads are kept from run to run."""
    return Path(os.environ.get("LAKEWRIGHT_CACHE") or Path.home() / ".cache" / "lakewright")


def uv(*arguments: str) -> str:
    """Run uv, which fetches no Python; give what it says."""
    kept = os.environ.get("UV_CACHE_DIR") or str(cache() / "uv")
    told = {"UV_CACHE_DIR": kept, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
    done = subprocess.run(
        [str(UV), *arguments], env=clean_environment() | told, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(arguments[:2])} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout
