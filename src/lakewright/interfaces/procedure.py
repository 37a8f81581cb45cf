"""What a procedure is, and the parameters that many have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewright.errors import InvalidError
from lakewright.interfaces.calls import Parameter, Value

if TYPE_CHECKING:
    from lakewright.interfaces.api import Table

Arguments = Mapping[str, Any]
Rows = list[tuple[Any, ...]]

TABLE = (
    Parameter("table", about="the name of a table in the catalog"),
    Parameter("path", about="where the table is, in place of its name"),
)
OPTIONS = Parameter("options", about="options as key=value, with commas between them")
LIMIT = Parameter("limit", 20, about="how many rows at most")


@dataclass(frozen=True)
class Procedure:
    """What can be called: its parameters, the columns of its result, and what it does."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    columns: str
    run: Callable[[Table, Arguments], Rows]


def told_options(text: Value) -> dict[str, str]:
    """Options that were given as one text."""
    found = {}
    for part in str(text or "").split(","):
        key, equals, value = part.partition("=")
        if part.strip() and not equals:
            raise InvalidError("options are key=value, with commas between them", option=part)
        if equals:
            found[key.strip()] = value.strip()
    return found
