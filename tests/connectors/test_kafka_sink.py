"""The Kafka sink on a real broker: what it promises, counted by a consumer that reads committed.

The publishers of `kafka_publishers` are killed, stopped and let race each other. ROUNDS=200 makes the stories long.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import pytest

from tests.connectors.kafka_publishers import (
    PARTITIONS,
    ROWS,
    STEPS,
    Target,
    publisher,
    refuse_differences,
    rows_of,
)
from tests.kit.kafka import Broker, kafka
from tests.kit.waiting import eventually
from tidegate.errors import Corrupt, Invalid
from tidegate.sinks import KafkaTopic
from tidegate.sinks.base import Staging
from tidegate.sinks.kafka.cluster import Cluster
from tidegate.sinks.kafka.marks import Marks

ROUNDS = int(os.environ.get("ROUNDS", "4"))
"""Kills of each kind."""


@pytest.fixture
def target(kafka_broker: Broker, tmp_path: Any, request: Any) -> Target:
    """A topic of the test's own, checked as before the first plan."""
    name = f"out-{request.node.name.partition('[')[0][-40:]}-{os.urandom(3).hex()}"
    kafka_broker.create_topic(name, partitions=PARTITIONS)
    target = Target(kafka_broker.servers, name, tmp_path)
    target.sink.check(target.context)
    return target


def values(broker: Broker, target: Target) -> list[str]:
    return sorted((record.value or b"").decode() for record in broker.read(target.topic))


def mark_of(target: Target) -> Any:
    marks = Marks(Cluster(target.servers, {}), target.sink._marks_topic(target.context))
    return marks.read(target.context.app_id, settled=True)[0]


# -- the contract ------------------------------------------------------------------------------------


def test_staged_rows_are_seen_once_they_are_published_and_then_once(kafka_broker, target):
    batch = target.stage(1, [("a", "1"), ("b", "2")])
    assert kafka_broker.read(target.topic) == []
    assert target.sink.head(target.context).last is None
    before = target.sink.head(target.context)
    at = target.publish(1, batch)
    assert (at.version, at.rows) == (1, 2)
    assert target.publish(1, batch) is None
    assert target.publish(1, batch, head=before) is None
    assert target.sink.head(target.context).last == 1
    assert values(kafka_broker, target) == ["1", "2"]
    target.sink.verify(at, target.context)
    assert target.sink.locate(1, target.context) == target.sink._published(1, target.context, None)
    assert target.sink.locate(2, target.context) is None


def test_several_checkpoints_in_the_order_of_their_ids(kafka_broker, target):
    for id in (1, 2, 5):
        assert target.publish(id, target.stage(id, [("k", f"{id}.{n}") for n in range(50)])) is not None
    assert target.publish(4, target.stage(4, [("k", "late")])) is None
    records = [record.value.decode() for record in kafka_broker.read(target.topic) if record.key == b"k"]
    assert records == [f"{id}.{n}" for id in (1, 2, 5) for n in range(50)], "of one key, in the order of the files"


def test_a_checkpoint_of_several_jobs_is_one_transaction(kafka_broker, target):
    first, second = target.stage(1, [("a", "1")]), target.stage(2, [("b", "2")])
    assert target.publish(1, first, second).rows == 2
    assert values(kafka_broker, target) == ["1", "2"]


def test_publishers_that_come_at_once_publish_once(kafka_broker, target):
    head, batch = target.sink.head(target.context), target.stage(1, rows_of(1))
    start, found = threading.Barrier(3), []

    def go(number: int) -> None:
        start.wait()
        done = None
        while done is None and (target.sink.head(target.context).last or 0) < 1:
            done = target.publish(1, batch, head=head, attempt=f"m{number}")
        found.append(done)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len([done for done in found if done is not None]) <= 1, "nobody who lost the race says that it has won"
    refuse_differences(kafka_broker, target.topic, 1)


def test_a_discarded_attempt_is_not_published(target):
    batch = target.stage(1, [("a", "1")])
    assert target.sink.attempts(1, target.context) == ["a"]
    target.sink.discard(target.context, Staging(1, "a"))
    assert target.sink.attempts(1, target.context) == []
    with pytest.raises(Corrupt, match="files that checkpoint 1 staged are gone"):
        target.publish(1, batch)


def test_a_pipeline_that_was_started_afresh_is_refused_unless_it_takes_over(kafka_broker, target):
    target.publish(3, target.stage(3, [("a", "old")]))
    fresh = Target(target.servers, target.topic, target.folder, uid="u2")
    for look in (fresh.sink.check, fresh.sink.head):
        with pytest.raises(Invalid, match="another pipeline") as refused:
            look(fresh.context)
        assert refused.value.reason == "OTHER_OWNER"
    fresh.options = {"take_over": True}
    fresh.sink.check(fresh.context)
    assert fresh.publish(1, fresh.stage(1, [("a", "new")])) is not None
    assert values(kafka_broker, target) == ["new", "old"]


def test_two_pipelines_can_send_to_one_topic(kafka_broker, target):
    other = Target(target.servers, target.topic, target.folder)
    context = type(target.context)("p1", "u", "s", target.context.place, home=str(target.folder / "other"))
    other.sink.check(context)
    target.publish(10, target.stage(10, [("a", "ours")]))
    assert other.sink.head(context).last is None
    assert target.sink.head(target.context).last == 10


