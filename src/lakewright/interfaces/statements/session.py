"""Queries on a session, with DataFrames in the places of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.interfaces.statements.assignment import quoted
from lakewright.interfaces.statements.names import Address, address_of, named_path
from lakewright.interfaces.statements.readings import Reading, readings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewright.interfaces.api import Table


@dataclass(frozen=True)
class Session:
    """A session with its own `sql`, and what a statement was given besides its text.

    `args` are the values of parameter markers, `told` what stands for names in braces.
    """

    spark: SparkSession
    original: Callable[..., DataFrame]
    open: Callable[..., Table]
    args: Any = None
    told: Mapping[str, Any] = field(default_factory=dict)

    def table(self, address: Address) -> Table:
        """The table at an address."""
        return self.open(address.path, options=address.options)

    def query(self, *parts: str | DataFrame) -> DataFrame:
        """The result of a query whose text has DataFrames in some places.

        Spark's own way to name DataFrames in a text serves: it works on Spark Connect, too, where
        a query is looked at again when its rows are asked for.
        """
        pieces: list[str | DataFrame] = []
        for part in parts:
            pieces += self._pieces(part) if isinstance(part, str) else [part]
        return self._asked(pieces)

    def read(self, text: str) -> DataFrame | None:
        """The result of a query that reads a table of ours in a way that Spark does not know.

        None if it does not.
        """
        pieces = self._pieces(text)
        return self._asked(pieces) if len(pieces) > 1 else None

    def _asked(self, pieces: Sequence[str | DataFrame]) -> DataFrame:
        frames: dict[str, Any] = {}
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece if self.told else piece.replace("{", "{{").replace("}", "}}")
            else:
                name = f"_lakewright_{len(frames)}"
                frames[name] = piece
                text += f"{{{name}}}"
        if not frames and not self.told:
            text = "".join(str(piece) for piece in pieces)
        return self.original(text, self.args, **{**self.told, **frames})

    def _pieces(self, text: str) -> list[str | DataFrame]:
        """A text with the tables in it that we read."""
        pieces: list[str | DataFrame] = []
        at = 0
        for reading in readings(text):
            frame = self._frame(reading)
            if frame is None:
                continue
            name = "" if reading.aliased else f" AS {quoted(_short(reading))}"
            pieces += [text[at : reading.start], frame, name]
            at = reading.end
        return [*pieces, text[at:]]

    def _frame(self, reading: Reading) -> DataFrame | None:
        if reading.changes is not None:
            return self._changes(reading.name[0] if reading.name else "", reading.changes)
        address = address_of(self.spark, reading.name)
        if address is None:
            return None
        if reading.as_of == "":
            raise UnsupportedError(
                "the point in time must be a text or a number, such as '2026-01-31 12:00:00'",
                table=".".join(reading.name),
            )
        return self.table(address).read(as_of=reading.as_of)

    def _changes(self, name: str, arguments: tuple[str, ...]) -> DataFrame:
        if not 2 <= len(arguments) <= 3:
            raise InvalidError(
                "hudi_table_changes('table', 'latest_state' or 'cdc', 'begin' [, 'end']) expected",
                given=len(arguments) + 1,
            )
        kind, begin, *end = arguments
        by_path = "/" in name
        address = Address(name) if by_path else address_of(self.spark, name.split("."))
        if address is None:
            raise InvalidError("this is no table of the hudi format", table=name)
        until = end[0] if end else None
        changes = self.table(address).changes(since=begin, until=until, format=kind.lower())
        return changes.dataframe


def _short(reading: Reading) -> str:
    """By which name the rest of a query can speak of a table."""
    if reading.changes is not None:
        return "hudi_table_changes"
    return "hudi_table" if named_path(reading.name) is not None else reading.name[-1]
