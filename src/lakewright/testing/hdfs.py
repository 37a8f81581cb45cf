"""A real HDFS on the loopback address, for tests: a NameNode and two DataNodes.

with hdfs_server(jar, folder) as server:        # `./dev` sets LAKEWRIGHT_HDFS_JAR to the JAR
    storage = storage_for(server.uri("lake/trips"))
    spark.read.parquet(server.uri("landing"))   # Spark needs no setting to reach it

All its files are in `folder`. It takes about 15 seconds to start.
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
# Spark ships the rest of Hadoop and the logging libraries that it needs.
_SPARK_JARS = ("hadoop-client-*", "slf4j-api-*", "jcl-over-slf4j-*", "log4j-*")
# A fast start matters more than peak performance.
_JAVA_OPTIONS = (
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.apache.logging.log4j.level=WARN",
)
_START_SECONDS = 600.0  # only a server that hangs takes that long
_PORT_TRIES = 3


@dataclass(frozen=True, slots=True)
class HdfsServer:
    """A running HDFS; every user of this machine may access it."""

    address: str
    namenode_id: int
    datanode_ids: tuple[int, ...]

    def uri(self, path: str) -> str:
        """Return the URI of a file or folder, for Lakewright, Spark and real Hudi."""
        return f"{self.address}/{path}"

    def nameservice(self, name: str) -> dict[str, str]:
        """Return the Hadoop settings that make `hdfs://<name>/...` refer to this HDFS."""
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
    """Run an empty HDFS in a new subfolder of `folder` until the block ends.

    `jar` is the JAR of Hadoop's client minicluster, in the Hadoop version of Spark; `settings` are
    Hadoop settings for all servers, and override the defaults of this module. JAVA_HOME selects
    the Java installation.
    """
    for remaining_tries in reversed(range(_PORT_TRIES)):
        data_folder = Path(folder).resolve() / f"hdfs-{_PORT_TRIES - remaining_tries}"
        data_folder.mkdir(parents=True)
        with Servers(data_folder) as servers:
            try:
                server = _start(servers, jar, data_folder, settings or {})
            except UnavailableError:
                # Another process may have bound the free port before the NameNode did.
                if remaining_tries == 0:
                    raise
                continue
            yield server
            return


def _start(
    servers: Servers, jar: str, data_folder: Path, settings: Mapping[str, str]
) -> HdfsServer:
    address = f"hdfs://127.0.0.1:{free_port()}"
    java = _java(jar, data_folder)
    shared = _arguments({**_default_settings(address, data_folder), **settings})
    # DataNodes wait for their NameNode, so that all processes can start in parallel.
    datanodes = [
        servers.start(
            f"datanode-{number}",
            [*java, _DATANODE, *shared, *_arguments(_datanode_settings(data_folder, number))],
        )
        for number in range(_DATANODES)
    ]
    _format([*java, _NAMENODE, *shared, "-format", "-nonInteractive"])
    namenode = servers.start("namenode", [*java, _NAMENODE, *shared])
    # No retries in the client: wait_until retries, and notices if a server has ended.
    storage = HdfsStorage.at(f"{address}/", {"dfs.client.failover.max.attempts": "0"})
    servers.wait_until(partial(_accepts_files, storage), seconds=_START_SECONDS)
    return HdfsServer(address, namenode, tuple(datanodes))


def _default_settings(address: str, data_folder: Path) -> dict[str, str]:
    return {
        "fs.defaultFS": address,
        "hadoop.tmp.dir": f"{data_folder}/tmp",
        "dfs.namenode.name.dir": f"file://{data_folder}/name",
        "dfs.namenode.http-address": "127.0.0.1:0",
        "dfs.datanode.address": "127.0.0.1:0",
        "dfs.datanode.http.address": "127.0.0.1:0",
        "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.replication": str(_DATANODES),
        # Otherwise every second small file takes half a second: its writer closes it before the
        # DataNodes have reported its block to the NameNode, and retries only after a pause.
        "dfs.namenode.file.close.num-committed-allowed": "1",
        # Test data need not survive a power cut.
        "dfs.namenode.edits.noeditlogchannelflush": "true",
        # The NameNode accepts files as soon as all DataNodes have registered.
        "dfs.namenode.safemode.min.datanodes": str(_DATANODES),
        "dfs.namenode.safemode.extension": "0",
    }


def _datanode_settings(data_folder: Path, number: int) -> dict[str, str]:
    return {"dfs.datanode.data.dir": f"file://{data_folder}/data-{number}"}


def _arguments(settings: Mapping[str, str]) -> list[str]:
    return [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]


def _java(jar: str, data_folder: Path) -> list[str]:
    folder = spark_home() / "jars"
    jars = [str(file) for name in _SPARK_JARS for file in sorted(folder.glob(f"{name}.jar"))]
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"
    class_path = os.pathsep.join([jar, *jars])
    return [program, *_JAVA_OPTIONS, f"-Djava.io.tmpdir={data_folder}", "-cp", class_path]


def _format(command: list[str]) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise InvalidError("the NameNode was not formatted", said=completed.stderr, command=command)


def _accepts_files(storage: HdfsStorage) -> bool:
    try:
        storage.replace("ready", b"1")
        storage.delete("ready")
    except UnavailableError:
        return False
    return True
