"""Credentials are in no plan, option, catalog, footer, page or log.

The session has some in its configuration, reads and streams get others as options, and Spark hides
what it hides by default.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import lakewright as lw
from lakewright.testing.s3 import moto_server
from support.spark import next_session

pytestmark = pytest.mark.thorough

ADDRESS = "s3a://lake/trips"
ROWS = [("a", 1), ("b", 1)]
DDL = "id STRING, ts BIGINT"


def credentials(word: str) -> dict[str, str]:
    return {
        "fs.s3a.access.key": f"{word}AccessKey",
        "fs.s3a.secret.key": f"{word}SecretKey",
        "fs.s3a.session.token": f"{word}SessionToken",
    }


SECRETS = [value for word in ("Conf", "Option") for value in credentials(word).values()]


def shown_in(text: str) -> list[str]:
    """The credentials that a text shows, plainly or packed."""
    texts = [text.encode(), *_unpacked(text)]
    return [secret for secret in SECRETS if any(secret.encode() in content for content in texts)]


def _unpacked(text: str) -> Iterator[bytes]:
    for match in re.finditer(r"[A-Za-z0-9+/]{24,}={0,2}", text):
        with contextlib.suppress(ValueError):
            data = base64.b64decode(match[0])
            yield data
            with contextlib.suppress(zlib.error):
                yield zlib.decompress(data)


def explained(frame: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        frame.explain("extended")
        frame.explain("formatted")
    return text.getvalue()


def fetch_page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=600) as answer:
        return str(answer.read().decode())


def of_reads(spark: SparkSession, options: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The texts about reads, by the session's credentials or by options, and their rows."""
    table = lw.open(ADDRESS, spark=spark, options=options or None)
    view = f"v{len(options)}"
    listed = "".join(f", `{key}` '{value}'" for key, value in options.items())
    spark.sql(f"CREATE TEMP VIEW {view} USING hudi OPTIONS (path '{ADDRESS}'{listed})")
    frames = {
        "read": table.read(),
        "changes": table.changes(since=None).dataframe,
        "change data": table.changes(since=None, format="cdc").dataframe,
        "format": spark.read.format("hudi").options(**options).load(ADDRESS),
        "view": spark.sql(f"SELECT * FROM {view}"),
    }
    yield "repr of a table", repr(table)
    for name, frame in frames.items():
        assert frame.count() >= len(ROWS), name
        yield f"{name}: plan", explained(frame)
        yield f"{name}: schema", frame.schema.json()
    stream = spark.readStream.format("hudi").options(**options).load(ADDRESS)
    yield "stream: plan", explained(stream)


def of_streams(spark: SparkSession, folder: Path) -> Iterator[tuple[str, str]]:
    yield "stream: progress", streamed(spark, folder)
    for file in filter(Path.is_file, (folder / "checkpoint").rglob("*")):
        yield f"checkpoint {file.name}", file.read_text(errors="replace")
    assert spark.read.parquet(str(folder / "streamed")).count() == len(ROWS)


def streamed(spark: SparkSession, folder: Path) -> str:
    """What a query reports of its progress.

    A Python worker has ten seconds to start, which on a busy machine is not always enough.
    """
    stream = spark.readStream.format("hudi").load(ADDRESS)
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    while True:
        query = writer.start(str(folder / "streamed"))
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return str(query.lastProgress)


