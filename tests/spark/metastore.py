"""A real Hive metastore for tests, from the jars that come with PySpark."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from lakewright.testing.processes import free_port, stop, wait_for_port

_SETTINGS = """<?xml version="1.0"?>
<configuration>
{properties}
</configuration>
"""
_SECONDS = 600


@contextmanager
def metastore(folder: Path) -> Iterator[str]:
    """The address of a metastore that keeps its tables in a folder."""
    port = free_port()
    place = folder / "metastore"
    place.mkdir()
    properties = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place}/db;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.async.log.enabled": "false",
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
    }
    lines = [
        f"<property><name>{key}</name><value>{value}</value></property>"
        for key, value in properties.items()
    ]
    (place / "hive-site.xml").write_text(_SETTINGS.format(properties="\n".join(lines)))
    jars = Path(pyspark.__file__).parent / "jars"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    command = [
        java, "-Xmx256m", "-cp", f"{place}:{jars}/*",
        "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port),
    ]  # fmt: skip
    with (folder / "metastore.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log)
    try:
        wait_for_port(port, seconds=_SECONDS)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        stop(process)
