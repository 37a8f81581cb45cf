"""The rows of objects on Spark, by its own readers: where objects are, or from copies of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql import functions as F

from lakewright.clock import Clock
from lakewright.errors import CorruptError, InvalidError, LakewrightError, UnavailableError
from lakewright.read.run import NATIVE_OPTIONS, literal
from lakewright.read.workers.run import SPARK_ERRORS
from lakewright.sources.cloud.objects.copies import PREFIX, CopyFolder, private_folder
from lakewright.sources.cloud.objects.worker import (
    Preparation,
    Prepared,
    missing_of,
    prepare,
    store_of,
)
from lakewright.sources.cloud.selection import CloudObject
from lakewright.sources.cloud.settings import BUCKETS, ObjectSettings, OnBad
from lakewright.storage.base import join_path
from lakewright.storage.locate import storage_for
from lakewright.write.run import failure_of, on_workers
from lakewright.write.task import Token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Answer = TypeVar("Answer")

SOURCE_PATH = "_hoodie_cloud_source_path"

_FILE = "_lakewright_file"
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme|ClassNotFoundException|Class \S+ not found")
_REFUSED = f"its bucket is not one of those in {BUCKETS}"
_STRANGER = "lakewright: a row comes from a file that is no object of the batch"
_UNREADABLE = re.compile(
    r"PATH_NOT_FOUND|FAILED_READ_FILE|MALFORMED|CANNOT_MERGE|CANNOT_INFER|UNABLE_TO_INFER"
)


@dataclass(frozen=True)
class ObjectRows:
    """The rows of some objects, and those that could not be read; `done` takes copies away."""

    rows: DataFrame | None
    bad: tuple[Prepared, ...] = ()
    done: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class ObjectReader:
    """Reads objects of one store; `address` says where a bucket is, `places` how to get there.

    `buckets` are those that may be read; None for all that the job itself may read.
    """

    spark: SparkSession
    settings: ObjectSettings
    address: str
    places: Mapping[str, str]
    clock: Clock
    bad: OnBad = OnBad.ERROR
    buckets: frozenset[str] | None = None

    def missing(self, objects: Sequence[CloudObject]) -> list[CloudObject]:
        """Those that are not in their store any more; a request for each, from workers."""
        asked = [item for item in objects if self._may_read(item)]
        ask = partial(missing_of, self._preparation(asked))
        return _asked(self.spark, ask, asked, lambda _: 1)

    def read(self, objects: Sequence[CloudObject]) -> ObjectRows:
        """The rows of objects; nothing but what must be copied or checked is read yet.

        With `bad` being an error, an object that cannot be read is one here, or when rows are
        asked for.
        """
        refused = tuple(Prepared(i, problem=_REFUSED) for i in objects if not self._may_read(i))
        if refused and self.bad is OnBad.ERROR:
            raise InvalidError(
                "an event names a bucket that may not be read: add it to those that may, or have "
                "such objects passed over",
                object=self._name(refused[0].item),
                options=[BUCKETS, "lakewright.source.bad.objects"],
            )
        allowed = [item for item in objects if self._may_read(item)]
        what = self._preparation(allowed)
        copied = [item for item in allowed if not self._opens(what, item)]
        folder = self._folder() if copied else None
        try:
            found = self._read(what, allowed, copied, folder)
        except LakewrightError:
            if folder is not None:
                folder.remove()
            raise
        return replace(found, bad=(*refused, *found.bad))

    def _may_read(self, item: CloudObject) -> bool:
        return self.buckets is None or item.bucket in self.buckets

    def _read(
        self,
        what: Preparation,
        objects: Sequence[CloudObject],
        copied: Sequence[CloudObject],
        folder: CopyFolder | None,
    ) -> ObjectRows:
        prepared = self._prepared(what, copied, folder)
        known = set(copied)
        native = [item for item in objects if item not in known]
        if self.bad is OnBad.ERROR:
            prepared += [Prepared(item) for item in native]
        else:
            prepared += self._prepared(what, native, None)
        bad = tuple(each for each in prepared if each.problem is not None)
        if bad and self.bad is OnBad.ERROR:
            raise unreadable(bad[0].problem or "", self._name(bad[0].item))
        good = sorted((p for p in prepared if p.problem is None), key=lambda p: p.item.place)
        rows = self._loaded(what, good, folder) if good else None
        return ObjectRows(rows, bad) if folder is None else ObjectRows(rows, bad, folder.remove)

    def _preparation(self, objects: Iterable[CloudObject]) -> Preparation:
        buckets = {item.bucket for item in objects}
        return Preparation(
            format=self.settings.format,
            options=dict(self.settings.options),
            addresses={bucket: self._bucket(bucket) for bucket in buckets},
            places=self.places,
            checked=self.bad is not OnBad.ERROR,
        )

    def _name(self, item: CloudObject) -> str:
        return f"{self._bucket(item.bucket)}/{item.path}"

    def _bucket(self, name: str) -> str:
        return self.address.replace("{bucket}", name)

    def _opens(self, what: Preparation, item: CloudObject) -> bool:
        """Whether Spark reads an object where it is, without a JAR that is not there.

        It passes over names that begin with a dot or an underscore, whoever asks for them.
        """
        name = item.path.rpartition("/")[2]
        hidden = name.startswith((".", "_")) or name.endswith("._COPYING_")
        return what.format != "avro" and not hidden and self._can_open(store_of(what, item).root)

    def _can_open(self, root: str) -> bool:
        scheme = root.partition(":")[0]
        if scheme == "file":
            return True
        known = f"spark.lakewright.opens.{scheme}"
        if not self.spark.conf.get(known, ""):
            self.spark.conf.set(known, str(_has_file_system(self.spark, root)).lower())
        return self.spark.conf.get(known, "") == "true"

    def _folder(self) -> CopyFolder:
        """A fresh folder for copies, which all workers see."""
        named = self.settings.work_folder
        if named is None:
            if not (self.spark.conf.get("spark.master", "") or "").startswith("local"):
                raise InvalidError(
                    "Spark cannot open these objects by itself: name a folder for copies that all "
                    "of its workers see",
                    option="lakewright.source.work.folder",
                )
            return private_folder(self.clock.now_ms())
        name = f"{PREFIX}{self.clock.new_id()}"
        delete = partial(storage_for(named, self.places).delete_folder, name)
        return CopyFolder(f"{named.rstrip('/')}/{name}", delete)

    def _prepared(
        self, what: Preparation, objects: Sequence[CloudObject], folder: CopyFolder | None
    ) -> list[Prepared]:
        if folder is not None:
            what = replace(what, target=folder.address, private=folder.private)
        do = partial(prepare, what)
        numbered = list(enumerate(objects))
        return _asked(self.spark, do, numbered, lambda each: each[1].size)

    def _loaded(
        self, what: Preparation, good: Sequence[Prepared], folder: CopyFolder | None
    ) -> DataFrame:
        copies = storage_for(folder.address, self.places) if folder is not None else None
        urls = [
            copies.url(each.copy)
            if copies is not None and each.copy is not None
            else store_of(what, each.item).url(each.item.path)
            for each in good
        ]
        reader = self.spark.read.format(self._kind).options(**self._options())
        if self.settings.schema is not None:
            reader = reader.schema(self.settings.schema)
        try:
            frame = reader.load([literal(url) for url in urls])
            named = self.settings.path_fields or self.settings.source_path
            return self._with_names(frame, urls, good) if named else frame
        except SPARK_ERRORS as error:
            text = str(error)
            if _UNREADABLE.search(text):
                raise unreadable(text[:500]) from error
            raise UnavailableError("Spark cannot read objects", reason=text[:500]) from error

    @property
    def _kind(self) -> str:
        return "parquet" if self.settings.format == "avro" else self.settings.format

    def _options(self) -> dict[str, str]:
        """The reader's options: what is damaged is an error, unless users say otherwise."""
        told = dict(self.settings.options)
        given = {key.lower(): value for key, value in told.items()}
        usual = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
        if self.settings.format == "avro":
            # Workers have made Parquet of it.
            usual = dict(NATIVE_OPTIONS)
        if self._kind in ("json", "csv"):
            usual["mode"] = "FAILFAST"
        elif self.settings.merge_schema:
            usual["mergeSchema"] = "true"
        if self._kind == "csv" and given.get("header", "").lower() == "true":
            # Else Spark takes columns by their numbers, whatever their names are in other objects.
            usual["enforceSchema"] = "false"
        added = {key: value for key, value in usual.items() if key.lower() not in given}
        return {**told, **added}

    def _with_names(
        self, frame: DataFrame, urls: Sequence[str], good: Sequence[Prepared]
    ) -> DataFrame:
        """Rows with what the name of their object tells."""
        names = {_FILE: [_one_slash(url) for url in urls]}
        if self.settings.source_path:
            names[SOURCE_PATH] = [self._name(each.item) for each in good]
        for column in self.settings.path_fields:
            names[column] = [path_value(each.item.path, column) or "" for each in good]
        known = self.spark.createDataFrame(pa.table(names).cast(_texts(names)))
        # Spark writes a file's URI with escapes, and that of a local one with one slash or three.
        decoded = "url_decode(replace(_metadata.file_path, '+', '%2B'))"
        file = f"regexp_replace({decoded}, '^file:/+', 'file:/')"
        added = [name for name in names if name != _FILE]
        rows = frame.withColumn(_FILE, F.expr(file)).drop(*added)
        kept = [name for name in frame.columns if name not in added]
        joined = rows.join(
            F.broadcast(known.withColumn("_lakewright_known", F.lit(1))), _FILE, "left"
        )
        checks = {
            name: F.expr(
                f"CASE WHEN _lakewright_known IS NULL THEN CAST(raise_error('{_STRANGER}') AS "
                f"STRING) ELSE nullif(`{name}`, '') END"
            )
            for name in added
        }
        return joined.withColumns(checks).select(*(f"`{name}`" for name in (*kept, *added)))


