"""A lock that is held while its file exists; real Hudi uses the same file on disks and HDFS."""

from __future__ import annotations

import json
import re
import warnings

from lakewright.clock import Clock
from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.model.table_config import META_FOLDER
from lakewright.storage.base import (
    MissingFileError,
    Storage,
    VersionedStorage,
    check_folder,
    join_path,
)
from lakewright.table.locks.retry import (
    DualTimestamp,
    LostLockError,
    acquire_with_retry,
    retry,
    safety_margin_ms,
)
from lakewright.table.options import LockSettings

_NAME = "lock"
_PREVIEW_LENGTH = 200


class FileLock:
    """The file `lock`: creating it acquires the lock, deleting it releases the lock.

    The file names its owner. Any other content belongs to another writer; real Hudi writes content
    of its own. A writer that crashes leaves the file; unless `file_expire_minutes` is set, a person
    has to delete it.
    """

    def __init__(self, storage: Storage, settings: LockSettings, clock: Clock) -> None:
        self._path = lock_file_path(storage, settings)
        self._settings = settings
        self._clock = clock
        self._expire_ms = max(0, settings.file_expire_minutes) * 60_000
        self._expiry_storage = _versioned(storage) if self._expire_ms else None
        # Not synced: a lock file that survives a power cut would block all writers.
        self._storage = storage.unsynced()
        self._owner: str | None = None
        self._held_since = DualTimestamp.now(clock)
        self._unanswered: list[DualTimestamp] = []

    def acquire(self) -> None:
        """Wait for the lock and acquire it; an expired one is taken over."""
        if self._owner is not None:
            raise InvalidError("the lock is held already", file=self._path)
        owner = self._clock.new_id()
        self._unanswered.clear()
        try:
            acquire_with_retry(lambda: self._attempt(owner), self._settings, self._clock)
            self._owner = owner
        finally:
            # A file may have been created though storage did not answer.
            if self._owner is None and self._unanswered:
                retry(lambda: self._remove(owner), self._settings, self._clock)

    def verify(self) -> None:
        """Raise LostLockError unless this process owns the file, and it does not expire soon."""
        if self._owner is None:
            raise ConflictError("the lock of the table is not held", file=self._path)
        remaining_ms = self._expire_ms - self._held_since.age_ms(self._clock)
        if self._expire_ms and remaining_ms < safety_margin_ms(self._expire_ms):
            raise LostLockError(
                "the lock was held too long and others may take it",
                file=self._path,
                left_ms=remaining_ms,
            )
        content = self._read()
        if _owner_of(content) != self._owner:
            holder = "none" if content is None else _preview(content)
            raise LostLockError("the lock was taken away", file=self._path, holder=holder)

    def release(self) -> None:
        """Delete the file if this process still owns it."""
        owner, self._owner = self._owner, None
        if owner is None or retry(lambda: self._remove(owner), self._settings, self._clock):
            return
        # Not an error: the work under the lock is done, and the caller must not repeat it.
        warnings.warn(
            f"the lock {self._storage.root}/{self._path} could not be released: remove it",
            RuntimeWarning,
            stacklevel=2,
        )

    def _attempt(self, owner: str) -> str | None:
        """Try once to acquire the lock; return None, or its holder."""
        now = DualTimestamp.now(self._clock)
        try:
            self._storage.create(self._path, _content(owner, now.wall_ms))
        except UnavailableError:
            self._unanswered.append(now)
            raise
        except ConflictError:
            content = self._read()
            if _owner_of(content) != owner and not self._take_over(owner, now):
                return "none any more" if content is None else _preview(content)
        self._held_since = (*self._unanswered, now)[0]
        return None

    def _take_over(self, owner: str, now: DualTimestamp) -> bool:
        """Replace a lock file that has expired; of several writers that try, one succeeds."""
        if self._expiry_storage is None:
            return False
        try:
            # Read the content before the age: a lock that is acquired again in between is young.
            _, version = self._expiry_storage.read_versioned(self._path)
            file = self._expiry_storage.status(self._path)
            if file is None or now.wall_ms - file.modified_ms <= self._expire_ms:
                return False
            self._expiry_storage.replace_if(self._path, _content(owner, now.wall_ms), version)
            return _owner_of(self._read()) == owner
        except UnavailableError:
            self._unanswered.append(now)
            raise
        except (ConflictError, CorruptError):
            return False

    def _remove(self, owner: str) -> None:
        if _owner_of(self._read()) != owner:
            return
        if self._expiry_storage is not None:
            # Renew the file: so no writer takes it over between this check and its deletion.
            try:
                data, version = self._expiry_storage.read_versioned(self._path)
                if _owner_of(data) != owner:
                    return
                fresh = _content(owner, self._clock.now_ms())
                self._expiry_storage.replace_if(self._path, fresh, version)
            except (ConflictError, CorruptError):
                return
        self._storage.delete(self._path)

    def _read(self) -> bytes | None:
        try:
            return self._storage.read(self._path)
        except MissingFileError:
            return None
        except CorruptError:
            # A Java writer is just writing it, or crashed while writing; this process is not its
            # owner.
            return b""


def lock_file_path(storage: Storage, settings: LockSettings) -> str:
    """Return the path of the lock file that writers with these settings create."""
    return join_path(_folder(storage.root, settings.file_path), _NAME)


def _folder(root: str, path: str) -> str:
    """Return the folder of the lock file, relative to the table; `path` may be a full address."""
    if not path:
        return META_FOLDER
    normalized_root, normalized = _normalize(root), _normalize(path)
    if normalized == normalized_root:
        return ""
    relative = normalized.removeprefix(f"{normalized_root}/")
    if relative.startswith("/") or "://" in relative:
        raise InvalidError(
            "the folder of the lock file must lie below the table", folder=path, table=root
        )
    return check_folder(relative)


def _normalize(address: str) -> str:
    """Return an address in the form in which the root and the lock's folder are compared."""
    local = re.sub(r"^file:/+", "/", address)
    return re.sub(r"^s3[an]?://", "s3://", local).rstrip("/")


def _versioned(storage: Storage) -> VersionedStorage:
    if not isinstance(storage, VersionedStorage):
        raise UnsupportedError(
            "the storage has no conditional writes, so a lock file on it cannot expire",
            table=storage.root,
        )
    return storage


def _content(owner: str, now_ms: int) -> bytes:
    return json.dumps({"owner": owner, "time": now_ms}).encode("ascii")


def _owner_of(data: bytes | None) -> str | None:
    try:
        fields = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    owner = fields.get("owner") if isinstance(fields, dict) else None
    return owner if isinstance(owner, str) else None


def _preview(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return text[:_PREVIEW_LENGTH] or "unknown: the lock file is empty"
