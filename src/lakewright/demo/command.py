"""The command `lakewright demo`: run the demo, print its report and the commands to go on with."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from lakewright.demo.board import watching
from lakewright.demo.events import Recipe
from lakewright.demo.scenario import make_folders, play
from lakewright.demo.session import start_spark
from lakewright.demo.story import Story, document, summary
from lakewright.errors import InvalidError
from lakewright.utils.terminal import SafeConsole

_FAILED = 1
_MIN_RIDES = 100


def run_demo(keep: str | None, *, seed: int, rides: int, as_json: bool) -> int:
    """Run the demo in the folder `keep`, or in a new one; return the exit code."""
    if rides < _MIN_RIDES:
        raise InvalidError("too few rides to show anything", rides=rides, least=_MIN_RIDES)
    folder = Path(keep or tempfile.mkdtemp(prefix="lakewright-demo-")).expanduser().resolve()
    make_folders(folder)
    console = SafeConsole()
    if not as_json:
        console.print("Starting Spark ...", highlight=False)
    spark = start_spark()
    try:
        recipe = Recipe(datetime.now(UTC).date(), seed=seed, rides_a_day=rides)
        with watching(console, quiet=as_json) as report:
            story = play(spark, folder, recipe, report)
    finally:
        spark.stop()
    if as_json:
        console.file.write(json.dumps(document(story), indent=2, ensure_ascii=False) + "\n")
    else:
        _print_report(console, story)
    return 0 if story.passed else _FAILED


def next_commands(path: str, program: str = "lakewright") -> list[str]:
    """Commands to inspect the table of the demo."""
    quoted = shlex.quote(path)
    return [
        f"{program} ui {quoted}",
        f"{program} timeline {quoted}",
        f"{program} freshness {quoted} --holding",
        f"{program} debt {quoted}",
    ]


def program_command(called: Path, python: Path, folder: Path) -> str:
    """The command to run `lakewright` in the folder `folder`.

    If the program was called by another name (by a script, as `python -m`), `lakewright` need not
    be on the PATH of the user: the command is then the path of the one in the folder of `python`.
    """
    if called.name == "lakewright":
        return "lakewright"
    installed = python.parent / "lakewright"
    shortest = installed.relative_to(folder) if installed.is_relative_to(folder) else installed
    return shlex.quote(str(shortest))


def _print_report(console: SafeConsole, story: Story) -> None:
    lines = ["", *summary(story), "", "The table stays. Go on with:"]
    program = program_command(Path(sys.argv[0]), Path(sys.executable), Path.cwd())
    lines += [f"  {command}" for command in next_commands(story.path, program)]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
