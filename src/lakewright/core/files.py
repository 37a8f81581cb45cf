"""Data files: their names are values, and the values are their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from sys import intern

from lakewright.errors import CorruptError, UnsupportedError

PARTITION_METADATA = ".hoodie_partition_metadata"

_BASE = re.compile(
    r"(?P<id>[a-zA-Z0-9-]+)_(?P<token>[a-zA-Z0-9-]+)_(?P<at>[0-9]+)(?P<ext>\.[a-zA-Z0-9]+)"
)
_LOG = re.compile(
    r"\.(?P<id>[^._]+)_(?P<at>[0-9]+)\.log\.(?P<version>[0-9]+)"
    r"(?:_(?P<token>[0-9]+-[0-9]+-[0-9]+)(?P<cdc>\.cdc)?)?"
)
_EXTERNAL_END = "_hudiext"
_EXTERNAL = re.compile(rf".*_[0-9]+{_EXTERNAL_END}")


class BaseFormat(StrEnum):
    """File formats that a base file may have, by extension; only parquet is read."""

    PARQUET = ".parquet"
    ORC = ".orc"
    HFILE = ".hfile"
    LANCE = ".lance"


_BASE_EXTENSIONS = tuple(BaseFormat)


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A base file: all rows of a file group as of one instant."""

    file_id: str
    token: str
    instant: str
    extension: str = BaseFormat.PARQUET.value
    size: int = 0

    @property
    def name(self) -> str:
        """The file name in its partition folder."""
        return f"{self.file_id}_{self.token}_{self.instant}{self.extension}"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file: changes of a file group by one instant."""

    file_id: str
    instant: str
    version: int = 1
    token: str | None = "1-0-1"
    cdc: bool = False
    size: int = 0

    @property
    def name(self) -> str:
        """The file name in its partition folder."""
        token = "" if self.token is None else f"_{self.token}"
        return f".{self.file_id}_{self.instant}.log.{self.version}{token}{'.cdc' * self.cdc}"

    @property
    def order(self) -> tuple[str, int, tuple[int, ...]]:
        """Sorts the log files of a slice in the order in which they are merged."""
        token = tuple(map(int, self.token.split("-"))) if self.token else ()
        return self.instant, self.version, token


def parse_data_file(name: str, size: int = 0) -> BaseFile | LogFile | None:
    """The file that a name in a partition folder stands for; None for what readers pass over.

    Raises CorruptError for a name that looks like a data file and is none: real readers fail on
    it, and leaving it out could leave out rows.
    """
    if name.startswith("."):
        return _parse_log(name, size)
    if name.endswith(_EXTERNAL_END) and _EXTERNAL.fullmatch(name):
        raise UnsupportedError("external base files are not read", file_name=name)
    if not name.endswith(_BASE_EXTENSIONS):
        return None
    match = _BASE.fullmatch(name)
    if match is None:
        raise CorruptError(
            "a foreign file lies in a partition of the table: move it away", file_name=name
        )
    file_id, token, at, extension = match.groups()
    # Few instants and extensions are in the names of millions of files: each is held once.
    return BaseFile(file_id, token, intern(at), intern(extension), size)


def group_of(path: str) -> tuple[str, str]:
    """The partition and file id of a data file, by its path."""
    partition, _, name = path.rpartition("/")
    file = parse_data_file(name)
    if file is None:
        raise CorruptError("not the name of a data file", path=path)
    return partition, file.file_id


def _parse_log(name: str, size: int) -> LogFile | None:
    if ".log." not in name or name.endswith((".crc", ".tmp")):
        return None
    match = _LOG.fullmatch(name)
    if match is None:
        raise CorruptError(
            "a file named like a log file, but not as the format has it, lies in a partition of "
            "the table: move it away",
            file_name=name,
        )
    file_id, at, version, token, cdc = match.groups()
    return LogFile(file_id, intern(at), int(version), token, bool(cdc), size)
