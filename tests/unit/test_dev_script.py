"""What `./dev` does to a machine: it says so first, and trusts no file that it has not checked."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOOD = b"what was published"
SHA256 = hashlib.sha256(GOOD).hexdigest()


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Programs that only record their calls; Maven fetches what a file of the test holds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "id": "echo 0",
        "apt-cache": "exit 0",
        "apt-get": f'echo "APT $*" | tee -a "{tmp_path}/calls"',
        "mvn": 'echo "MVN" >&2\n'
        "for word do case $word in -DoutputDirectory=*) out=${word#*=} ;; esac; done\n"
        f'mkdir -p "$out" && cp "{tmp_path}/published" "$out/tool-1.0.jar"',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        (folder / name).chmod(0o755)
    (tmp_path / "cache" / "jars").mkdir(parents=True)
    (tmp_path / "published").write_bytes(GOOD)
    return tmp_path


def run(tools: Path, call: str) -> tuple[int, list[str]]:
    """Call a function of `scripts/env.sh`; returns its exit code and the lines of its stderr."""
    lines = (
        f'set -eu; ROOT="{ROOT}"; CACHE="{tools}/cache"; LAKEWRIGHT_INTEROP_JAVA_HOME=/none',
        f'. "{ROOT}/scripts/env.sh"',
        # No folder of the machine is made.
        "mkdir() { :; }",
        call,
    )
    process = subprocess.run(
        ["sh", "-c", "\n".join(lines)],
        env={"PATH": f"{tools}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    return process.returncode, process.stderr.splitlines()


def test_what_is_installed_from_the_distribution_is_announced_with_the_reason(tools: Path) -> None:
    code, printed = run(tools, 'apt_install "Spark needs a Java" openjdk-17-jre-headless')
    assert code == 0
    assert printed[0] == (
        "dev: installing from the distribution, as root, with apt-get: "
        "openjdk-17-jre-headless (Spark needs a Java)"
    )
    assert (tools / "calls").read_text("utf-8").split()[-1] == "openjdk-17-jre-headless"


def test_not_even_a_list_of_packages_is_fetched_before_it_is_announced(tools: Path) -> None:
    (tools / "bin" / "apt-cache").write_text("#!/bin/sh\nexit 1\n", "utf-8")
    code, printed = run(tools, "apt_install why maven")
    assert (code, len(printed)) == (1, 2)
    assert printed[0].startswith("dev: installing")
    assert printed[1].endswith("update")


def test_without_root_nothing_is_installed(tools: Path) -> None:
    (tools / "bin" / "id").write_text("#!/bin/sh\necho 1000\n", "utf-8")
    assert run(tools, "apt_install why maven") == (1, [])


def test_every_installation_has_a_reason(tools: Path) -> None:
    calls = [
        line.partition("apt_install ")[2]
        for line in (ROOT / "scripts" / "env.sh").read_text("utf-8").splitlines()
        if "apt_install " in line and not line.lstrip().startswith("#")
    ]
    assert len(calls) == 5
    assert [call for call in calls if not call.startswith('"')] == []


JAR = "org.example:tool:1.0"


def test_a_jar_of_the_cache_is_checked_each_time(tools: Path) -> None:
    jar = tools / "cache" / "jars" / "tool-1.0.jar"
    assert run(tools, f"ensure_jar {JAR} {SHA256}")[0] == 0
    assert jar.read_bytes() == GOOD
    assert run(tools, f"ensure_jar {JAR} {SHA256}") == (0, [])
    jar.write_bytes(b"something else")
    code, printed = run(tools, f"ensure_jar {JAR} {SHA256}")
    assert code == 0
    assert "is not the file it should be: fetching it again" in printed[0]
    assert jar.read_bytes() == GOOD


def test_a_jar_that_is_another_one_is_not_taken(tools: Path) -> None:
    (tools / "published").write_bytes(b"something else")
    code, printed = run(tools, f"ensure_jar {JAR} {SHA256}")
    assert code == 1
    assert printed[-1] == f"dev: {JAR} is not the file it should be."
    assert not (tools / "cache" / "jars" / "tool-1.0.jar").exists()
