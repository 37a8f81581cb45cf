"""The clients of real queues, with the services' own libraries played by others."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from lakewright.errors import InvalidError, UnavailableError
from lakewright.ingestion.cloud.options import PubSubSettings, SqsSettings
from lakewright.ingestion.cloud.queues import Message, PubSubQueue, SqsQueue

URL = "https://queue.example/q"


class Recorder:
    """A client that records its calls and returns the answers of a test."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.calls.append((name, arguments))
            answer = self.answers.get(name, {})
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def sqs(
    monkeypatch: pytest.MonkeyPatch, client: Recorder, **options: str
) -> tuple[SqsQueue, list[dict[str, Any]]]:
    made: list[dict[str, Any]] = []
    boto3 = ModuleType("boto3")

    def make(kind: str, **arguments: Any) -> Recorder:
        made.append({"kind": kind, **arguments})
        return client

    boto3.client = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "boto3", boto3)
    queue_options = {key.replace("_", "."): value for key, value in options.items()}
    return SqsQueue(SqsSettings(url=URL, region="eu-north-1", visibility_s=7), queue_options), made


def test_sqs_returns_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    response = {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}]}
    client = Recorder(receive_message=response)
    queue, made = sqs(monkeypatch, client, **{"fs.s3a.access.key": "A"})
    assert queue.receive(99, wait=True) == [Message("m", "r", "b")]
    assert queue.receive(3, wait=False) == [Message("m", "r", "b")]
    assert client.calls == [
        (
            "receive_message",
            {
                "QueueUrl": URL,
                "MaxNumberOfMessages": most,
                "WaitTimeSeconds": seconds,
                "VisibilityTimeout": 7,
            },
        )
        for most, seconds in ((10, 20), (3, 0))
    ]
    (client_options,) = made
    assert (client_options["kind"], client_options["region_name"]) == ("sqs", "eu-north-1")
    assert client_options["aws_access_key_id"] == "A"


def test_sqs_without_messages_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, _ = sqs(monkeypatch, Recorder())
    assert queue.receive(1, wait=True) == []


def test_sqs_deletes_ten_at_a_time_and_never_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Recorder()
    queue, _ = sqs(monkeypatch, client)
    queue.delete([])
    assert client.calls == []
    queue.delete([f"r{n}" for n in range(12)])
    sent = [arguments["Entries"] for _, arguments in client.calls]
    assert [len(entries) for entries in sent] == [10, 2]
    assert [e["ReceiptHandle"] for entries in sent for e in entries] == [f"r{n}" for n in range(12)]
    assert all(len({e["Id"] for e in entries}) == len(entries) for entries in sent)


def test_a_message_that_sqs_does_not_delete_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"Failed": [{"Id": "0", "Code": "ReceiptHandleIsInvalid"}]}
    queue, _ = sqs(monkeypatch, Recorder(delete_message_batch=failed))
    with pytest.warns(RuntimeWarning, match="ReceiptHandleIsInvalid"):
        queue.delete(["r"])


def test_errors_of_sqs_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ReceiveMessage")
    queue, _ = sqs(monkeypatch, Recorder(receive_message=denied))
    with pytest.raises(InvalidError, match="refused"):
        queue.receive(1, wait=False)
    unreachable = EndpointConnectionError(endpoint_url=URL)
    queue, _ = sqs(monkeypatch, Recorder(receive_message=unreachable))
    with pytest.raises(UnavailableError, match="did not answer"):
        queue.receive(1, wait=False)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(InvalidError, match=r"pip install 'lakewright\[s3\]'"):
        SqsQueue(SqsSettings(url=URL)).receive(1, wait=False)
    monkeypatch.setitem(sys.modules, "google.cloud.pubsub_v1", None)
    settings = PubSubSettings(project="p", subscription="s")
    with pytest.raises(InvalidError, match=r"pip install 'lakewright\[gcs\]'"):
        PubSubQueue(settings).receive(1, wait=False)


class DeadlineExceeded(Exception):
    """What Google's client raises when nothing came in time."""


def pubsub(
    monkeypatch: pytest.MonkeyPatch, client: Recorder, *, acknowledge: bool = True
) -> PubSubQueue:
    exceptions = ModuleType("google.api_core.exceptions")
    exceptions.GoogleAPIError = DeadlineExceeded  # type: ignore[attr-defined]
    exceptions.DeadlineExceeded = DeadlineExceeded  # type: ignore[attr-defined]
    service = ModuleType("google.cloud.pubsub_v1")
    service.SubscriberClient = lambda: client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.api_core.exceptions", exceptions)
    monkeypatch.setitem(sys.modules, "google.cloud.pubsub_v1", service)
    settings = PubSubSettings(project="p", subscription="s", acknowledge=acknowledge)
    return PubSubQueue(settings)


def test_pubsub_returns_messages_and_acknowledges_them(monkeypatch: pytest.MonkeyPatch) -> None:
    message = SimpleNamespace(message_id="m", data="ü".encode(), attributes={"eventType": "x"})
    received = SimpleNamespace(message=message, ack_id="a")
    client = Recorder(pull=SimpleNamespace(received_messages=[received]))
    queue = pubsub(monkeypatch, client)
    assert queue.receive(5, wait=True) == [Message("m", "a", "ü", {"eventType": "x"})]
    queue.delete([])
    queue.delete([f"a{n}" for n in range(1001)])
    path = "projects/p/subscriptions/s"
    (pull, request), *acknowledged = client.calls
    assert (pull, request["subscription"], request["max_messages"]) == ("pull", path, 5)
    assert [len(arguments["ack_ids"]) for _, arguments in acknowledged] == [1000, 1]


def test_pubsub_without_messages_in_time_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = pubsub(monkeypatch, Recorder(pull=DeadlineExceeded("late")))
    assert queue.receive(5, wait=True) == []


def test_pubsub_may_be_tried_out_without_taking_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Recorder()
    pubsub(monkeypatch, client, acknowledge=False).delete(["a"])
    assert client.calls == []
