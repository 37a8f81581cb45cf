"""The result of a conditional put when the answer of the store is lost, late or strange."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from obstore.store import S3Store

from lakewright.errors import ConflictError, InvalidError, LakewrightError, UnavailableError
from lakewright.storage.object_store import ObjectStorage, client_for

TOKEN = "x-amz-meta-lakewright"


@dataclass
class Bucket:
    """One object, and what goes wrong with the next requests: (method, fault), in order."""

    data: bytes | None = None
    token: str = ""
    faults: list[tuple[str, str]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.data or b"").hexdigest()}"'

    def fault_of(self, method: str) -> str:
        self.requests.append(method)
        if self.faults and self.faults[0][0] == method:
            return self.faults.pop(0)[1]
        return ""

    def put(self, data: bytes, token: str, none_match: bool, match: str | None) -> int:
        if (none_match and self.data is not None) or (match and match != self.tag):
            return 412
        self.data, self.token = data, token
        return 200


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        fault = self.bucket.fault_of("PUT")
        if fault.isdigit():
            self.answer(int(fault))
            return
        if fault == "another writer was first":
            self.bucket.data, self.bucket.token = b"theirs", "another"
        none_match = self.headers.get("If-None-Match") == "*"
        match = self.headers.get("If-Match")
        status = self.bucket.put(body, self.headers.get(TOKEN, ""), none_match, match)
        if fault == "deleted again":
            self.bucket.data = None
            status = 409
        if fault.startswith("done, but "):
            fault = fault.removeprefix("done, but ")
            if fault.isdigit():
                status = int(fault)
            else:
                self.close_connection = True
                return
        self.answer(status)

    def do_POST(self) -> None:
        """Delete several keys: an answer that says OK, with an error for one of them."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        code = self.bucket.fault_of("POST")
        error = f"<Error><Key>t/b</Key><Code>{code}</Code><Message>No</Message></Error>"
        body = f"<DeleteResult><Deleted><Key>t/a</Key></Deleted>{error}</DeleteResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        fault = self.bucket.fault_of("HEAD")
        self.answer(int(fault) if fault else 200 if self.bucket.data is not None else 404)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header(
            "Content-Length", str(len(self.bucket.data or b"")) * (self.command == "HEAD") or "0"
        )
        self.send_header("ETag", self.bucket.tag)
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        if self.bucket.token:
            self.send_header(TOKEN, self.bucket.token)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def storage(bucket: Bucket) -> Iterator[ObjectStorage]:
    handler = type("Scripted", (Handler,), {"bucket": bucket})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    options = {
        "endpoint": f"http://127.0.0.1:{server.server_address[1]}",
        "access_key_id": "k",
        "secret_access_key": "s",
        "region": "us-east-1",
        "max_retries": "1",
    }
    try:
        yield ObjectStorage.at("s3://bucket/t", options)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


OWN_WRITES = {
    "an ordinary answer": [],
    "the answer was lost on the way": [("PUT", "done, but no answer")],
    "the store failed after it had written": [("PUT", "done, but 500")],
    "the store failed before it had written": [("PUT", "503")],
    "every answer was lost": [("PUT", "done, but no answer"), ("PUT", "done, but no answer")],
    "the put met a delete": [("PUT", "deleted again")],
}


@pytest.mark.parametrize("data", [b"mine", b""], ids=["bytes", "nothing"])
@pytest.mark.parametrize("faults", OWN_WRITES.values(), ids=list(OWN_WRITES))
def test_a_writer_knows_its_own_file(
    storage: ObjectStorage, bucket: Bucket, faults: list[tuple[str, str]], data: bytes
) -> None:
    bucket.faults = list(faults)
    storage.create("f", data)
    assert bucket.data == data


FOREIGN_WRITES = {
    "the file was there before": [],
    "the first try got lost and another writer was first": [
        ("PUT", "503"),
        ("PUT", "another writer was first"),
    ],
}


