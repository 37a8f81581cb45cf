"""Tables on object stores: S3 and compatible stores, GCS and Azure, through the client obstore.

Plain options or Hadoop's `fs.s3a.*` settings configure the client; its errors are translated into
this library's errors. `RangedInput` makes a remote file readable for pyarrow.
"""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from lakewright.errors import ConflictError, InvalidError, LakewrightError, UnavailableError
from lakewright.storage.base import (
    FileStatus,
    MissingFileError,
    RemoteStorage,
    VersionedStorage,
    check_folder,
    check_path,
    check_range,
    flag,
    is_hadoop_setting,
    is_path,
    map_in_threads,
    split_path,
)
from lakewright.storage.multipart import MultipartOutput, PartQueue
from lakewright.storage.redaction import without_secrets

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, UpdateVersion

Options = tuple[tuple[str, str], ...]

# Hadoop settings that Spark users already have, and the options of the client that they mean.
_S3A_KEYS = {
    "fs.s3a.access.key": "access_key_id",
    "fs.s3a.secret.key": "secret_access_key",
    "fs.s3a.session.token": "session_token",
    "fs.s3a.endpoint": "endpoint",
    "fs.s3a.endpoint.region": "region",
    "fs.s3a.connection.ssl.enabled": "ssl",
    "fs.s3a.path.style.access": "path_style",
    "fs.s3a.aws.credentials.provider": "credentials_provider",
}
_HTTP_KEYS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "proxy_url",
    "timeout",
    "user_agent",
)
_DEFAULTS = {"timeout": "120s", "max_retries": "6", "retry_timeout": "60"}
# The configuration keys of the client for each kind of store, without those for bucket and account,
# which the address contains. The client also accepts them with the prefix of environment variables.
_CLIENT_KEYS = {
    "s3": (
        "access_key_id",
        "checksum_algorithm",
        "conditional_put",
        "container_authorization_token_file",
        "container_credentials_full_uri",
        "container_credentials_relative_uri",
        "copy_if_not_exists",
        "default_region",
        "disable_bulk_delete",
        "disable_tagging",
        "endpoint",
        "metadata_endpoint",
        "region",
        "request_payer",
        "role_arn",
        "role_session_name",
        "secret_access_key",
        "server_side_encryption",
        "session_token",
        "skip_signature",
        "sse_bucket_key_enabled",
        "sse_kms_key_id",
        "unsigned_payload",
        "virtual_hosted_style_request",
        "web_identity_token_file",
    ),
    "gcs": (
        "application_credentials",
        "base_url",
        "bearer_token",
        "service_account",
        "service_account_key",
        "skip_signature",
    ),
    "azure": (
        "account_key",
        "account_name",
        "authority_host",
        "client_id",
        "client_secret",
        "disable_tagging",
        "endpoint",
        "fabric_cluster_identifier",
        "fabric_session_token",
        "fabric_token_service_url",
        "fabric_workload_host",
        "federated_token_file",
        "msi_endpoint",
        "msi_resource_id",
        "object_id",
        "sas_key",
        "skip_signature",
        "tenant_id",
        "token",
        "use_azure_cli",
        "use_emulator",
        "use_fabric_endpoint",
    ),
}
_CLIENT_PREFIXES = {"s3": "aws_", "gcs": "google_", "azure": "azure_"}
_STORAGE_ACCOUNT_KEYS = ("account_key", "account_name", "sas_key", "token", "use_emulator")
_COMMON_OPTIONS = frozenset({*_HTTP_KEYS, *_DEFAULTS, "ssl", "path_style", "credentials_provider"})

