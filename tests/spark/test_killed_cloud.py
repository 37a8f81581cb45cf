"""Objects of S3 come into a table by way of SQS, by a process that is killed again and again."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from cloud_process import run
from pyspark.sql import SparkSession

from lakewright.storage.local import LocalStorage
from lakewright.testing.s3 import S3Server, moto_server
from support.processes import killed_process, read_line, wait_while_running
from support.soak import sized
from support.tables import WrittenTable

PROGRAM = Path(__file__).with_name("cloud_process.py")
KILLS = sized(1, soak=10)
ROWS = 3
_BUCKET = "lake"


class NotifyingBucket:
    """A bucket that sends its new objects to a queue."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        hadoop = server.hadoop_options()
        self.queues = boto3.client(
            "sqs",
            endpoint_url=server.endpoint,
            region_name=hadoop["fs.s3a.endpoint.region"],
            aws_access_key_id=hadoop["fs.s3a.access.key"],
            aws_secret_access_key=hadoop["fs.s3a.secret.key"],
        )
        self.store = server.client()
        self.store.create_bucket(Bucket=_BUCKET)
        self.url = self.queues.create_queue(QueueName="events")["QueueUrl"]
        response = self.queues.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])
        queue = {"QueueArn": response["Attributes"]["QueueArn"], "Events": ["s3:ObjectCreated:*"]}
        self.store.put_bucket_notification_configuration(
            Bucket=_BUCKET, NotificationConfiguration={"QueueConfigurations": [queue]}
        )
        self.objects = 0

    def put(self) -> None:
        """A new object, whose name needs to be decoded exactly once."""
        number = self.objects
        self.objects += 1
        rows = [{"id": f"{number}-{n}", "object": number, "n": n} for n in range(ROWS)]
        body = "".join(json.dumps(row) + "\n" for row in rows)
        self.store.put_object(Bucket=_BUCKET, Key=f"in/a+b %{number:04d}.json", Body=body)

    def count_messages(self) -> int:
        """How many messages the queue has, visible or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        response: Any = self.queues.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(response["Attributes"][name]) for name in names)

    def options(self) -> dict[str, str]:
        queue = "hoodie.streamer.s3.source.queue."
        return {
            queue + "url": self.url,
            queue + "region": "us-east-1",
            queue + "long.poll.wait": "0",
            queue + "visibility.timeout": "1",
            queue + "max.messages.per.batch": "4",
            "lakewright.source.queue.endpoint": self.server.endpoint,
            **self.server.hadoop_options(),
        }


def traces(folder: Path) -> int:
    """How many files the tables' timelines have, and how many copies of objects there were."""
    timelines = [folder / name / ".hoodie" / "timeline" for name in ("events", "target")]
    files = sum(len(list(place.glob("[0-9]*"))) for place in timelines)
    return files + len(list((folder / "work").glob("*")))


def fed(world: NotifyingBucket, folder: Path, moment: int) -> Callable[[], bool]:
    """Whether so much has moved since now; an object comes whenever four traces more are there."""
    before, next_put = traces(folder), 0

    def happened() -> bool:
        nonlocal next_put
        # Archiving deletes files: what counts is that something has moved.
        moved = abs(traces(folder) - before)
        if moved >= next_put:
            world.put()
            next_put = moved + 4
        return moved >= moment

    return happened


@pytest.mark.slow
def test_every_row_of_every_object_comes_once(spark: SparkSession, tmp_path: Path) -> None:
    chance, errors = random.Random(11), tmp_path / "errors.log"
    with moto_server() as server:
        world = NotifyingBucket(server)
        for _ in range(KILLS):
            for _ in range(3):
                world.put()
            is_time = fed(world, tmp_path, chance.randint(1, 14))
            with killed_process(
                PROGRAM, str(tmp_path), json.dumps(world.options()), errors=errors
            ) as process:
                assert read_line(process) == "READY", errors.read_text()[-4000:]
                wait_while_running(is_time, process, errors=errors)
        # What the killed process took from the queue is there again after some seconds.
        while run(spark, tmp_path, world.options()) or world.count_messages():
            pass
    rows = WrittenTable(LocalStorage(str(tmp_path / "target"))).rows()
    expected = {f"{number}-{n}" for number in range(world.objects) for n in range(ROWS)}
    counted = Counter(row["id"] for row in rows)
    assert set(counted) == expected
    assert set(counted.values()) == {1}
