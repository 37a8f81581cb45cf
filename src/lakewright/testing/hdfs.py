"""A real HDFS on the loopback address, for tests: a NameNode and two DataNodes.

with hdfs_server(jar, folder) as server:        # `./dev` names the JAR in LAKEWRIGHT_HDFS_JAR
    storage = storage_for(server.uri("lake/trips"))
    spark.read.parquet(server.uri("landing"))   # Spark needs no setting to reach it

All it keeps is in `folder`. It takes a quarter of a minute to start.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lakewright.errors import InvalidError, UnavailableError
from lakewright.storage.hdfs import HdfsStorage
from lakewright.testing.processes import Servers, free_port, spark_home

_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_DATANODES = 2
# Spark brings the rest of Hadoop, and a log for it.
_SPARKS_JARS = ("hadoop-client-*", "slf4j-api-*", "jcl-over-slf4j-*", "log4j-*")
# Starting soon counts for more than running fast.
_JAVA_OPTIONS = (
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.apache.logging.log4j.level=WARN",
)
_START_SECONDS = 600.0  # only what hangs takes that long
_PORT_TRIES = 3


@dataclass(frozen=True, slots=True)
class HdfsServer:
    """A running HDFS; everybody on this machine may use it."""

    address: str
    namenode_id: int
    datanode_ids: tuple[int, ...]

    def uri(self, path: str) -> str:
        """Return the address of a file or folder, as Lakewright, Spark and real Hudi take it."""
        return f"{self.address}/{path}"

    def nameservice(self, name: str) -> dict[str, str]:
        """Return the settings of Hadoop by which `hdfs://<name>/...` is this HDFS."""
        provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        return {
            "dfs.nameservices": name,
            f"dfs.ha.namenodes.{name}": "one",
            f"dfs.namenode.rpc-address.{name}.one": self.address.removeprefix("hdfs://"),
            f"dfs.client.failover.proxy.provider.{name}": provider,
        }


@contextmanager
def hdfs_server(
    jar: str, folder: str | os.PathLike[str], settings: Mapping[str, str] | None = None
) -> Iterator[HdfsServer]:
    """Run an empty HDFS in a new folder of `folder` until the block ends.

    `jar` is Hadoop's minicluster for clients, of the version that Spark's own Hadoop has;
    `settings` are Hadoop's, for all servers, and go before what is usual here. JAVA_HOME names
    the Java.
    """
    for left in reversed(range(_PORT_TRIES)):
        place = Path(folder).resolve() / f"hdfs-{_PORT_TRIES - left}"
        place.mkdir(parents=True)
        with Servers(place) as servers:
            try:
                server = _started(servers, jar, place, settings or {})
            except UnavailableError:
                # Between finding a free port and using it somebody else may take it.
                if left == 0:
                    raise
                continue
            yield server
            return


def _started(servers: Servers, jar: str, place: Path, settings: Mapping[str, str]) -> HdfsServer:
    address = f"hdfs://127.0.0.1:{free_port()}"
    java = _java(jar, place)
    told = _arguments({**_usual_settings(address, place), **settings})
    # DataNodes wait for their NameNode, so all get ready beside each other.
    datanodes = [
        servers.start(
            f"datanode-{number}",
            [*java, _DATANODE, *told, *_arguments(_own_settings(place, number))],
        )
        for number in range(_DATANODES)
    ]
    _format([*java, _NAMENODE, *told, "-format", "-nonInteractive"])
    namenode = servers.start("namenode", [*java, _NAMENODE, *told])
    # Impatient: while nobody answers, it is asked again here.
    storage = HdfsStorage.at(f"{address}/", {"dfs.client.failover.max.attempts": "0"})
    servers.wait_until(partial(_takes_files, storage), seconds=_START_SECONDS)
    return HdfsServer(address, namenode, tuple(datanodes))


def _usual_settings(address: str, place: Path) -> dict[str, str]:
    return {
        "fs.defaultFS": address,
        "hadoop.tmp.dir": f"{place}/tmp",
        "dfs.namenode.name.dir": f"file://{place}/name",
        "dfs.namenode.http-address": "127.0.0.1:0",
        "dfs.datanode.address": "127.0.0.1:0",
        "dfs.datanode.http.address": "127.0.0.1:0",
        "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.replication": str(_DATANODES),
        # Else every other small file takes half a second: its writer asks for it to be closed
        # before the NameNode has heard of its block, and asks again only then.
        "dfs.namenode.file.close.num-committed-allowed": "1",
        # Nothing here has to survive a power cut.
        "dfs.namenode.edits.noeditlogchannelflush": "true",
        # Files are taken once all are there.
        "dfs.namenode.safemode.min.datanodes": str(_DATANODES),
        "dfs.namenode.safemode.extension": "0",
    }


def _own_settings(place: Path, number: int) -> dict[str, str]:
    return {"dfs.datanode.data.dir": f"file://{place}/data-{number}"}


def _arguments(settings: Mapping[str, str]) -> list[str]:
    return [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]


def _java(jar: str, place: Path) -> list[str]:
    jars = spark_home() / "jars"
    found = [str(file) for name in _SPARKS_JARS for file in sorted(jars.glob(f"{name}.jar"))]
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"
    class_path = os.pathsep.join([jar, *found])
    return [program, *_JAVA_OPTIONS, f"-Djava.io.tmpdir={place}", "-cp", class_path]


def _format(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InvalidError("the NameNode was not formatted", said=done.stderr, command=command)


def _takes_files(storage: HdfsStorage) -> bool:
    try:
        storage.replace("ready", b"1")
        storage.delete("ready")
    except UnavailableError:
        return False
    return True