_STATUS = re.compile(r"status code: (\d{3})")
_TRANSIENT_STATUS = {408, 409, 429}
# One request deletes many keys; the body of a successful response reports the keys that failed.
_KEY_REFUSED = re.compile(r"request failed for key (?P<key>.*): .*\(code: (?P<code>\w+)\)")
_TRANSIENT_CODES = {
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
}


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A bucket (or container) and a prefix in it, on one kind of store.

    `text` is the URI for Spark; `account` is set for Azure only.
    """

    text: str
    kind: str
    bucket: str
    prefix: str
    account: str | None = None

    @classmethod
    def parse(cls, uri: str) -> ObjectLocation:
        """Parse a URI such as `s3://bucket/folder/table`."""
        scheme, _, rest = uri.partition("://")
        authority, _, path = rest.partition("/")
        prefix = path.strip("/")
        kind = SCHEMES.get(scheme.lower())
        if kind is None or not authority:
            raise InvalidError("not the address of an object store", uri=uri, known=sorted(SCHEMES))
        bucket, _, host = authority.partition("@")
        # Spark reads S3 through s3a only; other stores keep their scheme.
        spark_scheme = "s3a" if kind == "s3" else scheme.lower()
        text = f"{spark_scheme}://{authority}/{prefix}".rstrip("/")
        return cls(text, kind, bucket, prefix, host.partition(".")[0] or None)


def option_names(kind: str) -> frozenset[str]:
    """Return the options that a kind of store accepts, besides Hadoop's settings."""
    prefix = _CLIENT_PREFIXES[kind]
    prefixed = (
        f"{prefix}storage_{name}" if name in _STORAGE_ACCOUNT_KEYS else f"{prefix}{name}"
        for name in _CLIENT_KEYS[kind]
    )
    return _COMMON_OPTIONS.union(_CLIENT_KEYS[kind], prefixed)


def normal_options(location: ObjectLocation, options: Mapping[str, str]) -> Options:
    """Convert plain options and Hadoop settings to client options, sorted; drop other settings."""
    result: dict[str, str] = {}
    plain = {name.removeprefix("spark.hadoop."): value for name, value in options.items()}
    of_bucket = f"fs.s3a.bucket.{location.bucket}."
    for name, value in plain.items():
        if not is_hadoop_setting(name):
            result[name] = value
        elif name in _S3A_KEYS and location.kind == "s3":
            result.setdefault(_S3A_KEYS[name], value)
    for name, value in plain.items():
        general = "fs.s3a." + name.removeprefix(of_bucket)
        if name.startswith(of_bucket) and general in _S3A_KEYS:
            result[_S3A_KEYS[general]] = value
    return tuple(sorted(_translated(result).items()))


def _translated(options: dict[str, str]) -> dict[str, str]:
    secure = flag(options, "ssl", default=True)
    # Only check the value: the client uses path style by default, which every store supports.
    flag(options, "path_style", default=True)
    if "Anonymous" in options.get("credentials_provider", ""):
        options["skip_signature"] = "true"
    if "endpoint" in options and "://" not in options["endpoint"]:
        options["endpoint"] = f"{'https' if secure else 'http'}://{options['endpoint']}"
    if options.get("endpoint", "").startswith("http://"):
        options.setdefault("allow_http", "true")
    for name in ("ssl", "path_style", "credentials_provider"):
        options.pop(name, None)
    return options


