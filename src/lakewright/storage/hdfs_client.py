"""From a URI and Hadoop's settings to a client of HDFS, and from its errors to ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.storage.base import MissingFileError, check_path, is_hadoop_setting
from lakewright.storage.extras import imported

if TYPE_CHECKING:
    from hdfs_native import Client, WriteOptions

Options = tuple[tuple[str, str], ...]

_DEFAULT_FS = "fs.defaultFS"
_DEFAULT_PORT = 8020
_REPLICATION = "dfs.replication"
_UMASK = "fs.permissions.umask-mode"
_ATTEMPTS = "dfs.client.failover.max.attempts"
# About half a minute; the client's own patience of minutes is made for a pair of NameNodes.
_ATTEMPTS_AT_ONE = "5"
_PROVIDER = "dfs.client.failover.proxy.provider"
_ASK_THE_ACTIVE = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"

# How the client quotes the exception of a server: its class, then its message.
_JAVA_ERROR = re.compile(r'(?:Fatal)?RPCError\("([^"]*)", ')
_REFUSALS = (
    "AccessControlException",
    "AuthorizationException",
    "InvalidPathException",
    "InvalidToken",
    "ParentNotDirectoryException",
    "PathComponentTooLongException",
)
_FULL_FOLDER = "PathIsNotEmptyDirectoryException"
_NO_FOLDER = "(is not a directory)"
_NAME_OF_FOLDER = "must both be directories"
# What the client itself calls its errors.
_WRONG = ("GSSAPIError", "InvalidArgument", "InvalidPath", "NoSASL", "SASLError", "UrlParseError")
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class HdfsPlace:
    """A folder of a NameNode (`host:port`) or of a nameservice; `folder` is "" or "/a/b"."""

    authority: str
    folder: str

    @classmethod
    def parse(cls, uri: str, options: Mapping[str, str]) -> HdfsPlace:
        """Read a URI such as `hdfs://namenode:8020/lake/trips`; `fs.defaultFS` fills in a host."""
        authority, path = _split(uri)
        default = options.get(_DEFAULT_FS, "")
        if not authority and default.startswith("hdfs:"):
            authority, _ = _split(default)
        if not authority:
            raise InvalidError("the address names no NameNode or nameservice", uri=uri)
        folder = path.strip("/")
        return cls(authority, f"/{check_path(folder)}" if folder else "")

    @property
    def text(self) -> str:
        """The URI as Spark wants it."""
        return f"hdfs://{self.authority}{self.folder}"


def _split(uri: str) -> tuple[str, str]:
    rest = re.sub(r"^hdfs:(//)?", "", uri, flags=re.IGNORECASE)
    authority, _, path = rest.partition("/")
    return authority, path


def normal_options(options: Mapping[str, str]) -> Options:
    """Return Hadoop's settings about storage without Spark's prefix, sorted."""
    for name in options:
        if not is_hadoop_setting(name):
            raise InvalidError("unknown option for a table on HDFS", option=name)
    plain = {name.removeprefix("spark.hadoop."): value for name, value in options.items()}
    return tuple(sorted(plain.items()))


@lru_cache(maxsize=64)
def client_for(authority: str, options: Options) -> Client:
    """Return the client of this process; a wrong setting is an InvalidError."""
    native = imported("hdfs_native", "hdfs")
    config = _config(authority, options)
    try:
        try:
            client: Client = native.Client(f"hdfs://{authority}", config)
        except RuntimeError as error:
            # A host without a port that is no nameservice is a NameNode at the usual one.
            if ":" in authority or "No NameNode hosts found" not in str(error):
                raise
            client = native.Client(f"hdfs://{authority}:{_DEFAULT_PORT}", config)
    except (OSError, RuntimeError) as error:
        raise InvalidError(
            "the settings do not make a client of HDFS",
            address=authority,
            settings=[name for name, _ in options],
            reason=str(error)[:_SHOWN],
        ) from error
    return client


def _config(authority: str, options: Options) -> dict[str, str]:
    config = dict(options)
    if ":" in authority:
        config.setdefault(_ATTEMPTS, _ATTEMPTS_AT_ONE)
    # An observer answers from the past: a listing could miss a commit that has completed.
    config[f"{_PROVIDER}.{authority.partition(':')[0]}"] = _ASK_THE_ACTIVE
    return config


@lru_cache(maxsize=64)
def write_options(options: Options) -> WriteOptions:
    """Return how new files are made: what Hadoop's own client would take from the settings."""
    told = dict(options)
    replication, umask = told.get(_REPLICATION), told.get(_UMASK, "022")
    try:
        made: WriteOptions = imported("hdfs_native", "hdfs").WriteOptions(
            replication=int(replication) if replication else None,
            permission=0o666 & ~int(umask, 8),
        )
    except (ValueError, OverflowError) as error:
        raise InvalidError(
            "a setting is no number", **{_REPLICATION: replication, _UMASK: umask}
        ) from error
    return made


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what the client raises while it reads into one of this library's errors."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise MissingFileError("there is no such file", path=path) from error
    except (OSError, RuntimeError) as error:
        # Nothing is below a file, and HDFS calls it a matter of access to look there.
        if _NO_FOLDER in str(error):
            raise MissingFileError("there is no such file", path=path) from error
        raise _trouble(error, path) from error


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn what the client raises while it writes into one of this library's errors."""
    try:
        yield
    except FileExistsError as error:
        raise ConflictError("the file exists already", path=path) from error
    except (OSError, RuntimeError) as error:
        raise _trouble(error, path) from error


@contextmanager
def deleting(path: str) -> Iterator[None]:
    """The same for a deletion: where no file of that name is, there is nothing to be done."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        is_no_file = _NO_FOLDER in str(error) or _java_error(error) == _FULL_FOLDER
        if not is_no_file:
            raise _trouble(error, path) from error


def _trouble(error: Exception, path: str) -> LakewrightError:
    text = str(error)
    reason = text.partition("\\n")[0].partition("\n")[0][:_SHOWN]
    told = text if isinstance(error, RuntimeError) else ""
    if isinstance(error, NotImplementedError) or told.startswith("UnsupportedErasure"):
        return UnsupportedError("the client of HDFS cannot do this", path=path, reason=reason)
    if told.startswith("ChecksumError"):
        return CorruptError("HDFS gave other bytes than were written", path=path, reason=reason)
    if _java_error(error) in _REFUSALS or told.startswith(_WRONG) or _NAME_OF_FOLDER in told:
        return InvalidError("HDFS refused the request", path=path, reason=reason)
    return UnavailableError("HDFS did not answer, or not now", path=path, reason=reason)


def _java_error(error: Exception) -> str:
    """The class of the exception that a server has answered with, without its package."""
    found = _JAVA_ERROR.match(str(error))
    return re.split(r"[.$]", found[1])[-1] if found else ""
