"""The command: run the demo, say what happened, and how to go on."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from lakewright.demo.events import Recipe
from lakewright.demo.play import make_place, play
from lakewright.demo.session import start_spark
from lakewright.demo.story import Story, document, summary
from lakewright.demo.view import watching
from lakewright.errors import InvalidError
from lakewright.utils.terminal import SafeConsole

_FAILED = 1
_LEAST_RIDES = 100


def run_demo(keep: str | None, *, seed: int, rides: int, as_json: bool) -> int:
    """Run the demo in the folder `keep`, or in a new one; gives the exit code."""
    if rides < _LEAST_RIDES:
        raise InvalidError("too few rides to show anything", rides=rides, least=_LEAST_RIDES)
    folder = Path(keep or tempfile.mkdtemp(prefix="lakewright-demo-")).expanduser().resolve()
    make_place(folder)
    console = SafeConsole()
    if not as_json:
        console.print("Starting Spark ...", highlight=False)
    spark = start_spark()
    try:
        recipe = Recipe(datetime.now(UTC).date(), seed=seed, rides_a_day=rides)
        with watching(console, quiet=as_json) as tell:
            story = play(spark, folder, recipe, tell)
    finally:
        spark.stop()
    if as_json:
        console.file.write(json.dumps(document(story), indent=2, ensure_ascii=False) + "\n")
    else:
        _say(console, story)
    return 0 if story.passed else _FAILED


def next_commands(path: str, program: str = "lakewright") -> list[str]:
    """What to do with the table that is left."""
    place = shlex.quote(path)
    return [
        f"{program} ui {place}",
        f"{program} timeline {place}",
        f"{program} freshness {place} --holding",
        f"{program} debt {place}",
    ]


def program_here(called: Path, python: Path, here: Path) -> str:
    """How to call `lakewright` from a folder: as it was, or beside the Python that runs.

    By another name it was called for somebody, by a script with a PATH of its own.
    """
    if called.name == "lakewright":
        return "lakewright"
    beside = python.parent / "lakewright"
    near = beside.relative_to(here) if beside.is_relative_to(here) else beside
    return shlex.quote(str(near))


def _say(console: SafeConsole, story: Story) -> None:
    lines = ["", *summary(story), "", "The table stays. Go on with:"]
    program = program_here(Path(sys.argv[0]), Path(sys.executable), Path.cwd())
    lines += [f"  {command}" for command in next_commands(story.path, program)]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