@lru_cache(maxsize=64)
def client_for(location: ObjectLocation, options: Options) -> ObjectStore:
    """Return the client of this process for a location; a wrong option is an InvalidError."""
    config = {**_DEFAULTS, **dict(options)}
    http = {name: config.pop(name) for name in _HTTP_KEYS if name in config}
    try:
        retry = {
            "max_retries": int(config.pop("max_retries")),
            "retry_timeout": timedelta(seconds=float(config.pop("retry_timeout"))),
        }
        return _CLIENTS[location.kind](location, config, client_options=http, retry_config=retry)
    except (BaseError, ValueError, TypeError) as error:
        raise InvalidError(
            "the options do not make a client for this store",
            uri=location.text,
            options=[name for name, _ in options],
            reason=without_secrets(_first_line(error), dict(options)),
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _s3(location: ObjectLocation, config: Any, **settings: Any) -> ObjectStore:
    return S3Store(location.bucket, prefix=location.prefix or None, config=config, **settings)


def _gcs(location: ObjectLocation, config: Any, **settings: Any) -> ObjectStore:
    return GCSStore(location.bucket, prefix=location.prefix or None, config=config, **settings)


def _azure(location: ObjectLocation, config: Any, **settings: Any) -> ObjectStore:
    if location.account:
        config.setdefault("account_name", location.account)
    return AzureStore(location.bucket, prefix=location.prefix or None, config=config, **settings)


SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_CLIENTS: dict[str, Callable[..., ObjectStore]] = {"s3": _s3, "gcs": _gcs, "azure": _azure}


@contextmanager
def translated_errors(path: str) -> Iterator[None]:
    """Translate client errors of a block into this library's errors."""
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise storage_error(error, path) from error


def storage_error(error: Exception, path: str) -> LakewrightError:
    """Return the error of this library that a client error means."""
    reason = _first_line(error)
    if "NoSuchBucket" in str(error):
        return InvalidError("there is no such bucket", path=path, reason=reason)
    if isinstance(error, FileNotFoundError):
        return MissingFileError("there is no such file", path=path)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return InvalidError("the store denies access", path=path, reason=reason)
    if isinstance(error, InvalidPathError):
        return InvalidError(
            "the store holds a key that is no path of a table: remove it", path=path, reason=reason
        )
    if (match := _KEY_REFUSED.search(reason)) and match["code"] not in _TRANSIENT_CODES:
        message = (
            "the store denies access" if "Denied" in match["code"] else "the store refused a key"
        )
        return InvalidError(message, path=path, key=match["key"], reason=reason)
    status = status_of(error)
    refused = 300 <= status < 500 and status not in _TRANSIENT_STATUS
    if refused or isinstance(error, ValueError):
        return InvalidError("the store refused the request", path=path, reason=reason)
    return UnavailableError("the store did not answer", path=path, reason=reason)


def status_of(error: Exception) -> int:
    """Return the HTTP status in the text of a client error, or 0."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0


class RangedInput(io.RawIOBase):
    """A remote file of `size` bytes for pyarrow; `read_range(offset, length)` returns its bytes.

    `tail` are the last bytes of the file, as many as the caller has read already.
    """

    def __init__(
        self, size: int, read_range: Callable[[int, int], bytes], tail: bytes = b""
    ) -> None:
        self._size = size
        self._read_range = read_range
        self._tail = tail
        self._position = 0

    def readable(self) -> bool:
        """Always True."""
        return True

    def seekable(self) -> bool:
        """Always True; seeking makes no request."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, which may be behind the end."""
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = max(0, origins[whence] + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes, or all that remain."""
        remaining = max(0, self._size - self._position)
        to_read = remaining if size is None or size < 0 else min(size, remaining)
        data = self._read_at(self._position, to_read)
        self._position += len(data)
        return data

    def _read_at(self, offset: int, length: int) -> bytes:
        tail_start = self._size - len(self._tail)
        if offset >= tail_start:
            return self._tail[offset - tail_start : offset - tail_start + length]
        in_front = self._read_range(offset, min(length, tail_start - offset))
        return in_front + self._tail[: max(0, offset + length - tail_start)]


# Metadata key of the token by which a writer recognises its own objects. It is a plain word: Azure
# allows no hyphen, and some proxies drop headers with an underscore.
_TOKEN_KEY = "lakewright"
_PUT_ATTEMPTS = 3

# The names of empty files of which a table may have one in each folder: the markers of a write, and
# those of partitions that are done. Hadoop makes no folder of such a name.
_EMPTY_FILE = re.compile(
    r"\.marker\.(?:CREATE|MERGE|APPEND)$|(?:^|/)(?:_SUCCESS|\.lakewright_done)$"
)

# What a store sends in less time than it takes to answer: a footer with a bloom filter is smaller.
_TAIL_BYTES = 1 << 20
_IN_MEMORY = 16 * 1024 * 1024
_LARGEST_SINGLE_PUT = 64 * 1024 * 1024
_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 2
_LIST_CHUNK = 1000


@dataclass(frozen=True, slots=True)
class ObjectStorage(RemoteStorage, VersionedStorage):
    """Objects below a prefix of a bucket; made by `ObjectStorage.at`.

    Only S3 is tested. Options are plain strings: those of the client (`endpoint`, `region`,
    `access_key_id`, `secret_access_key`, `session_token`, `allow_http`, ...), `max_retries`,
    `retry_timeout` (seconds), or Hadoop's `fs.s3a.*` keys; the environment (`AWS_*`) supplies
    those that are not set.

    `create` is a conditional put. The client repeats a put whose response was lost, and the store
    then refuses it because the object exists: the writer's own. So each conditional put stores a
    token in the object's metadata, and a refusal counts only if the existing object has another.

    Zero-byte keys that end in a slash, which Hadoop writes for folders, are never listed as files.
    """

    location: ObjectLocation
    options: Options = field(default=(), repr=False)

    @classmethod
    def at(cls, uri: str, options: Mapping[str, str] | None = None) -> ObjectStorage:
        """Open a storage by its URI; a wrong option raises InvalidError here, not later."""
        location = ObjectLocation.parse(uri)
        storage = cls(location, normal_options(location, options or {}))
        client_for(storage.location, storage.options)
        return storage

    def with_timeout(self, seconds: float) -> ObjectStorage:
        """Return this storage with a client whose requests fail after `seconds`, with retries."""
        # The client begins no retry after the second of these, and then waits once more.
        half = max(1, round(seconds * 1000 / 2))
        limits = {"timeout": f"{half}ms", "retry_timeout": f"{half / 1000}"}
        return replace(self, options=tuple(sorted({**dict(self.options), **limits}.items())))

    @property
    def root(self) -> str:
        """The base path as a URI; `s3a://` for S3, as Spark expects."""
        return self.location.text

    def list_files(self, folder: str) -> list[FileStatus]:
        """Return the files directly in `folder`, sorted by name."""
        files, _ = self._list_level(check_folder(folder))
        return sorted(files, key=lambda file: file.path)

    def list_folders(self, folder: str) -> list[str]:
        """Return the paths of the folders directly in `folder`, sorted."""
        _, folders = self._list_level(check_folder(folder))
        return sorted(folders)

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        """Yield all files in `folder` and below, from one listing of any depth."""
        files_of: dict[str, set[str]] = {}
        for file in self._list_deep(check_folder(folder)):
            # A folder marker is listed without its slash, like an empty file: list its parent,
            # unless the name is one that tables give to empty files only.
            if file.size == 0 and _EMPTY_FILE.search(file.path) is None:
                parent, _ = split_path(file.path)
                if parent not in files_of:
                    files_of[parent] = {child.path for child in self._list_level(parent)[0]}
                if file.path not in files_of[parent]:
                    continue
            yield file

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time of one file, or None if it does not exist."""
        check_path(path)
        try:
            with translated_errors(path):
                # Some versions of the client return the path in the bucket here.
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

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access; the caller closes it.

        Opening it reads its end, in one request that finds out its size as well: a small file
        needs no other, and a parquet file is read from its end. Each read before that is a request.
        """
        size, tail = self._read_tail(check_path(path))
        return pa.PythonFile(RangedInput(size, partial(self.read_range, path), tail), mode="r")

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; ConflictError if it exists."""
        self._put_if(path, data, None)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file in pieces; the parts of a large one are uploaded while it is written.

        That is a multipart upload, which cannot be conditional: an existing file still raises
        ConflictError, but not a file that another process creates concurrently. A process that dies
        leaves parts which no listing shows, and which a lifecycle rule of the bucket deletes.
        """
        check_path(path)
        output = MultipartOutput(
            partial(self._upload, path), part_bytes=_PART_BYTES, small_bytes=_IN_MEMORY
        )
        try:
            yield cast(BinaryIO, output)
            kept = output.kept()
            if kept is None:
                output.complete()
            elif output.tell() <= _LARGEST_SINGLE_PUT:
                self.create(path, kept.read())
            else:
                self._upload(path, kept)
        finally:
            output.discard()

    def _upload(self, path: str, content: PartQueue | IO[bytes]) -> None:
        if self.exists(path):
            raise ConflictError("the file exists already", path=path)
        with translated_errors(path):
            obstore.put(
                self._client,
                path,
                iter(content) if isinstance(content, PartQueue) else cast(BinaryIO, content),
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it exists or not."""
        check_path(path)
        with translated_errors(path):
            obstore.put(self._client, path, data, use_multipart=False)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the whole file and its version."""
        check_path(path)
        with translated_errors(path):
            response = obstore.get(self._client, path)
            version = _format_version(response.meta["e_tag"], response.meta["version"])
            return bytes(response.bytes()), version

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Write a file if it still has `version`; return the new version."""
        return self._put_if(path, data, version)

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        self.delete_many([path])

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete several files; S3 accepts a thousand in one request."""
        checked = [check_path(path) for path in paths]
        if not checked:
            return
        try:
            with translated_errors(checked[0]):
                obstore.delete(self._client, checked)
        except MissingFileError:
            # Stores without bulk delete stop at the first missing file.
            map_in_threads(self._delete_one, checked)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with everything in it; never the root."""
        self.delete_many([file.path for file in self._list_deep(check_path(folder))])

    def _read_tail(self, path: str) -> tuple[int, bytes]:
        """Return the size of a file, and its last bytes if the store can send them."""
        if self.location.kind != "azure":
            try:
                with translated_errors(path):
                    response = obstore.get(
                        self._client, path, options={"range": {"suffix": _TAIL_BYTES}}
                    )
                    return response.meta["size"], bytes(response.bytes())
            except InvalidError as error:
                # An empty file has no range, and not every store knows ranges from the end.
                if not isinstance(error.__cause__, BaseError) or status_of(error.__cause__) != 416:
                    raise
        file = self.status(path)
        if file is None:
            raise MissingFileError("there is no such file", path=path)
        return file.size, b""

    @property
    def _client(self) -> ObjectStore:
        return client_for(self.location, self.options)

    def _list_level(self, folder: str) -> tuple[list[FileStatus], list[str]]:
        with translated_errors(folder):
            listing = obstore.list_with_delimiter(self._client, folder or None)
        # The marker of the folder itself is listed under the name of the folder.
        objects = [_status(meta) for meta in listing["objects"] if meta["path"] != folder]
        files = [file for file in objects if is_path(file.path)]
        return files, [path for path in listing["common_prefixes"] if is_path(path)]

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
        attempts = 0
        while True:
            attempts += 1
            try:
                return self._put_with_token(path, data, version, token)
            except (ConflictError, UnavailableError) as refusal:
                existing = self._token_and_version(path)
                if existing is not None and existing[0] == token:
                    return existing[1]
                # S3 also refuses a put that races with a delete; then the object does not exist.
                deleted = existing is None and isinstance(refusal, ConflictError)
                if version is not None or not deleted or attempts == _PUT_ATTEMPTS:
                    raise

    def _put_with_token(self, path: str, data: bytes, version: str | None, token: str) -> str:
        mode: PutMode = "create" if version is None else _parse_version(version)
        try:
            put = obstore.put(self._client, path, data, mode=mode, attributes={_TOKEN_KEY: token})
        except (AlreadyExistsError, PreconditionError) as error:
            raise ConflictError("another process wrote the file", path=path) from error
        except (BaseError, OSError, ValueError) as error:
            raise storage_error(error, path) from error
        return _format_version(put["e_tag"], put["version"])

    def _token_and_version(self, path: str) -> tuple[str | None, str] | None:
        try:
            with translated_errors(path):
                response = obstore.get(self._client, path, options={"head": True})
        except MissingFileError:
            return None
        version = _format_version(response.meta["e_tag"], response.meta["version"])
        return response.attributes.get(_TOKEN_KEY), version


def _status(meta: ObjectMeta) -> FileStatus:
    return FileStatus(meta["path"], meta["size"], round(meta["last_modified"].timestamp() * 1000))


# Some stores compare the ETag, others the version: the text contains both.
def _format_version(tag: str | None, version: str | None) -> str:
    return f"{tag or ''}\n{version or ''}"


def _parse_version(text: str) -> UpdateVersion:
    tag, _, version = text.partition("\n")
    result: UpdateVersion = {}
    if tag:
        result["e_tag"] = tag
    if version:
        result["version"] = version
    return result