def path_value(path: str, field_name: str) -> str | None:
    """The value that a path tells for a column, as in `country=NO/1.json`."""
    found = re.search(rf"(?:^|/){re.escape(field_name)}=([^/]*)/", path)
    return found[1] if found else None


def unreadable(reason: str, name: str | None = None) -> CorruptError:
    """An object cannot be read; the option says how to go on without it."""
    told = {} if name is None else {"object": name}
    return CorruptError(
        "an object that an event tells of cannot be read; it may be passed over",
        **told,
        reason=reason,
        option="lakewright.source.bad.objects",
    )


def _has_file_system(spark: SparkSession, root: str) -> bool:
    probe = spark.read.schema("value STRING")
    try:
        # On Spark Connect nothing is looked at before somebody asks for the schema.
        return probe.text(literal(join_path(root, "lakewright-probe"))).schema is not None
    except SPARK_ERRORS as error:
        return _NO_FILE_SYSTEM.search(str(error)) is None


def _asked(
    spark: SparkSession,
    do: Callable[[Sequence[Item], Token], list[Answer] | LakewrightError],
    items: Sequence[Item],
    size: Callable[[Item], int],
) -> list[Answer]:
    """What workers answer to all items; an error that one of them met is raised here."""
    try:
        answers = on_workers(spark, do, items, size)
    except SPARK_ERRORS as error:
        raise failure_of(error) from error
    found: list[Answer] = []
    for answer in answers:
        if isinstance(answer, LakewrightError):
            raise answer
        found += answer
    return found


def _one_slash(url: str) -> str:
    return re.sub(r"^file:/+", "file:/", url)


def _texts(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])
