"""The processes of the systems, as the race sees them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.memory import PeakMemory
from bench.plan import DELTA, HUDI, ICEBERG, LAKEWRIGHT
from lakewright.testing.processes import send_request

ROOT = Path(__file__).parents[1]
# Which variables name the Python and the JARs of a system; ./dev bench sets them.
_ENVIRONMENT_VARIABLES = {
    HUDI: ("LAKEWRIGHT_INTEROP_PYTHON", "LAKEWRIGHT_HUDI_JAR"),
    DELTA: ("LAKEWRIGHT_PEERS_PYTHON", "LAKEWRIGHT_DELTA_JARS"),
    ICEBERG: ("LAKEWRIGHT_PEERS_PYTHON", "LAKEWRIGHT_ICEBERG_JARS"),
}


class WorkerError(Exception):
    """A system refused, or its process went away."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a system runs: its Python, its JARs, its Java."""

    python: str
    jars: str
    java: str | None

    @classmethod
    def of(cls, system: str, variables: Mapping[str, str]) -> Environment:
        """The environment of a system as the variables of this process tell it."""
        java = variables.get("LAKEWRIGHT_INTEROP_JAVA_HOME") or variables.get("JAVA_HOME")
        if system == LAKEWRIGHT:
            return cls(sys.executable, "", java)
        missing = [name for name in _ENVIRONMENT_VARIABLES[system] if not variables.get(name)]
        if missing:
            raise ValueError(f"{system}: {', '.join(missing)} not set; start it by ./dev bench")
        python, jars = (variables[name] for name in _ENVIRONMENT_VARIABLES[system])
        return cls(python, jars, java)


@dataclass(frozen=True, slots=True)
class Member:
    """The running process of one system."""

    system: str
    process: subprocess.Popen[str]
    log: Path

    def send(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; a WorkerError if there is none."""
        answer: dict[str, Any] | None = send_request(self.process, request)
        if answer is None:
            tail = self.log.read_text("utf-8", "replace")[-2000:]
            raise WorkerError(f"the process of {self.system} went away:\n{tail}")
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def send_measured(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer with `peak_bytes`, the most memory held meanwhile."""
        with PeakMemory(self.process.pid) as peak:
            answer = self.send(request)
        return {**answer, "peak_bytes": peak.bytes}


def frozen_code(folder: Path) -> Path:
    """A copy of what is raced: a change of the checkout meanwhile must not reach its workers."""
    unwanted = shutil.ignore_patterns("__pycache__", "results")
    for package in (ROOT / "bench", ROOT / "src" / "lakewright"):
        shutil.copytree(package, folder / package.name, ignore=unwanted)
    return folder


@contextmanager
def crew_of(
    systems: Sequence[str], *, cores: int, memory: str, work: Path, sample: str
) -> Iterator[dict[str, Member]]:
    """One process for each system until the block ends."""
    code = frozen_code(work / "code")
    with ExitStack() as stack:
        yield {
            system: stack.enter_context(
                _running(
                    system,
                    Environment.of(system, os.environ),
                    work / system,
                    code,
                    {"cores": cores, "memory": memory, "sample": sample},
                )
            )
            for system in systems
        }


@contextmanager
def _running(
    system: str,
    system_environment: Environment,
    folder: Path,
    code: Path,
    config: Mapping[str, Any],
) -> Iterator[Member]:
    folder.mkdir(parents=True, exist_ok=True)
    worker_config = json.dumps(
        {**config, "system": system, "jars": system_environment.jars, "folder": str(folder)}
    )
    foreign = {"SPARK_HOME", "SPARK_CONF_DIR", "PYTHONHOME"}
    environment = {
        **{name: value for name, value in os.environ.items() if name not in foreign},
        **({"JAVA_HOME": system_environment.java} if system_environment.java else {}),
        "PYSPARK_PYTHON": system_environment.python,
        "PYSPARK_DRIVER_PYTHON": system_environment.python,
        "PYTHONPATH": str(code),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }
    log = folder / "log.txt"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [system_environment.python, "-m", "bench.worker", worker_config],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=environment,
        ) as process,
    ):
        # Leaving the block closes the input, upon which the process stops its session and ends.
        yield Member(system, process, log)
