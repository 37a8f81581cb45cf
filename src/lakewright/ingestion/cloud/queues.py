"""Queues of messages, behind two calls: take some, delete some.

A queue delivers at least once: what was taken and not deleted in time is given again.
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

_SQS_AT_ONCE = 10
_PUBSUB_AT_ONCE = 1000
_PUBSUB_WAIT_S = 10
# Refusals that another call does not mend.
_DENIED = ("AccessDenied", "InvalidClientTokenId", "NonExistentQueue", "QueueDoesNotExist")


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a queue gives it; `receipt` is what deletes it."""

    id: str
    receipt: str
    body: str
    attributes: Mapping[str, str] = field(default_factory=dict)


class Queue(Protocol):
    """Where a store puts its notifications."""

    def receive(self, most: int, *, wait: bool) -> list[Message]:
        """Take up to `most` messages; `wait` a while if there is none yet."""
        ...

    def delete(self, receipts: Sequence[str]) -> None:
        """Let messages never come again; without receipts nothing is asked of the queue."""
        ...


class SqsQueue:
    """A queue of Amazon's."""

    def __init__(self, settings: SqsSettings, options: Mapping[str, str] | None = None) -> None:
        """`options` may hold Hadoop's `fs.s3a.` keys for S3, whose credentials are used."""
        required(settings.url, "s3.source.queue.url")
        self._settings = settings
        self._options = {
            key.removeprefix("spark.hadoop."): value for key, value in (options or {}).items()
        }

    @cached_property
    def _client(self) -> Any:
        boto3 = imported("boto3", "s3")
        told = self._options
        with _translated_errors("botocore.exceptions"):
            return boto3.client(
                "sqs",
                region_name=self._settings.region or told.get("fs.s3a.endpoint.region"),
                endpoint_url=self._settings.endpoint,
                aws_access_key_id=told.get("fs.s3a.access.key"),
                aws_secret_access_key=told.get("fs.s3a.secret.key"),
                aws_session_token=told.get("fs.s3a.session.token"),
            )

    def receive(self, most: int, *, wait: bool) -> list[Message]:
        """Take up to ten messages by a long poll, or at once."""
        client = self._client
        with _translated_errors("botocore.exceptions"):
            answer = client.receive_message(
                QueueUrl=self._settings.url,
                MaxNumberOfMessages=min(most, _SQS_AT_ONCE),
                WaitTimeSeconds=self._settings.wait_s if wait else 0,
                VisibilityTimeout=self._settings.visibility_s,
            )
        return [
            Message(found["MessageId"], found["ReceiptHandle"], found["Body"])
            for found in answer.get("Messages", ())
        ]

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages, ten at a time; one that cannot be deleted comes again."""
        failed: list[str] = []
        for first in range(0, len(receipts), _SQS_AT_ONCE):
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt}
                for number, receipt in enumerate(receipts[first : first + _SQS_AT_ONCE])
            ]
            client = self._client
            with _translated_errors("botocore.exceptions"):
                answer = client.delete_message_batch(QueueUrl=self._settings.url, Entries=entries)
            failed += [str(each.get("Code")) for each in answer.get("Failed", ())]
        if failed:
            warnings.warn(
                f"{len(failed)} messages could not be deleted and will come again: {failed[0]}",
                RuntimeWarning,
                stacklevel=2,
            )


class PubSubQueue:
    """A subscription of Google's."""

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
        # An endpoint of one's own is an emulator: it knows no credentials and no encryption.
        grpc = imported("grpc", "gcs")
        kind = pubsub.SubscriberClient.get_transport_class("grpc")
        return pubsub.SubscriberClient(
            transport=kind(channel=grpc.insecure_channel(self._settings.endpoint))
        )

    def receive(self, most: int, *, wait: bool) -> list[Message]:
        """Take some messages; the service itself waits a while for the first."""
        client = self._client
        timeout = float(_PUBSUB_WAIT_S if wait else 1)
        slow = imported("google.api_core.exceptions", "gcs").DeadlineExceeded
        try:
            with _translated_errors("google.api_core.exceptions"):
                answer = client.pull(
                    subscription=self._path, max_messages=most, timeout=timeout, retry=None
                )
        except UnavailableError as error:
            if isinstance(error.__cause__, slow):
                return []
            raise
        return [
            Message(
                found.message.message_id,
                found.ack_id,
                found.message.data.decode("utf-8", "replace"),
                dict(found.message.attributes),
            )
            for found in answer.received_messages
        ]

    def delete(self, receipts: Sequence[str]) -> None:
        """Acknowledge messages."""
        if not self._settings.acknowledge:
            return
        for first in range(0, len(receipts), _PUBSUB_AT_ONCE):
            client = self._client
            with _translated_errors("google.api_core.exceptions"):
                client.acknowledge(
                    subscription=self._path,
                    ack_ids=list(receipts[first : first + _PUBSUB_AT_ONCE]),
                )


@contextmanager
def _translated_errors(module: str) -> Iterator[None]:
    """Turn what a client raises into one of this library's errors."""
    known = import_module(module)
    kinds = tuple(
        getattr(known, name)
        for name in ("BotoCoreError", "ClientError", "GoogleAPIError")
        if hasattr(known, name)
    )
    try:
        yield
    except kinds as error:
        reason = str(error).partition("\n")[0][:300]
        lasting = any(word in reason for word in _DENIED) or type(error).__name__ in (
            "NoCredentialsError",
            "NoRegionError",
            "NotFound",
            "PermissionDenied",
            "Unauthenticated",
        )
        if lasting:
            raise InvalidError("the queue refused the request", reason=reason) from error
        raise UnavailableError("the queue did not answer", reason=reason) from error