# -- declarations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"topic": "no spaces"}, "no name of a topic"),
        ({"servers": None}, "does not say where Kafka is"),
        ({"value": "xml"}, 'write "json", "string" or "bytes"'),
        ({"value": "bytes", "omit": ["a"]}, "omit is for"),
        ({"key": ["a", "a"]}, "name each column once"),
        ({"partitions": 0}, "write a whole number from 1"),
        ({"topic_config": {"cleanup.policy": "compact"}}, "say with how many partitions"),
        ({"marks": "t"}, "marks is the topic itself"),
        ({"transaction_timeout": "soon"}, "write a duration"),
        ({"transaction_timeout": 0}, "write 1 s to 1 day"),
        ({"max_rows_per_transaction": 0}, "write a whole number from 1"),
    ],
)
def test_a_wrong_declaration_is_told(declared, problem):
    told = {"topic": "t", "servers": "localhost:1"} | declared
    assert any(problem in each for each in KafkaTopic(told.pop("topic"), **told).problems())


def test_a_right_declaration_has_no_problems_and_its_description_is_json():
    import json

    sink = KafkaTopic("t", connection="events", key=["a", "b"], headers={"h": "c"}, omit="c", partitions=3)
    assert sink.problems() == []
    assert json.loads(json.dumps(sink.describe()))["key"] == ["a", "b"]


# -- killed, stopped, racing ---------------------------------------------------------------------------


def staged_target(broker: Broker, target: Target, checkpoints: int) -> None:
    for id in range(1, checkpoints + 1):
        target.stage(id, rows_of(id))


def test_publishers_killed_at_random_lose_and_double_nothing(kafka_broker, target):
    dice, checkpoints = random.Random(ROUNDS), 2 * ROUNDS
    staged_target(kafka_broker, target, checkpoints)
    for _ in range(ROUNDS):
        child = publisher(target, checkpoints)
        time.sleep(dice.uniform(0.1, 1.2))
        child.kill()
    publisher(target, checkpoints).ended()
    refuse_differences(kafka_broker, target.topic, checkpoints)
    assert target.sink.head(target.context).last == checkpoints


def test_two_publishers_at_once_both_killed_lose_and_double_nothing(kafka_broker, target):
    dice, checkpoints = random.Random(ROUNDS), 2 * ROUNDS
    staged_target(kafka_broker, target, checkpoints)
    for _ in range(ROUNDS):
        pair = [publisher(target, checkpoints) for _ in range(2)]
        for child in pair:
            time.sleep(dice.uniform(0.1, 1.0))
            child.kill()
    for child in [publisher(target, checkpoints) for _ in range(2)]:
        child.ended()
    refuse_differences(kafka_broker, target.topic, checkpoints)


@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_that_sleeps_while_another_one_publishes_changes_nothing_when_it_wakes(kafka_broker, target, step):
    staged_target(kafka_broker, target, 2)
    sleeping = publisher(target, 2, step)
    sleeping.stopped()
    publisher(target, 1).ended()
    refuse_differences(kafka_broker, target.topic, 1)
    sleeping.wake()
    sleeping.ended()
    refuse_differences(kafka_broker, target.topic, 2)


@pytest.mark.parametrize("somebody_else", [False, True], ids=["alone", "another one publishes"])
@pytest.mark.parametrize("step", ["sent", "mark"])
def test_a_publisher_that_sleeps_longer_than_its_transaction_may_take(kafka_broker, target, step, somebody_else):
    """Nobody ends its transaction but the broker. Then its commit must fail, and its rows be sent again."""
    target.options = {"transaction_timeout": 2.0}
    staged_target(kafka_broker, target, 2)
    sleeping = publisher(target, 2, step)
    sleeping.stopped()
    kafka_broker.send(target.topic, [("later", "x")])
    eventually("the broker ends the transaction", lambda: kafka_broker.read(target.topic) != [], 60)
    if somebody_else:
        publisher(target, 1).ended()
    sleeping.wake()
    sleeping.ended()
    found = [record for record in kafka_broker.read(target.topic) if record.key != b"later"]
    assert len(found) == len({record.key for record in found}) == 2 * ROWS


def test_a_broker_that_is_killed_while_publishers_live_loses_and_doubles_nothing(tmp_path):
    dice, rounds = random.Random(ROUNDS), max(2, ROUNDS // 4)
    with kafka() as broker:
        broker.create_topic("out", partitions=PARTITIONS)
        target = Target(broker.servers, "out", tmp_path)
        target.sink.check(target.context)
        checkpoints = 10 * rounds
        staged_target(broker, target, checkpoints)
        for _ in range(rounds):
            child = publisher(target, checkpoints)
            time.sleep(dice.uniform(0.2, 1.0))
            broker.kill()
            if dice.random() < 0.5:
                child.kill()
            broker.start()
            time.sleep(dice.uniform(0.0, 2.0))
            child.kill()
        publisher(target, checkpoints).ended(300)
        refuse_differences(broker, "out", checkpoints)
