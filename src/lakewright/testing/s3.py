"""S3 servers on the loopback address, for tests: moto (a fake) and versitygw (a real gateway)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import boto3
from botocore.config import Config

from lakewright.errors import UnavailableError
from lakewright.testing.processes import free_port, stop

_ACCESS_KEY = "lakewright"
_SECRET_KEY = "not-a-secret"
_REGION = "us-east-1"
_START_SECONDS = 600.0  # only a server that hangs takes that long
_PORT_TRIES = 3


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server; every user of this machine may access it."""

    endpoint: str
    process_id: int

    def options(self) -> dict[str, str]:
        """Return the storage options with which `storage_for` reaches this server."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": _ACCESS_KEY,
            "secret_access_key": _SECRET_KEY,
            "region": _REGION,
        }

    def hadoop_options(self) -> dict[str, str]:
        """Return the same as Hadoop settings; Spark needs them with the prefix `spark.hadoop.`."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.endpoint.region": _REGION,
            "fs.s3a.access.key": _ACCESS_KEY,
            "fs.s3a.secret.key": _SECRET_KEY,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
        }

    def create_bucket(self, name: str) -> None:
        """Create an empty bucket."""
        self.client().create_bucket(Bucket=name)

    def client(self) -> boto3.client:
        """Return a plain S3 client, to inspect the server without this library."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=_ACCESS_KEY,
            aws_secret_access_key=_SECRET_KEY,
            region_name=_REGION,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )


# Moto checks whether an object exists and then puts it. The long switch interval keeps another
# thread from running between the two steps.
_MOTO = "import sys; sys.setswitchinterval(1); from moto.server import main; main(sys.argv[1:])"
_SLOW_LISTINGS = """
import time
from moto.s3.responses import S3Response
listed = S3Response.list_objects_v2
def slowly(self):
    time.sleep({pause})
    return listed(self)
S3Response.list_objects_v2 = slowly
"""


_REFUSALS = """
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
answer, refusals = DomainDispatcherApplication.__call__, iter(range({count}))
def refusing(self, environ, start_response):
    is_put = environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith(".parquet")
    if not is_put or next(refusals, None) is None:
        return answer(self, environ, start_response)
    start_response("503 Slow Down", [("Content-Length", "0")])
    return [b""]
DomainDispatcherApplication.__call__ = refusing
"""


@contextmanager
def moto_server(
    page_size: int = 1000, listing_pause_s: float = 0, refused_puts: int = 0
) -> Iterator[S3Server]:
    """Run moto's server, which holds all objects in memory, until the block ends.

    A listing returns `page_size` objects per request, each after a pause. The first puts of parquet
    files are refused as by a busy store.
    """
    slow = _SLOW_LISTINGS.format(pause=listing_pause_s) if listing_pause_s else ""
    refusals = _REFUSALS.format(count=refused_puts) if refused_puts else ""
    program = f"{slow}\n{refusals}\n{_MOTO}"
    with _running(
        lambda port: [sys.executable, "-P", "-c", program, "-H", "127.0.0.1", "-p", str(port)],
        {"MOTO_S3_DEFAULT_MAX_KEYS": str(page_size)},
    ) as server:
        yield server


@contextmanager
def versitygw_server(binary: str, folder: str) -> Iterator[S3Server]:
    """Run the versitygw executable `binary` on the files in `folder` until the block ends."""
    keys = ["--access", _ACCESS_KEY, "--secret", _SECRET_KEY, "--region", _REGION]
    with _running(
        lambda port: [binary, "--port", f"127.0.0.1:{port}", *keys, "posix", folder], {}
    ) as server:
        yield server


@contextmanager
def _running(
    command: Callable[[int], Sequence[str]], environment: Mapping[str, str]
) -> Iterator[S3Server]:
    with tempfile.TemporaryFile() as output:
        process, port = _start(command, environment, output.fileno())
        try:
            yield S3Server(f"http://127.0.0.1:{port}", process.pid)
        finally:
            stop(process)


def _start(
    command: Callable[[int], Sequence[str]], environment: Mapping[str, str], output: int
) -> tuple[subprocess.Popen[bytes], int]:
    # Another process may bind the free port before the server does: then try another port.
    for _ in range(_PORT_TRIES):
        port = free_port()
        process = subprocess.Popen(
            command(port), stdout=output, stderr=output, env={**os.environ, **environment}
        )
        if _accepts_connections(process, port):
            return process, port
        stop(process)
    tail = os.pread(output, 2000, max(0, os.fstat(output).st_size - 2000))
    raise UnavailableError(
        "the server did not start", command=list(command(0)), said=tail.decode(errors="replace")
    )


def _accepts_connections(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return process.poll() is None
    return False
