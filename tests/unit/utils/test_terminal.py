"""What comes from a table does nothing to a terminal but stand there."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

import lakewright
from lakewright.cli.common import exit_codes
from lakewright.cli.main import _show_warning
from lakewright.errors import CorruptError
from lakewright.storage.local import LocalStorage
from lakewright.utils.terminal import SafeConsole, SafeFile, printable, report_bug
from support.cli import CLI_COMMAND
from support.tables import WrittenTable, row

TITLE = "\x1b]0;PWNED\x07"
C1 = "\x9b31mred"
NASTY = f"n{TITLE}\x1b[2J{C1}\r\x7f\u202egnp\udc80"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, \ttabbed\nand åß😀", "plain, \ttabbed\nand åß😀"),
        (TITLE, "\\x1b]0;PWNED\\x07"),
        (C1, "\\u009b31mred"),
        ("\r\x00\x7f", "\\x0d\\x00\\u007f"),
        ("\u202etxt.exe\u2066", "\\u202etxt.exe\\u2066"),
        ("\udcff", "\\udcff"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_by_number(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_errors_with_their_facts_and_notes_are_harmless(
    capfd: pytest.CaptureFixture[str],
) -> None:
    error = CorruptError(f"bad {NASTY}", file=NASTY, **{f"fact{TITLE}": NASTY})
    error.add_note(NASTY)
    with pytest.raises(typer.Exit), exit_codes():
        raise error
    printed = capfd.readouterr()
    assert "PWNED" in printed.err
    assert UNSAFE.findall(printed.out + printed.err) == []


def test_warnings_and_bugs_are_harmless(capfd: pytest.CaptureFixture[str]) -> None:
    _show_warning(UserWarning(NASTY), UserWarning, "file", 1)
    try:
        raise ValueError(f"of {TITLE}")
    except ValueError as error:
        report_bug(ValueError, error, error.__traceback__)
    printed = capfd.readouterr().err
    assert printed.count("PWNED") >= 2
    assert UNSAFE.findall(printed) == []


def test_consoles_escape_all_control_characters_but_their_own() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, width=300, color_system="truecolor")
    table = Table()
    table.add_column(Text(NASTY))
    table.add_row(Text(NASTY, style="red"))
    console.print(NASTY, table)
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task(NASTY, total=1)
    shown = file.getvalue()
    assert shown.count("\\x1b]0;PWNED") >= 4
    own = re.sub(r"\x1b\[\??[0-9;]*[A-Za-z]|\r", "", shown)
    assert UNSAFE.findall(own) == []
    assert "\x1b[2J" not in shown
    assert "\x1b[31m" in shown


def test_rows_as_they_are_are_not_for_a_terminal() -> None:
    file = io.StringIO()
    csv.writer(SafeFile(file)).writerow([NASTY])
    SafeFile(file).writelines([json.dumps(NASTY, ensure_ascii=False)])
    assert UNSAFE.findall(file.getvalue().replace("\r\n", "")) == []


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A table whose name, and a value of whose, is more than a word."""
    storage = LocalStorage(str(tmp_path / "table"))
    table = WrittenTable(storage).create()
    table.upsert([row("a", note=f"v{TITLE}{C1}")])
    properties = tmp_path / "table" / ".hoodie" / "hoodie.properties"
    text = properties.read_text("utf-8")
    text = re.sub(r"(?m)^hoodie.table.name=.*$", r"hoodie.table.name=n\\u001b]0;PWNED\\u0007", text)
    text = re.sub(r"(?m)^hoodie.table.checksum=.*\n", "", text)
    properties.write_text(text, "utf-8")
    properties.with_name(".hoodie.properties.crc").unlink(missing_ok=True)
    return tmp_path / "table"


COMMANDS = {
    "info": ["info"],
    "rows as CSV": ["read", "--format", "csv"],
    "an error with facts": ["info", "-o", f"no{TITLE}=1"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=list(COMMANDS))
def test_nothing_of_a_table_is_obeyed_by_a_terminal(hostile: Path, words: list[str]) -> None:
    shown = on_a_terminal(words[0], str(hostile), *words[1:])
    assert "\x1b]" not in shown
    assert "\x9b" not in shown
    assert "\x07" not in shown
    # Where text is laid out, the bell is left out before the rest is shown by number.
    assert "\\x1b]0;PWNED" in shown


def on_a_terminal(*words: str) -> str:
    """What a command prints on a terminal of its own."""
    ours, its = pty.openpty()
    options = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(
        [*CLI_COMMAND, *words], stdin=its, stdout=its, stderr=its, env=options
    ) as process:
        os.close(its)
        shown = b"".join(read_all(ours))
    os.close(ours)
    assert process.returncode in (0, 2, 10)
    return shown.decode("utf-8")


def read_all(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux reports so that no process writes any more.
            return
        if not data:
            return
        yield data


PACKAGE = Path(lakewright.__file__).parent
DOORS = {"utils/terminal.py"}
# The first prints what it has made itself, as the examples do; in the other, `Console` is the name
# of a reporter that writes JSON.
OWN_TEXT = {"demo/sample.py", "metrics/reporters.py"}
PRINTS = {
    "print",
    "typer.echo",
    "typer.secho",
    "typer.confirm",
    "typer.prompt",
    "click.echo",
    "Console",
}


def prints(source: str) -> set[str]:
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {ast.unparse(call) for call in calls} & PRINTS


def test_all_text_goes_to_the_terminal_through_one_place() -> None:
    offences = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in DOORS | OWN_TEXT and prints(path.read_text("utf-8")):
            offences[name] = prints(path.read_text("utf-8"))
    assert offences == {}
    assert prints("import typer\ntyper.echo('x'); print(1); Console()") == {
        "typer.echo",
        "print",
        "Console",
    }
