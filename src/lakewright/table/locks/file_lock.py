"""A lock that is a file: there or not there. Real Hudi takes the same one on disks and HDFS."""

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

_FOLDER = ".hoodie"
_NAME = "lock"
_SHOWN = 200


class FileLock:
    """The file `lock`, created by who takes the lock and deleted by who gives it back.

    It names its owner. Other content is somebody else's, and real Hudi writes some of its own. A
    writer that dies leaves the file; unless `file_expire_minutes` is set, a person removes it.
    """

    def __init__(self, storage: Storage, settings: LockSettings, clock: Clock) -> None:
        self._path = join_path(_folder(storage.root, settings.file_path), _NAME)
        self._settings = settings
        self._clock = clock
        self._expire_ms = max(0, settings.file_expire_minutes) * 60_000
        self._expiring = _versioned(storage) if self._expire_ms else None
        # A lock file that survives a power cut would keep all writers out.
        self._storage = storage.unsynced()
        self._owner: str | None = None
        self._since = DualTimestamp.now(clock)
        self._unsure: list[DualTimestamp] = []

    def acquire(self) -> None:
        """Wait for the lock and take it; an expired one is taken over."""
        if self._owner is not None:
            raise InvalidError("the lock is held already", file=self._path)
        owner = self._clock.new_id()
        self._unsure.clear()
        try:
            acquire_with_retry(lambda: self._attempt(owner), self._settings, self._clock)
            self._owner = owner
        finally:
            # A creation whose answer was lost may have happened all the same.
            if self._owner is None and self._unsure:
                retry(lambda: self._remove(owner), self._settings, self._clock)

    def verify(self) -> None:
        """LostLockError unless the file is still ours and will not expire in a moment."""
        if self._owner is None:
            raise ConflictError("the lock of the table is not held", file=self._path)
        left_ms = self._expire_ms - self._since.age_ms(self._clock)
        if self._expire_ms and left_ms < safety_margin_ms(self._expire_ms):
            raise LostLockError(
                "the lock was held too long and others may take it",
                file=self._path,
                left_ms=left_ms,
            )
        found = self._read()
        if _owner_of(found) != self._owner:
            holder = "nobody" if found is None else _shown(found)
            raise LostLockError("the lock was taken away", file=self._path, holder=holder)

    def release(self) -> None:
        """Delete the file if it is still ours."""
        owner, self._owner = self._owner, None
        if owner is None or retry(lambda: self._remove(owner), self._settings, self._clock):
            return
        # Not an error: what was done under the lock is done, and must not be done again.
        warnings.warn(
            f"the lock {self._storage.root}/{self._path} could not be given back: remove it",
            RuntimeWarning,
            stacklevel=2,
        )

    def _attempt(self, owner: str) -> str | None:
        """Take the lock once; gives None, or who holds it."""
        now = DualTimestamp.now(self._clock)
        try:
            self._storage.create(self._path, _content(owner, now.wall_ms))
        except UnavailableError:
            self._unsure.append(now)
            raise
        except ConflictError:
            found = self._read()
            if _owner_of(found) != owner and not self._take_over(owner, now):
                return "nobody any more" if found is None else _shown(found)
        self._since = (*self._unsure, now)[0]
        return None

    def _take_over(self, owner: str, now: DualTimestamp) -> bool:
        """Replace a lock that has expired; of several takers one succeeds."""
        if self._expiring is None:
            return False
        try:
            # Content first, age second: a lock that is taken anew in between is young.
            _, version = self._expiring.read_versioned(self._path)
            file = self._expiring.status(self._path)
            if file is None or now.wall_ms - file.modified_ms <= self._expire_ms:
                return False
            self._expiring.replace_if(self._path, _content(owner, now.wall_ms), version)
            return _owner_of(self._read()) == owner
        except UnavailableError:
            self._unsure.append(now)
            raise
        except (ConflictError, CorruptError):
            return False

    def _remove(self, owner: str) -> None:
        if _owner_of(self._read()) != owner:
            return
        if self._expiring is not None:
            # Made young again, it cannot be taken over between this look and its deletion.
            try:
                data, version = self._expiring.read_versioned(self._path)
                if _owner_of(data) != owner:
                    return
                fresh = _content(owner, self._clock.now_ms())
                self._expiring.replace_if(self._path, fresh, version)
            except (ConflictError, CorruptError):
                return
        self._storage.delete(self._path)

    def _read(self) -> bytes | None:
        try:
            return self._storage.read(self._path)
        except MissingFileError:
            return None
        except CorruptError:
            # A Java writer that is just writing it, or died there; in any case it is not ours.
            return b""


def _folder(root: str, path: str) -> str:
    """The folder of the lock file below the table; `path` may also be a whole address."""
    if not path:
        return _FOLDER
    plain_root, plain = _plain(root), _plain(path)
    if plain == plain_root:
        return ""
    below = plain.removeprefix(f"{plain_root}/")
    if below.startswith("/") or "://" in below:
        raise InvalidError(
            "the folder of the lock file must lie below the table", folder=path, table=root
        )
    return check_folder(below)


def _plain(address: str) -> str:
    """An address as the table's root and a lock's folder can be compared."""
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
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    owner = found.get("owner") if isinstance(found, dict) else None
    return owner if isinstance(owner, str) else None


def _shown(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return text[:_SHOWN] or "unknown: the lock file is empty"