@pytest.mark.parametrize("faults", FOREIGN_WRITES.values(), ids=list(FOREIGN_WRITES))
@pytest.mark.parametrize("data", [b"mine", b"theirs"], ids=["other bytes", "the same bytes"])
def test_the_file_of_another_is_a_conflict(
    storage: ObjectStorage, bucket: Bucket, faults: list[tuple[str, str]], data: bytes
) -> None:
    if not faults:
        bucket.data, bucket.token = b"theirs", "another"
    bucket.faults = list(faults)
    with pytest.raises(ConflictError):
        storage.create("f", data)
    assert (bucket.data, bucket.token) == (b"theirs", "another")


def test_a_create_that_works_is_one_request(storage: ObjectStorage, bucket: Bucket) -> None:
    storage.create("f", b"1")
    assert bucket.requests == ["PUT"]


def test_a_store_that_stays_silent_is_unavailable(storage: ObjectStorage, bucket: Bucket) -> None:
    bucket.faults = [("PUT", "503"), ("PUT", "503")]
    with pytest.raises(UnavailableError):
        storage.create("f", b"1")
    assert bucket.data is None


def test_a_name_that_stays_contested_is_a_conflict(storage: ObjectStorage, bucket: Bucket) -> None:
    bucket.faults = [("PUT", "deleted again")] * 9
    with pytest.raises(ConflictError):
        storage.create("f", b"1")
    assert bucket.requests.count("PUT") == 3


def test_a_refusal_is_invalid_and_not_repeated(storage: ObjectStorage, bucket: Bucket) -> None:
    bucket.faults = [("PUT", "403")]
    with pytest.raises(InvalidError):
        storage.create("f", b"1")
    assert bucket.requests == ["PUT"]


@pytest.mark.parametrize("fault", ["", "done, but no answer", "done, but 500"])
def test_a_replacer_knows_its_own_file(storage: ObjectStorage, bucket: Bucket, fault: str) -> None:
    first = storage.replace_if("f", b"1", None)
    bucket.faults = [("PUT", fault)] if fault else []
    second = storage.replace_if("f", b"2", first)
    assert (bucket.data, second) == (b"2", f"{bucket.tag}\n")
    with pytest.raises(ConflictError):
        storage.replace_if("f", b"3", first)
    assert bucket.data == b"2"


def test_a_stopped_server_is_unavailable() -> None:
    options = {"endpoint": "http://127.0.0.1:9", "max_retries": "0", "access_key_id": "k"}
    storage = ObjectStorage.at("s3://bucket/t", {**options, "secret_access_key": "s"})
    for call in (storage.read, storage.list_files, storage.delete, storage.status):
        with pytest.raises(UnavailableError):
            call("f")
    with pytest.raises(UnavailableError):
        storage.create("f", b"")
    with pytest.raises(UnavailableError):
        list(storage.list_tree("f"))


BULK_REFUSALS: dict[str, type[LakewrightError]] = {
    "AccessDenied": InvalidError,
    "NoSuchVersion": InvalidError,
    "InternalError": UnavailableError,
    "SlowDown": UnavailableError,
}


@pytest.mark.parametrize(("code", "kind"), BULK_REFUSALS.items(), ids=list(BULK_REFUSALS))
def test_one_key_of_many_that_is_not_deleted(
    storage: ObjectStorage, bucket: Bucket, code: str, kind: type[LakewrightError]
) -> None:
    bucket.faults = [("POST", code)] * 2
    with pytest.raises(kind) as caught:
        storage.delete_many(["a", "b"])
    assert type(caught.value) is kind
    assert "t/b" in str(caught.value)
    assert code in str(caught.value)


def test_a_storage_with_a_timeout_has_a_client_that_gives_up_in_time(
    storage: ObjectStorage, bucket: Bucket
) -> None:
    patient = client_for(storage.location, storage.options)
    assert isinstance(patient, S3Store)
    assert (patient.client_options or {})["timeout"] == "120s"
    impatient = storage.with_timeout(20)
    client = client_for(impatient.location, impatient.options)
    assert isinstance(client, S3Store)
    assert (client.client_options or {})["timeout"] == "10000ms"
    assert (client.retry_config or {})["retry_timeout"] == timedelta(seconds=10)
    impatient.replace("f", b"written")
    assert bucket.data == b"written"
    assert storage.status("f") is not None
