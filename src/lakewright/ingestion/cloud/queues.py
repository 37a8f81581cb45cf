"""Message queues with two operations: receive and delete.

A queue delivers at least once: a message that is received and not deleted in time is delivered
again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, Protocol

from lakewright.errors import InvalidError, UnavailableError
from lakewright.ingestion.cloud.options import PubSubSettings, SqsSettings, required
from lakewright.utils.optional_imports import imported

_SQS_MAX_BATCH = 10
_PUBSUB_MAX_BATCH = 1000
_PUBSUB_WAIT_S = 10
# Errors that a retry does not fix.
_PERMANENT_ERRORS = (
    "AccessDenied",
    "InvalidClientTokenId",
    "NonExistentQueue",
    "QueueDoesNotExist",
)


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a queue; `receipt` is the handle for deleting it."""

    id: str
    receipt: str
    body: str
    attributes: Mapping[str, str] = field(default_factory=dict)


class Queue(Protocol):
    """A queue to which a store sends its notifications."""

    def receive(self, max_messages: int, *, wait: bool) -> list[Message]:
        """Receive up to `max_messages` messages; with `wait`, wait for the first one."""
        ...

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages; without receipts, no request is sent."""
        ...


class SqsQueue:
    """An Amazon SQS queue."""

    def __init__(self, settings: SqsSettings, options: Mapping[str, str] | None = None) -> None:
        """Create the queue; credentials of S3 in `options` (`fs.s3a.*`) are used for SQS."""
        required(settings.url, "s3.source.queue.url")
        self._settings = settings
        self._options = {
            key.removeprefix("spark.hadoop."): value for key, value in (options or {}).items()
        }

    @cached_property
    def _client(self) -> Any:
        boto3 = imported("boto3", "s3")
        options = self._options
        with _translated_errors("botocore.exceptions"):
            return boto3.client(
                "sqs",
                region_name=self._settings.region or options.get("fs.s3a.endpoint.region"),
                endpoint_url=self._settings.endpoint,
                aws_access_key_id=options.get("fs.s3a.access.key"),
                aws_secret_access_key=options.get("fs.s3a.secret.key"),
                aws_session_token=options.get("fs.s3a.session.token"),
            )

    def receive(self, max_messages: int, *, wait: bool) -> list[Message]:
        """Receive up to ten messages, with or without a long poll."""
        client = self._client
        with _translated_errors("botocore.exceptions"):
            response = client.receive_message(
                QueueUrl=self._settings.url,
                MaxNumberOfMessages=min(max_messages, _SQS_MAX_BATCH),
                WaitTimeSeconds=self._settings.wait_s if wait else 0,
                VisibilityTimeout=self._settings.visibility_s,
            )
        return [
            Message(message["MessageId"], message["ReceiptHandle"], message["Body"])
            for message in response.get("Messages", ())
        ]

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages, ten per request; those that fail are delivered again, with a warning."""
        failed: list[str] = []
        for first in range(0, len(receipts), _SQS_MAX_BATCH):
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt}
                for number, receipt in enumerate(receipts[first : first + _SQS_MAX_BATCH])
            ]
            client = self._client
            with _translated_errors("botocore.exceptions"):
                response = client.delete_message_batch(QueueUrl=self._settings.url, Entries=entries)
            failed += [str(failure.get("Code")) for failure in response.get("Failed", ())]
        if failed:
            warnings.warn(
                f"{len(failed)} messages could not be deleted and will come again: {failed[0]}",
                RuntimeWarning,
                stacklevel=2,
            )


class PubSubQueue:
    """A Google Pub/Sub subscription."""

    def __init__(self, settings: PubSubSettings) -> None:
        project = required(settings.project, "source.gcs.project.id")
        name = required(settings.subscription, "source.gcs.subscription.id")
        self._settings = settings
        self._path = f"projects/{project}/subscriptions/{name}"

    @cached_property
    def _client(self) -> Any:
        pubsub = imported("google.cloud.pubsub_v1", "gcs")
        if self._settings.endpoint is None:
            return pubsub.SubscriberClient()
        # A custom endpoint is an emulator, which has neither credentials nor encryption.
        grpc = imported("grpc", "gcs")
        transport = pubsub.SubscriberClient.get_transport_class("grpc")
        return pubsub.SubscriberClient(
            transport=transport(channel=grpc.insecure_channel(self._settings.endpoint))
        )

    def receive(self, max_messages: int, *, wait: bool) -> list[Message]:
        """Receive messages; the service waits for the first one."""
        client = self._client
        timeout = float(_PUBSUB_WAIT_S if wait else 1)
        timeout_error = imported("google.api_core.exceptions", "gcs").DeadlineExceeded
        try:
            with _translated_errors("google.api_core.exceptions"):
                response = client.pull(
                    subscription=self._path, max_messages=max_messages, timeout=timeout, retry=None
                )
        except UnavailableError as error:
            if isinstance(error.__cause__, timeout_error):
                return []
            raise
        return [
            Message(
                received.message.message_id,
                received.ack_id,
                received.message.data.decode("utf-8", "replace"),
                dict(received.message.attributes),
            )
            for received in response.received_messages
        ]

    def delete(self, receipts: Sequence[str]) -> None:
        """Acknowledge messages."""
        if not self._settings.acknowledge:
            return
        for first in range(0, len(receipts), _PUBSUB_MAX_BATCH):
            client = self._client
            with _translated_errors("google.api_core.exceptions"):
                client.acknowledge(
                    subscription=self._path,
                    ack_ids=list(receipts[first : first + _PUBSUB_MAX_BATCH]),
                )


@contextmanager
def _translated_errors(module: str) -> Iterator[None]:
    """Convert errors of a client library to errors of this library."""
    errors = import_module(module)
    error_types = tuple(
        getattr(errors, name)
        for name in ("BotoCoreError", "ClientError", "GoogleAPIError")
        if hasattr(errors, name)
    )
    try:
        yield
    except error_types as error:
        reason = str(error).partition("\n")[0][:300]
        is_permanent = any(code in reason for code in _PERMANENT_ERRORS) or type(
            error
        ).__name__ in (
            "NoCredentialsError",
            "NoRegionError",
            "NotFound",
            "PermissionDenied",
            "Unauthenticated",
        )
        if is_permanent:
            raise InvalidError("the queue refused the request", reason=reason) from error
        raise UnavailableError("the queue did not answer", reason=reason) from error
