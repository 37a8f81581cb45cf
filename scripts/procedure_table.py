"""Writes the table of procedures in docs/sql.md anew, from those that `CALL` knows.

The table stands between `<!-- procedures -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from pathlib import Path

from lakewright.sql.procedures.base import Parameter, Procedure
from lakewright.sql.procedures.registry import PROCEDURES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sql.md"
_TABLE = re.compile(r"(<!-- procedures -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Write the page."""
    PAGE.write_text(renewed(PAGE.read_text()))


def renewed(text: str) -> str:
    """A page with the table as it should be."""
    lines = ["| procedure | parameters | columns |", "|---|---|---|"]
    lines += [_line(PROCEDURES[name]) for name in sorted(PROCEDURES)]
    return _TABLE.sub(lambda match: match[1] + "\n".join(lines) + "\n" + match[2], text)


def _line(procedure: Procedure) -> str:
    parameters = ", ".join(map(_parameter, procedure.parameters))
    columns = ", ".join(part.strip().rsplit(" ", 1)[0] for part in procedure.columns.split(","))
    return f"| `{procedure.name}`: {procedure.about} | {parameters} | {columns} |"


def _parameter(parameter: Parameter) -> str:
    if parameter.required:
        return f"**{parameter.name}**"
    default = parameter.default
    if default is None or default == "":
        return parameter.name
    return f"{parameter.name} = {str(default).lower() if default in (True, False) else default}"


if __name__ == "__main__":
    main()
