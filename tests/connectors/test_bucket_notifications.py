"""Notifications of a bucket: a real SQS queue, to which a real bucket sends them, wakes whoever watches for input."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.kit.s3 import BUCKET, SECRET, S3Server, s3
from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyFrame
from tidegate import seams
from tidegate.connectors.files.notifications import SqsQueue
from tidegate.errors import Invalid, Unavailable
from tidegate.execution.input_watch import InputWatch, Pauses
from tidegate.records.place import Place
from tidegate.sources import Files


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3() as server:
        yield server


@dataclass
class Bucket:
    """The bucket, and queues for it."""

    server: S3Server
    folder: str
    made: int = 0
    sqs: Any = field(init=False)

    def __post_init__(self) -> None:
        login = {"aws_access_key_id": "someone", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        self.sqs = boto3.client("sqs", endpoint_url=self.server.endpoint, **login)
        self.s3 = boto3.client("s3", endpoint_url=self.server.endpoint, **login)

    def queue(self) -> str:
        """The URL of a new queue that is told of each new object."""
        self.made += 1
        url: str = self.sqs.create_queue(QueueName=f"{self.folder}-{self.made}")["QueueUrl"]
        asked = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        told = [{"QueueArn": asked["Attributes"]["QueueArn"], "Events": ["s3:ObjectCreated:*"]}]
        self.s3.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"QueueConfigurations": told}
        )
        SqsQueue(url, self.server.options).wait(0)  # S3 sends a test event first
        return url

    def land(self, name: str) -> None:
        self.server.put(f"{self.folder}/landing/{name}.json", b'{"id": 1}\n')

    def waiting(self, url: str) -> int:
        asked = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
        return int(asked["Attributes"]["ApproximateNumberOfMessages"])


@pytest.fixture
def bucket(server: S3Server, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(server, f"t{abs(hash(request.node.name))}")


def test_a_new_object_ends_the_wait_and_a_burst_is_received_at_once(bucket: Bucket) -> None:
    url = bucket.queue()
    queue = SqsQueue(url, bucket.server.options)
    assert not queue.wait(0)
    for number in range(25):
        bucket.land(str(number))
    assert bucket.waiting(url) == 25
    assert queue.wait(60)
    assert bucket.waiting(url) == 0
    assert not queue.wait(0)


def test_a_message_that_comes_later_ends_a_wait_that_has_begun(bucket: Bucket) -> None:
    queue = SqsQueue(bucket.queue(), bucket.server.options)
    later = threading.Timer(0.3, lambda: bucket.land("late"))
    later.start()
    assert queue.wait(120)
    later.join()


@pytest.mark.parametrize(
    ("path", "reason", "told"),
    [
        ("/123456789012/no-such-queue", "NO_QUEUE", "there is no queue"),
        ("http://127.0.0.1:9/123456789012/away", "QUEUE_AWAY", "does not answer"),
    ],
)
def test_a_queue_that_cannot_be_read_says_why(bucket: Bucket, path: str, reason: str, told: str) -> None:
    url = path if path.startswith("http") else bucket.server.endpoint + path
    with pytest.raises((Invalid, Unavailable), match=told) as raised:
        SqsQueue(url, bucket.server.options).wait(0)
    assert raised.value.reason == reason
    assert raised.value.help
    assert SECRET not in str(raised.value)


def test_a_queue_without_a_region_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    options = {name: text for name, text in bucket.server.options.items() if name != "aws_region"}
    with pytest.raises(Invalid, match="cannot be opened") as raised:
        SqsQueue(f"{bucket.server.endpoint}/123456789012/q", options)
    assert raised.value.reason == "BAD_QUEUE"


# -- whoever watches ---------------------------------------------------------------------------------------


class Landed(Files):
    """What is read does not matter here, and no Spark reads it."""

    def read(self, *_: Any) -> Any:
        return ToyFrame([])


@dataclass
class Watched(ToyWorld):
    """A pipeline that reads the bucket, with a ledger on this disk."""

    bucket: Bucket = field(kw_only=True)

    @property
    def place(self) -> Place:
        return Place(f"s3://{BUCKET}/{self.bucket.folder}", self.bucket.server.options)


class Watcher:
    """It looks for input of a pipeline, and counts its pauses."""

    def __init__(self, root: Path, bucket: Bucket) -> None:
        self.bucket, self.url = bucket, bucket.queue()
        self.source = Landed("landing/*.json", schema="id long", queue=self.url)
        self.world = Watched(root, source=self.source, bucket=bucket)
        self.watch = InputWatch(self.world.coordinator(), 86_400.0)
        self.told: list[str] = []
        self.pauses = Pauses(self.watch.pipeline, self.told.append)
        self.slept = 0

    def sleep(self, seconds: float) -> None:
        self.slept += 1

    def look(self) -> str | None:
        arrival = self.watch.look()
        return arrival.reason if arrival is not None else None

    def pause(self) -> None:
        with seams.installed(replace(seams.Seams(), sleep=self.sleep)):
            self.pauses.pause(self.watch, 0.01)

    def make_checkpoint(self) -> None:
        """It reads the first object."""
        self.bucket.land("first")
        self.world.checkpoint("first")
        SqsQueue(self.url, self.bucket.server.options).wait(60)


@pytest.fixture
def watcher(bucket: Bucket, tmp_path: Path) -> Watcher:
    return Watcher(tmp_path, bucket)


def test_the_bucket_is_listed_when_a_message_comes_and_seldom_without(watcher: Watcher) -> None:
    bucket = watcher.bucket
    watcher.make_checkpoint()
    assert watcher.look() is None
    assert watcher.watch.is_idle
    later = threading.Timer(1.0, lambda: bucket.land("second"))
    with bucket.server.asked() as requests:
        later.start()
        watcher.pause()  # without a message it would take a minute
        later.join()
    listings = [request for request in requests if "list-type" in request]
    assert listings == []
    assert watcher.look() == "there is new input for in"
    assert watcher.told == []
    assert bucket.waiting(watcher.url) == 0


def test_while_something_is_at_work_the_watcher_does_not_wait_for_messages(watcher: Watcher) -> None:
    assert watcher.look() == "it is the first checkpoint"
    assert not watcher.watch.is_idle
    watcher.pause()
    assert watcher.slept, "it pauses as without a queue"


def test_a_lost_message_costs_a_minute(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.execution.input_watch.MAX_WAIT_S", 1.0)
    watcher.make_checkpoint()
    assert watcher.look() is None
    watcher.bucket.land("second")
    watcher.bucket.sqs.purge_queue(QueueUrl=watcher.url)
    watcher.pause()
    assert watcher.look() == "there is new input for in"


def test_a_queue_that_is_gone_is_told_once_and_the_bucket_is_listed(watcher: Watcher) -> None:
    watcher.make_checkpoint()
    watcher.bucket.sqs.delete_queue(QueueUrl=watcher.url)
    assert watcher.look() is None
    for _ in range(3):
        watcher.pause()
    (told,) = watcher.told
    assert told.startswith("NO_QUEUE: there is no queue")
    watcher.bucket.land("second")
    assert watcher.look() == "there is new input for in"


def test_a_pipeline_with_another_source_without_a_queue_is_looked_at_as_often_as_ever(watcher: Watcher) -> None:
    watcher.make_checkpoint()
    assert watcher.look() is None
    watcher.source.queue = None
    watcher.pause()
    assert watcher.slept


def test_a_bad_queue_is_a_problem_of_the_declaration() -> None:
    for queue, told in (
        ("orders", "must be a queue's URL"),
        ("https://sqs.eu-west-1.amazonaws.com/orders", "must be a queue's URL"),
        ("https://me:secret@sqs.eu-west-1.amazonaws.com/1/orders", "contains a login"),
    ):
        (problem,) = Files("s3://b/*.json", schema="id long", queue=queue).problems()
        assert told in problem
        assert "secret" not in problem
    (problem,) = Files("s3://b/*.json", schema="id long", queue="https://sqs.x/1/orders", min_age=5).problems()
    assert "min_age" in problem
