"""Large files on an object store: uploaded in parts while they are written, or not at all."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lakewright.errors import ConflictError, UnavailableError
from lakewright.storage import multipart, object_store
from lakewright.storage.multipart import MultipartOutput, PartQueue
from lakewright.storage.object_store import ObjectStorage
from lakewright.testing.s3 import S3Server, moto_server

PART = 5 << 20  # the least that a store accepts
PIECE = bytes(range(256)) * 8192


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with moto_server() as server:
        server.create_bucket("lake")
        yield server


@pytest.fixture
def storage(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    monkeypatch.setattr(object_store, "_IN_MEMORY", PART)
    monkeypatch.setattr(object_store, "_PART_BYTES", PART)
    return ObjectStorage.at(f"s3://lake/{secrets.token_hex(4)}", server.options())


def write_file(storage: ObjectStorage, pieces: int, error: Exception | None = None) -> None:
    with storage.open_output("f") as output:
        for _ in range(pieces):
            output.write(PIECE)
        if error is not None:
            raise error


def unfinished(server: S3Server) -> list[Any]:
    answer = server.client().list_multipart_uploads(Bucket="lake")
    uploads: list[Any] = answer.get("Uploads", [])
    return uploads


@pytest.mark.parametrize("free", [1, 0], ids=["uploaded meanwhile", "kept on disk"])
@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 9])
def test_a_file_of_any_size_is_there_when_the_block_ends(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, pieces: int, free: int
) -> None:
    monkeypatch.setattr(multipart, "_UPLOADS", threading.Semaphore(free))
    with storage.open_output("f") as output:
        for number in range(pieces):
            output.write(PIECE)
            assert output.tell() == (number + 1) * len(PIECE)
        assert not storage.exists("f")
    assert storage.read("f") == PIECE * pieces


def test_parts_go_up_before_the_file_is_complete(server: S3Server, storage: ObjectStorage) -> None:
    with storage.open_output("f") as output:
        for _ in range(12):
            output.write(PIECE)
        # A part is taken only when the client has room for it: the first ones are on their way.
        assert len(unfinished(server)) == 1
    assert unfinished(server) == []


class EncoderError(Exception):
    pass


@pytest.mark.parametrize("pieces", [1, 3, 12])
def test_a_file_whose_writer_fails_never_appears(
    server: S3Server, storage: ObjectStorage, pieces: int
) -> None:
    with pytest.raises(EncoderError):
        write_file(storage, pieces, EncoderError())
    assert not storage.exists("f")
    assert unfinished(server) == []


def test_an_existing_file_is_not_replaced(storage: ObjectStorage) -> None:
    storage.create("f", b"theirs")
    with pytest.raises(ConflictError):
        write_file(storage, 12)
    assert storage.read("f") == b"theirs"


def test_the_writer_gets_the_error_of_an_upload_that_fails() -> None:
    def upload(parts: PartQueue) -> None:
        next(iter(parts))
        raise UnavailableError("the store did not answer")

    output = MultipartOutput(upload, part_bytes=10, small_bytes=10)
    with pytest.raises(UnavailableError, match="the store did not answer"):
        list(map(output.write, [b"x" * 10] * 100))
    output.discard()


def test_a_writer_waits_while_parts_wait() -> None:
    queue = PartQueue(max_waiting=2)
    waiting, put = threading.Event(), []

    def write() -> None:
        for part in (b"1", b"2", b"3"):
            if part == b"3":
                waiting.set()
            queue.put(part)
            put.append(part)
        queue.end()

    writer = threading.Thread(target=write)
    writer.start()
    waiting.wait()
    assert put == [b"1", b"2"]
    assert list(queue) == [b"1", b"2", b"3"]
    writer.join()
    assert put == [b"1", b"2", b"3"]


def test_uploads_of_a_process_are_few_and_give_their_places_back() -> None:
    places = multipart._UPLOADS._value
    received: list[bytes] = []

    def upload(parts: PartQueue) -> None:
        received.append(b"".join(parts))

    outputs = [MultipartOutput(upload, part_bytes=2, small_bytes=2) for _ in range(places + 3)]
    for output in outputs:
        output.write(b"abcde")
    kept = [output.kept() is not None for output in outputs]
    assert kept == [False] * places + [True] * 3
    for output in outputs[:places]:
        output.complete()
    for output in outputs:
        output.discard()
    assert received == [b"abcde"] * places
    assert multipart._UPLOADS._value == places