def of_catalog(spark: SparkSession, folder: Path) -> Iterator[tuple[str, str]]:
    """A catalog keeps no credentials, and needs none: those of the session count."""
    for key, value in credentials("Option").items():
        for words, fault in {
            f"OPTIONS (`{key}` '{value}')": "to the session",
            f"TBLPROPERTIES ('{key}' = '{value}')": "to the session",
            f"TBLPROPERTIES (`{key}` '{value}')": "does not parse",
        }.items():
            with pytest.raises(lw.InvalidError, match=fault) as refused:
                spark.sql(f"CREATE TABLE refused USING hudi {words} LOCATION '{ADDRESS}'")
            yield "refusal", str(refused.value)
    assert not spark.catalog.tableExists("refused")
    spark.sql(f"CREATE TABLE trips USING hudi LOCATION '{ADDRESS}'")
    assert spark.sql("SELECT * FROM trips").count() == len(ROWS)
    rows = spark.table("trips")
    yield "catalog: schema", rows.schema.json()
    described = spark.sql("DESCRIBE TABLE EXTENDED trips").collect()
    yield "catalog: description", str(described)
    yield "catalog: plan", explained(rows)
    rows.write.parquet(str(folder / "copied"))
    for file in (folder / "copied").glob("*.parquet"):
        footer = str(pq.read_metadata(file).metadata)
        # What a column carries does go into footers.
        assert ADDRESS in footer
        yield "footer", footer


def of_page(spark: SparkSession) -> Iterator[tuple[str, str]]:
    url, application = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    listed = fetch_page(f"{url}/api/v1/applications/{application}/sql?length=1000&details=true")
    yield "page: queries", listed
    for query in json.loads(listed):
        yield "page: query", fetch_page(f"{url}/SQL/execution/?id={query['id']}")
    yield "page: environment", fetch_page(f"{url}/api/v1/applications/{application}/environment")
    yield "page: streams", fetch_page(f"{url}/StreamingQuery/")


@contextlib.contextmanager
def logged(spark: SparkSession, file: Path) -> Iterator[None]:
    """Have Spark's log, and what its Python workers print, in a file too."""
    jvm = spark._jvm
    assert jvm is not None
    system, log4j = jvm.java.lang.System, jvm.org.apache.logging.log4j
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    stream = jvm.java.io.PrintStream(str(file))
    appender = log4j.core.appender.OutputStreamAppender.createAppender(
        layout, None, stream, "secrets", False, False
    )
    appender.start()
    context = log4j.LogManager.getContext(False)
    root = context.getConfiguration().getRootLogger()
    root.addAppender(appender, None, None)
    errors = system.err
    system.setErr(stream)
    spark.sparkContext.setLogLevel("INFO")
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel("ERROR")
        system.setErr(errors)
        root.removeAppender("secrets")
        stream.close()


def texts_of(spark: SparkSession, server: dict[str, str], folder: Path) -> list[tuple[str, str]]:
    """What Spark shows while tables are written and read, each text with its place."""
    lw.install(spark)
    table = lw.create(
        ADDRESS, spark=spark, name="trips", table_type="MERGE_ON_READ", record_key="id",
        ordering="ts",
    )  # fmt: skip
    table.bulk_insert(spark.createDataFrame(ROWS, DDL))
    table.upsert(spark.createDataFrame(ROWS, DDL))
    return [
        *of_reads(spark, {}),
        *of_reads(spark, {**server, **credentials("Option")}),
        *of_streams(spark, folder),
        *of_catalog(spark, folder),
        *of_page(spark),
    ]


def test_credentials_show_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events").mkdir()
    with moto_server() as moto:
        moto.create_bucket("lake")
        server = {
            "fs.s3a.endpoint": moto.endpoint,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
        }
        settings = {
            **{f"spark.hadoop.{k}": v for k, v in {**server, **credentials("Conf")}.items()},
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": str(tmp_path / "events"),
            "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
        }
        with next_session(settings) as spark, logged(spark, tmp_path / "log"):
            texts = texts_of(spark, server, tmp_path)
    log = (tmp_path / "log").read_text()
    # Spark logs what it does there.
    assert "Finished task" in log
    printed = capfd.readouterr()
    texts += [("log", log), ("printed", printed.out + printed.err)]
    events = [file for file in (tmp_path / "events").rglob("*") if file.is_file()]
    assert any("SparkListenerSQLExecutionStart" in file.read_text() for file in events)
    texts += [(f"event log {file.name}", file.read_text()) for file in events]
    assert len(texts) > 50
    assert {place: secrets for place, text in texts if (secrets := shown_in(text))} == {}
