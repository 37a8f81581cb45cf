"""Tables on object stores: S3 and what speaks its language; GCS and Azure by the same client."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, cast

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import ObjectStore

from lakewright.errors import ConflictError, UnavailableError
from lakewright.storage.base import (
    MOST_THREADS,
    FileStatus,
    MissingFileError,
    VersionedStorage,
    at_once,
    check_folder,
    check_path,
    check_range,
    is_path,
    split_path,
)
from lakewright.storage.object_client import (
    Options,
    Place,
    client_for,
    normal_options,
    status_of,
    storage_error,
    translated_errors,
)
from lakewright.storage.ranged_input import RangedInput

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, UpdateVersion

# Metadata of the object that tells a writer its own bytes from another's. One plain word: Azure
# takes no hyphen, and some proxies drop headers with an underscore.
_TOKEN = "lakewright"
_TRIES = 3

_IN_MEMORY = 16 * 1024 * 1024
_LARGEST_SINGLE_PUT = 64 * 1024 * 1024
_LIST_CHUNK = 1000


@dataclass(frozen=True, slots=True)
class ObjectStorage(VersionedStorage):
    """Objects below a prefix of a bucket; made by `ObjectStorage.at`.

    Only S3 is tested. Options are plain strings: those of the client (`endpoint`, `region`,
    `access_key_id`, `secret_access_key`, `session_token`, `allow_http`, ...), `max_retries`,
    `retry_timeout` (seconds), or Hadoop's `fs.s3a.*` keys; what they leave open comes from the
    environment (`AWS_*`).

    `create` is a conditional put. The client repeats a put whose answer was lost, and then hears
    that the object exists: its own. So each conditional put carries a token in the object's
    metadata, and a refusal counts only if the object there bears another one.

    Zero-byte keys that end in a slash, which Hadoop leaves as folders, are never shown as files.
    """

    place: Place
    options: Options = field(default=(), repr=False)

    @classmethod
    def at(cls, uri: str, options: Mapping[str, str] | None = None) -> ObjectStorage:
        """Open a storage by its URI; a wrong option is an InvalidError here, not later."""
        place = Place.parse(uri)
        storage = cls(place, normal_options(place, options or {}))
        client_for(storage.place, storage.options)
        return storage

    @property
    def keeps_time(self) -> bool:
        """The service has its own clock."""
        return True

    @property
    def listings_at_once(self) -> int:
        """How many trees are listed at once."""
        return MOST_THREADS

    @property
    def root(self) -> str:
        """The base path as a URI; S3 is `s3a://`, as Spark reads it."""
        return self.place.text

    def list_files(self, folder: str) -> list[FileStatus]:
        """Return the files directly in `folder`, sorted by name."""
        files, _ = self._list_level(check_folder(folder))
        return sorted(files, key=lambda file: file.path)

    def list_folders(self, folder: str) -> list[str]:
        """Return the paths of the folders directly in `folder`, sorted."""
        _, folders = self._list_level(check_folder(folder))
        return sorted(folders)

    def list_many(self, folders: Iterable[str]) -> dict[str, list[FileStatus]]:
        """Return `list_files` of each folder, all at once."""
        wanted = list(folders)
        return dict(zip(wanted, at_once(self.list_files, wanted), strict=True))

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        """Yield all files in `folder` and below; one listing, whatever the depth."""
        levels: dict[str, set[str]] = {}
        for file in self._list_deep(check_folder(folder)):
            # A folder's marker comes without its slash, just like an empty file: ask its parent.
            if file.size == 0:
                parent, _ = split_path(file.path)
                if parent not in levels:
                    levels[parent] = {found.path for found in self._list_level(parent)[0]}
                if file.path not in levels[parent]:
                    continue
            yield file

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time of one file, or None if there is no such file."""
        check_path(path)
        try:
            with translated_errors(path):
                # Some versions of the client answer this one with the path in the bucket.
                return replace(_status(obstore.head(self._client, path)), path=path)
        except MissingFileError:
            return None

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        check_path(path)
        with translated_errors(path):
            return bytes(obstore.get(self._client, path).bytes())

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer, or none, at the end of the file."""
        check_path(path)
        check_range(path, offset, length)
        if length == 0:
            return b""
        with translated_errors(path):
            try:
                return bytes(obstore.get_range(self._client, path, start=offset, length=length))
            except BaseError as error:
                if status_of(error) == 416:
                    return b""
                raise

    def read_many(self, paths: Iterable[str]) -> list[bytes]:
        """Return `read` of each path, in order, all at once."""
        return at_once(self.read, list(paths))

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access; each read is one request, the caller closes it."""
        found = self.status(path)
        if found is None:
            raise MissingFileError("there is no such file", path=path)
        return pa.PythonFile(RangedInput(found.size, partial(self.read_range, path)), mode="r")

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; ConflictError if the name is taken."""
        self._put_if(path, data, None)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file in pieces, kept on local disk until the block ends.

        Above 64 MiB it goes up in parts, which cannot be made conditional: an existing file is
        still refused, but not one that appears at the same moment.
        """
        check_path(path)
        with SpooledTemporaryFile(_IN_MEMORY) as pieces:
            yield cast(BinaryIO, pieces)
            size = pieces.seek(0, io.SEEK_END)
            pieces.seek(0)
            if size <= _LARGEST_SINGLE_PUT:
                self.create(path, pieces.read())
                return
            if self.exists(path):
                raise ConflictError("the file exists already", path=path)
            with translated_errors(path):
                obstore.put(self._client, path, cast(BinaryIO, pieces), use_multipart=True)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it exists or not."""
        check_path(path)
        with translated_errors(path):
            obstore.put(self._client, path, data, use_multipart=False)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the whole file and its version."""
        check_path(path)
        with translated_errors(path):
            found = obstore.get(self._client, path)
            version = _format_version(found.meta["e_tag"], found.meta["version"])
            return bytes(found.bytes()), version

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Write a file that still has `version`; give the new one."""
        return self._put_if(path, data, version)

    def delete(self, path: str) -> None:
        """Remove a file if it is there."""
        self.delete_many([path])

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove several files; S3 takes a thousand in one request."""
        wanted = [check_path(path) for path in paths]
        if not wanted:
            return
        try:
            with translated_errors(wanted[0]):
                obstore.delete(self._client, wanted)
        except MissingFileError:
            # Stores without bulk delete stop at the first that is missing.
            at_once(self._delete_one, wanted)

    def delete_folder(self, folder: str) -> None:
        """Remove a folder and all below it; never the root."""
        self.delete_many([file.path for file in self._list_deep(check_path(folder))])

    @property
    def _client(self) -> ObjectStore:
        return client_for(self.place, self.options)

    def _list_level(self, folder: str) -> tuple[list[FileStatus], list[str]]:
        with translated_errors(folder):
            found = obstore.list_with_delimiter(self._client, folder or None)
        # The folder's own marker is listed under the folder's own name.
        listed = [_status(meta) for meta in found["objects"] if meta["path"] != folder]
        files = [file for file in listed if is_path(file.path)]
        return files, [path for path in found["common_prefixes"] if is_path(path)]

    def _list_deep(self, folder: str) -> Iterator[FileStatus]:
        with translated_errors(folder):
            for chunk in obstore.list(self._client, folder or None, chunk_size=_LIST_CHUNK):
                files = (_status(meta) for meta in chunk if meta["path"] != folder)
                yield from (file for file in files if is_path(file.path))

    def _delete_one(self, path: str) -> None:
        try:
            with translated_errors(path):
                obstore.delete(self._client, path)
        except MissingFileError:
            return

    def _put_if(self, path: str, data: bytes, version: str | None) -> str:
        check_path(path)
        token = secrets.token_hex(16)
        tries = 0
        while True:
            tries += 1
            try:
                return self._put_marked(path, data, version, token)
            except (ConflictError, UnavailableError) as refusal:
                there = self._mark_of(path)
                if there is not None and there[0] == token:
                    return there[1]
                # S3 also refuses a put that met a delete; then the name is free after all.
                met_delete = there is None and isinstance(refusal, ConflictError)
                if version is not None or not met_delete or tries == _TRIES:
                    raise

    def _put_marked(self, path: str, data: bytes, version: str | None, token: str) -> str:
        mode: PutMode = "create" if version is None else _parse_version(version)
        try:
            put = obstore.put(self._client, path, data, mode=mode, attributes={_TOKEN: token})
        except (AlreadyExistsError, PreconditionError) as error:
            raise ConflictError("somebody else wrote the file", path=path) from error
        except (BaseError, OSError, ValueError) as error:
            raise storage_error(error, path) from error
        return _format_version(put["e_tag"], put["version"])

    def _mark_of(self, path: str) -> tuple[str | None, str] | None:
        try:
            with translated_errors(path):
                found = obstore.get(self._client, path, options={"head": True})
        except MissingFileError:
            return None
        version = _format_version(found.meta["e_tag"], found.meta["version"])
        return found.attributes.get(_TOKEN), version


def _status(meta: ObjectMeta) -> FileStatus:
    return FileStatus(meta["path"], meta["size"], round(meta["last_modified"].timestamp() * 1000))


# Some stores compare the tag, others the version: the text carries both.
def _format_version(tag: str | None, version: str | None) -> str:
    return f"{tag or ''}\n{version or ''}"


def _parse_version(text: str) -> UpdateVersion:
    tag, _, version = text.partition("\n")
    known: UpdateVersion = {}
    if tag:
        known["e_tag"] = tag
    if version:
        known["version"] = version
    return known
