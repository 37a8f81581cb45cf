"""Real Apache Hudi as a second process: a request in, an answer out, each a line of JSON.

Runs in an environment of its own (PySpark 3.5 and Hudi's bundle) and imports nothing of this
project. Requests: `{"sql": text, "settings": {}}`, `{"columns_of": text}` for the columns of SQL,
`{"read": path, "options": {}, "columns": []}`, `{"job": file, "path": path}`, which calls `job` of
a Python file, `{"write": path, "rows": [], "schema": ddl, "options": {}, "mode": "append"}` and
`{"all": []}`, which holds other requests. The answer has `rows`, as JSON would have them and
without nulls, of several requests a list of them, or `error`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

# For a few rows it costs more to compile than it saves; a heap of full size needs no growing, which
# takes a full collection each time.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms2g -Xmn1200m -XX:MetaspaceSize=512m"
QUICK_SPARK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}

_THREADS = ThreadPoolExecutor(3)
_OWN = threading.local()


def session(jar: str, folder: str, defaults: str) -> SparkSession:
    settings = {
        "spark.jars": jar,
        "spark.driver.extraClassPath": defaults,
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # A process that does not answer for that long hangs: a busy machine may be slow.
        "spark.network.timeout": "900s",
        "spark.python.authenticate.socketTimeout": "900s",
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC {QUICK_JAVA}",
        "spark.driver.memory": "2g",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.sql.shuffle.partitions": "2",
        **QUICK_SPARK,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows(frame: DataFrame) -> list[Any]:
    if not frame.columns:
        return [{} for _ in frame.collect()]
    # `toJSON` would compile classes for the rows of each query.
    return [json.loads(text) for (text,) in frame.select(F.to_json(F.struct("*"))).collect()]


@contextmanager
def session_settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Settings of a session until the block ends."""
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


def own_session(spark: SparkSession) -> SparkSession:
    """The session of this thread: Hudi changes settings of a session while it plans."""
    if not hasattr(_OWN, "session"):
        _OWN.session = spark.newSession()
    own: SparkSession = _OWN.session
    return own


def answer(spark: SparkSession, request: dict[str, Any]) -> list[Any]:
    if "all" in request:
        return list(_THREADS.map(lambda inner: answer(own_session(spark), inner), request["all"]))
    options = request.get("options", {})
    if "sql" in request:
        with session_settings(spark, request.get("settings", {})):
            return rows(spark.sql(request["sql"]))
    if "job" in request:
        return [runpy.run_path(request["job"])["job"](spark, request["path"])]
    if "columns_of" in request:
        return [spark.sql(request["columns_of"]).columns]
    if "read" in request:
        frame = spark.read.format("hudi").options(**options).load(request["read"])
        return rows(frame.selectExpr(*request.get("columns") or ["*"]))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        # Rows that Spark reads by itself need no Python process.
        file.writelines(json.dumps(row) + "\n" for row in request["rows"])
        file.flush()
        data = spark.read.schema(request["schema"]).json(f"file://{file.name}")
        data.write.format("hudi").options(**options).mode(request["mode"]).save(request["write"])
    return []


def main() -> None:
    # Spark and Hudi print on standard output too: keep the real one for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = session(*sys.argv[1:4])
    for line in sys.stdin:
        try:
            reply: dict[str, Any] = {"rows": answer(spark, json.loads(line))}
        except (PySparkException, Py4JError) as error:
            reply = {"error": str(error)}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
