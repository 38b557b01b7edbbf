"""The Kafka sink on a real broker: what it promises, counted by a consumer that reads committed.

The publishers of `kafka_publishers` are killed, stopped and let race each other. ROUNDS=200 makes the stories long.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaException

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
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tidegate.connectors.kafka import creating_topics, marks
from tidegate.connectors.kafka.marks import Marks
from tidegate.connectors.kafka.sending import Sender
from tidegate.connectors.sink import Head, Prepared, Publication, Staging
from tidegate.errors import Corrupt, Invalid, TidegateError, Unavailable
from tidegate.records.place import Place
from tidegate.sinks import KafkaTopic, SinkContext

pytestmark = in_turn(seconds=30)


ROUNDS = int(os.environ.get("ROUNDS", "3"))
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
    kept = Marks(target.sink._cluster(target.context), target.sink._marks_topic(target.context))
    return kept.read(target.context.app_id, settled=True)[0]


# -- the contract ------------------------------------------------------------------------------------


def test_staged_rows_are_seen_once_they_are_published_and_then_once(kafka_broker, target):
    batch = target.stage(1, [("a", "1"), ("b", "2")])
    assert kafka_broker.read(target.topic) == []
    assert target.sink.head(target.context).last_entry is None
    before = target.sink.head(target.context)
    at = target.publish(1, batch)
    assert (at.version, at.rows) == (1, 2)
    assert target.publish(1, batch) is None
    assert target.publish(1, batch, head=before) is None
    assert target.sink.head(target.context).last_entry == 1
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
        while done is None and (target.sink.head(target.context).last_entry or 0) < 1:
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
    assert other.sink.head(context).last_entry is None
    assert target.sink.head(target.context).last_entry == 10


# -- declarations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"topic": "no spaces"}, "is not a topic name"),
        ({"servers": None}, "does not name the brokers"),
        ({"servers": ["localhost:1", "localhost:2"]}, "it must be text"),
        ({"servers": "kafka://me:secret@localhost:1"}, "servers contains a login"),
        ({"value": "xml"}, 'write "json", "avro", "string" or "bytes"'),
        ({"value": "bytes", "omit": ["a"]}, "omit is for"),
        ({"key": ["a", "a"]}, "name each column once"),
        ({"partitions": 0}, "write a whole number from 1"),
        ({"topic_config": {"cleanup.policy": "compact"}}, "add partitions="),
        ({"marks": "t"}, "marks names the topic itself"),
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


def test_two_sinks_can_keep_their_marks_in_one_topic(kafka_broker, target):
    target.options = {"marks": f"{target.topic}.marks"}
    other = replace(target.context, sink="other")
    for context in (target.context, other):
        target.sink.check(context)
    for context in (target.context, other):
        publication = Publication(1, 0, "m", None, (target.stage(1, [("a", context.sink)]),))
        assert target.sink.publish(publication, target.sink.head(context), context) is not None
    assert values(kafka_broker, target) == ["other", "s"]
    assert target.sink.head(target.context).last_entry == target.sink.head(other).last_entry == 1
    fresh = replace(target.context, uid="u2")
    refused("OTHER_OWNER", target.sink.check, fresh)


# -- killed, stopped, racing ---------------------------------------------------------------------------


def staged_target(broker: Broker, target: Target, checkpoints: int) -> None:
    for id in range(1, checkpoints + 1):
        target.stage(id, rows_of(id))


@pytest.mark.parametrize("part", [ROWS, 7])
def test_publishers_killed_at_random_lose_and_double_nothing(kafka_broker, target, part):
    dice, checkpoints = random.Random(ROUNDS), 2 * ROUNDS
    target.options = {"max_rows_per_transaction": part}
    staged_target(kafka_broker, target, checkpoints)
    for _ in range(ROUNDS):
        child = publisher(target, checkpoints)
        time.sleep(dice.uniform(0.1, 1.2))
        child.kill()
    publisher(target, checkpoints).ended()
    refuse_differences(kafka_broker, target.topic, checkpoints)
    assert target.sink.head(target.context).last_entry == checkpoints


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
    target.options = {"transaction_timeout": 4.0}
    staged_target(kafka_broker, target, 2)
    sleeping = publisher(target, 2, step)
    sleeping.stopped()
    kafka_broker.send(target.topic, [("later", "x")])
    eventually("the broker ends the transaction", lambda: kafka_broker.read(target.topic) != [])
    if somebody_else:
        publisher(target, 1).ended()
    sleeping.wake()
    sleeping.ended()
    found = [record for record in kafka_broker.read(target.topic) if record.key != b"later"]
    assert len(found) == len({record.key for record in found}) == 2 * ROWS


def test_a_broker_that_is_killed_while_publishers_live_loses_and_doubles_nothing(tmp_path):
    dice, rounds = random.Random(ROUNDS), max(1, ROUNDS // 4)
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


def test_nothing_is_sent_behind_a_transaction_that_was_open_before(kafka_broker, target, monkeypatch):
    """Brokers may lose the end of one. Of an earlier one of this sink the next commit would show the rows."""
    batch, other = target.stage(1, rows_of(1)), kafka_broker.producer(transactional_id=f"other {target.topic}")
    other.init_transactions(30)
    other.begin_transaction()
    kafka_broker.send(target.topic, [("k", "of another transaction")], producer=other)
    before = kafka_broker.read(target.topic, committed=False)
    assert len(before) == 1
    with monkeypatch.context() as impatient:
        impatient.setattr(creating_topics, "_PATIENCE_S", 0.5)
        error = refused("OPEN_TRANSACTION", target.publish, 1, batch)
    assert f"partition {before[0].partition}" in error.what
    assert kafka_broker.read(target.topic, committed=False) == before, "nothing was sent"
    other.abort_transaction(30)
    assert target.publish(1, batch) is not None
    refuse_differences(kafka_broker, target.topic, 1)


def test_a_publisher_that_fails_leaves_no_transaction_for_which_readers_must_wait(kafka_broker, target, monkeypatch):
    target.options = {"transaction_timeout": 300}
    batch, commit = target.stage(1, rows_of(1)), Sender.commit

    def failing(sender: Sender, *_: Any) -> None:
        sender._producer.flush(30)
        raise Corrupt("a staged file is gone")

    monkeypatch.setattr(Sender, "commit", failing)
    with pytest.raises(Corrupt):
        target.publish(1, batch)
    kafka_broker.send(target.topic, [(f"later {n}", "x") for n in range(20)])
    eventually("later records are readable", lambda: len(kafka_broker.read(target.topic)) == 20)
    monkeypatch.setattr(Sender, "commit", commit)
    assert target.publish(1, batch) is not None
    assert len(kafka_broker.read(target.topic)) == ROWS + 20


def test_a_forked_process_publishes_with_clients_of_its_own(kafka_broker, target):
    """Airflow forks, and no client of Kafka survives that."""
    assert target.publish(1, target.stage(1, rows_of(1))) is not None
    target.stage(2, rows_of(2))
    pid = os.fork()
    if not pid:
        code = 1
        try:
            target.publish_upto(2)
            code = 0
        finally:
            os._exit(code)
    ended = eventually("the forked process ends", lambda: (found := os.waitpid(pid, os.WNOHANG))[0] and found)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    refuse_differences(kafka_broker, target.topic, 2)


@pytest.mark.parametrize("noticed", ["at commit", "while producing"])
def test_a_transaction_that_takes_longer_than_it_may_is_told_and_not_taken_for_a_lost_race(
    kafka_broker, target, monkeypatch, noticed
):
    target.options = {"transaction_timeout": 1}
    monkeypatch.setattr("tidegate.connectors.kafka.sink._PATIENCE_S", 0.0)
    send = Sender.send

    def slowly(sender: Sender, *arguments: Any) -> None:
        send(sender, *arguments)
        sender._producer.flush()
        eventually("the brokers end it", lambda: time.monotonic() > sender._deadline + 11)
        if noticed == "while producing":
            sender._producer.produce(target.topic, b"late")
            with contextlib.suppress(SystemError, KafkaException):
                sender._producer.flush(10)
            send(sender, *arguments)

    monkeypatch.setattr(Sender, "send", slowly)
    batch = target.stage(1, rows_of(1), files=1)
    with pytest.raises(Unavailable, match="took longer than the sink's transaction_timeout of 1 s") as error:
        target.publish(1, batch)
    assert (error.value.reason, values(kafka_broker, target)) == ("TRANSACTION_TIMEOUT", [])
    monkeypatch.undo()
    target.options = {}
    assert target.publish(1, batch) is not None
    refuse_differences(kafka_broker, target.topic, 1)


# -- in parts ------------------------------------------------------------------------------------------


def test_a_large_checkpoint_is_sent_in_parts_and_continued_where_it_stopped(kafka_broker, target, monkeypatch):
    target.options = {"max_rows_per_transaction": 70}
    batch, commit, parts = target.stage(1, rows_of(1)), Sender.commit, []

    def dying(sender: Sender, marks: str, mark: Any) -> None:
        if len(parts) == 2:
            raise Unavailable("the process dies before its third part")
        commit(sender, marks, mark)
        parts.append((mark.records, mark.complete))

    monkeypatch.setattr(Sender, "commit", dying)
    with pytest.raises(Unavailable):
        target.publish(1, batch)
    assert parts == [(70, False), (140, False)]
    assert len(kafka_broker.read(target.topic)) == 140, "readers see the parts"
    assert target.sink.head(target.context).last_entry is None, "and the checkpoint is not there as a whole"
    monkeypatch.setattr(Sender, "commit", commit)
    target.options = {"max_rows_per_transaction": 33}
    assert target.publish(1, batch) is not None
    refuse_differences(kafka_broker, target.topic, 1)
    assert mark_of(target).records == ROWS


def test_a_part_of_a_checkpoint_that_was_let_go_does_not_disturb_the_next_one(kafka_broker, target, monkeypatch):
    target.options = {"max_rows_per_transaction": 2}
    commit = Sender.commit

    def first_only(sender: Sender, marks: str, mark: Any) -> None:
        commit(sender, marks, mark)
        raise Unavailable("the process dies after its first part")

    monkeypatch.setattr(Sender, "commit", first_only)
    with pytest.raises(Unavailable):
        target.publish(1, target.stage(1, [("a", "1"), ("b", "2"), ("c", "3")]))
    monkeypatch.setattr(Sender, "commit", commit)
    assert target.publish(2, target.stage(2, [("d", "4"), ("e", "5"), ("f", "6")])) is not None
    assert values(kafka_broker, target) == ["1", "2", "4", "5", "6"]
    assert target.sink.head(target.context).last_entry == 2


# -- the topics ------------------------------------------------------------------------------------------


def refused(reason: str, call: Any, *arguments: Any) -> TidegateError:
    with pytest.raises(TidegateError) as raised:
        call(*arguments)
    assert raised.value.reason == reason
    assert raised.value.help
    return raised.value


def test_an_unknown_topic_is_refused_or_made_as_the_sink_says(kafka_broker, tmp_path):
    missing = Target(kafka_broker.servers, f"made-{os.urandom(3).hex()}", tmp_path)
    assert missing.topic in refused("NO_TOPIC", missing.sink.check, missing.context).what
    missing.options = {"partitions": 2, "topic_config": {"cleanup.policy": "compact"}}
    for _ in range(2):
        missing.sink.check(missing.context)
    assert len(kafka_broker.admin().list_topics(missing.topic).topics[missing.topic].partitions) == 2
    missing.options |= {"key": ()}
    refused("NO_KEY", missing.sink.check, missing.context)


def test_a_name_that_the_cluster_takes_for_another_one_is_told(kafka_broker, target):
    others = [replace(target.context, pipeline=pipeline, sink=sink) for pipeline, sink in (("p", "a_b"), ("p_a", "b"))]
    target.sink.check(others[0])
    error = refused("BAD_TOPIC", target.sink.check, others[1])
    assert "collides with existing topic" in error.what
    assert "marks" in error.help
    target.options = {"marks": f"{target.topic}-marks"}
    target.sink.check(others[1])


def test_a_topic_that_was_made_again_is_refused_until_somebody_accepts_it(kafka_broker, target):
    target.publish(1, target.stage(1, [("a", "1")]))
    kafka_broker.delete_topic(target.topic)
    kafka_broker.create_topic(target.topic, partitions=PARTITIONS)
    refused("TOPIC_RECREATED", target.sink.check, target.context)
    batch = target.stage(2, [("b", "2")])
    refused("TOPIC_RECREATED", target.publish, 2, batch)
    assert kafka_broker.read(target.topic) == []
    target.sink.set_mark(1, target.context)
    target.sink.check(target.context)
    assert target.publish(2, batch) is not None
    assert values(kafka_broker, target) == ["2"]


def test_a_lost_mark_is_never_taken_for_none_and_can_be_put_back(kafka_broker, target):
    at = target.publish(1, target.stage(1, [("a", "1")]))
    kafka_broker.delete_topic(target.sink._marks_topic(target.context))
    assert target.sink.head(target.context).last_entry is None
    with pytest.raises(Corrupt, match="it has no mark"):
        target.sink.verify(at, target.context)
    refused("MARKS_GONE", target.publish, 1, target.stage(1, [("a", "1")]))
    assert values(kafka_broker, target) == ["1"]
    target.sink.set_mark(1, target.context)
    target.sink.verify(at, target.context)
    assert target.publish(2, target.stage(2, [("b", "2")])) is not None
    target.sink.set_mark(None, target.context)
    assert target.sink.head(target.context).last_entry is None
    assert values(kafka_broker, target) == ["1", "2"]


def test_marks_that_were_made_again_do_not_let_the_first_checkpoint_be_sent_again(kafka_broker, target):
    sink, context = target.sink, target.context
    batch = sink._check_staged(Prepared(target.stage(1, [("a", "1")]), 1), context).committable
    assert target.publish(1, batch) is not None
    kafka_broker.delete_topic(sink._marks_topic(context))
    sink.check(context)
    assert sink.head(context).last_entry is None
    assert "created again" in refused("MARKS_GONE", target.publish, 1, batch).what
    assert values(kafka_broker, target) == ["1"]
    sink.set_mark(None, context)
    assert target.publish(1, batch) is not None, "since a person says that it is not there"
    assert values(kafka_broker, target) == ["1", "1"]


def test_a_topic_that_would_forget_marks_is_refused(kafka_broker, target):
    kafka_broker.create_topic(f"{target.topic}.marks", cleanup_policy="compact,delete")
    target.options = {"marks": f"{target.topic}.marks"}
    assert "cleanup.policy" in refused("BAD_MARKS", target.sink.check, target.context).what
    kafka_broker.create_topic(f"{target.topic}.two", partitions=2, cleanup_policy="compact")
    target.options = {"marks": f"{target.topic}.two"}
    assert "2 partitions" in refused("BAD_MARKS", target.sink.check, target.context).what


def test_a_mark_behind_the_open_transaction_of_somebody_else_is_waited_for(kafka_broker, target, monkeypatch):
    """Whoever reads only what is stable there would take the mark before for the last one, and publish twice."""
    kept_in, head = target.sink._marks_topic(target.context), target.sink.head(target.context)
    other, begin = kafka_broker.producer(transactional_id=f"other {target.topic}"), Sender.begin

    def begin_behind_another(sender: Sender) -> None:
        other.init_transactions(30)
        other.begin_transaction()
        kafka_broker.send(kept_in, [("another sink", "{}")], producer=other)
        begin(sender)

    monkeypatch.setattr(Sender, "begin", begin_behind_another)
    batch, found = target.stage(1, [("a", "1")]), []
    publishing = threading.Thread(target=lambda: found.append(target.publish(1, batch)))
    publishing.start()
    eventually("the record is there", lambda: kafka_broker.read(target.topic) != [])
    monkeypatch.setattr(Sender, "begin", begin)
    again = threading.Thread(target=lambda: found.append(target.publish(1, batch, head=head)))
    again.start()
    again.join(1.5)
    assert again.is_alive(), "it waits, since a newer mark may be hidden"
    other.abort_transaction(30)
    for thread in (publishing, again):
        thread.join(60)
    assert values(kafka_broker, target) == ["1"]
    assert [done.version for done in found if done is not None] == [1]


# -- records that do not fit -------------------------------------------------------------------------------


def checked(target: Target, batch: Any) -> None:
    target.sink._check_staged(Prepared(batch, 1), target.context)


def test_a_record_that_is_too_large_is_refused_before_the_decision(kafka_broker, target):
    kafka_broker.create_topic(f"{target.topic}-small", max_message_bytes=2000)
    target.topic = f"{target.topic}-small"
    target.sink.check(target.context)
    checked(target, target.stage(1, [("k", "x" * 1700)]))
    error = refused("RECORD_TOO_LARGE", checked, target, target.stage(2, [("k", "x" * 1900)]))
    assert "1,901 bytes" in error.what
    assert "1,800 bytes" in error.expected


def test_the_largest_record_that_is_accepted_can_be_sent(kafka_broker, target):
    kafka_broker.create_topic(f"{target.topic}-small", max_message_bytes=2000)
    target.topic = f"{target.topic}-small"
    target.sink.check(target.context)
    noise = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=1799))
    batch = target.stage(1, [("k", noise)])
    checked(target, batch)
    assert target.publish(1, batch) is not None


def test_headers_count_for_the_size_of_a_record(kafka_broker, target):
    limit(kafka_broker, target.topic, 2_000)
    target.options = {"checkpoint_header": "h" * 1_000}
    error = refused("RECORD_TOO_LARGE", checked, target, target.stage(1, [("a", "x" * 900)]))
    assert "1,931 bytes" in error.what
    fits = target.stage(1, [("a", "x" * 750)])
    checked(target, fits)
    assert target.publish(1, fits) is not None


def test_the_largest_limit_that_a_topic_can_have_is_no_obstacle(kafka_broker, target):
    limit(kafka_broker, target.topic, 2**31 - 1)
    assert target.publish(1, target.stage(1, [("a", "1")])) is not None


def test_a_record_that_the_topic_does_not_take_any_more_is_told(kafka_broker, target):
    batch = target.stage(1, [(None, "1")])
    configure(kafka_broker, target.topic, "cleanup.policy", "compact")
    assert "refuse a record" in refused("RECORD_REFUSED", target.publish, 1, batch).what
    configure(kafka_broker, target.topic, "cleanup.policy", "delete")
    assert target.publish(1, batch) is not None
    assert values(kafka_broker, target) == ["1"]


def test_a_record_for_which_the_limit_was_lowered_after_the_decision_is_told_and_nothing_is_sent(kafka_broker, target):
    batch = target.stage(1, [("a", "small"), ("k", "x" * 5000)])
    checked(target, batch)
    limit(kafka_broker, target.topic, 2000)
    assert "max.message.bytes" in refused("RECORD_TOO_LARGE", target.publish, 1, batch).expected
    assert kafka_broker.read(target.topic) == []
    limit(kafka_broker, target.topic, 10_000)
    assert target.publish(1, batch) is not None
    assert len(kafka_broker.read(target.topic)) == 2


def limit(broker: Broker, topic: str, size: int) -> None:
    configure(broker, topic, "max.message.bytes", str(size))


def configure(broker: Broker, topic: str, name: str, value: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = broker.admin()
    admin.incremental_alter_configs([resource])[resource].result(30)


# -- a cluster that is away, or refuses ------------------------------------------------------------------


def test_a_cluster_that_is_away_is_unavailable_and_nothing_is_lost(tmp_path, monkeypatch):
    with kafka() as broker:
        broker.create_topic("out", partitions=PARTITIONS)
        target = Target(broker.servers, "out", tmp_path)
        target.sink.check(target.context)
        batch = target.stage(1, rows_of(1))
        broker.kill()
        with monkeypatch.context() as away:
            for module in (marks, creating_topics):
                away.setattr(module, "ANSWER_S", 2.0)
            for call in (target.sink.check, target.sink.head):
                with pytest.raises(Unavailable) as raised:
                    call(target.context)
                assert target.servers in raised.value.what
            with pytest.raises(Unavailable):
                target.publish(1, batch, head=Head(None, None))
        broker.start()
        assert target.publish(1, batch) is not None
        refuse_differences(broker, "out", 1)


def test_a_transaction_timeout_that_the_cluster_refuses_is_told_before_the_first_checkpoint(kafka_broker, tmp_path):
    target = Target(kafka_broker.servers, f"long-{os.urandom(3).hex()}", tmp_path)
    target.options = {"transaction_timeout": "20 min", "partitions": 1}
    assert (
        "transaction.max.timeout.ms" in refused("BAD_TRANSACTION_TIMEOUT", target.sink.check, target.context).expected
    )


def test_an_option_that_is_wrong_is_told_without_its_value(kafka_broker, target):
    options = {"events.bootstrap.servers": kafka_broker.servers, "events.socket.timeout.ms": "canary-4711"}
    sink = KafkaTopic(target.topic, connection="events")
    context = replace(target.context, place=Place(str(target.folder), connections=options))
    error = refused("BAD_OPTION", sink.check, context)
    assert "socket.timeout.ms" in str(error)
    assert "canary-4711" not in str(error)


def test_logins_are_asked_for_and_rights_are_named_before_anything_is_written(tmp_path):
    logins = {"good": "canary-4711", "poor": "canary-4712"}
    with kafka(logins=logins) as broker:
        broker.create_topic("out", partitions=1)

        def target(user: str, password: str) -> tuple[KafkaTopic, SinkContext]:
            options = {
                "bootstrap.servers": broker.servers_with_login,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": password,
            }
            connections = {f"events.{name}": text for name, text in options.items()}
            place = Place(str(tmp_path), connections=connections)
            sink = KafkaTopic("out", connection="events", key="id")
            return sink, SinkContext("p", "u1", "s", place, home=str(tmp_path / "home"))

        sink, context = target("good", "wrong-canary")
        for call in (sink.check, sink.head):
            error = refused("BAD_LOGIN", call, context)
            assert "wrong-canary" not in str(error)
        sink, context = target("poor", logins["poor"])
        assert "canary" not in f"{refused('NOT_ALLOWED', sink.check, context)} {sink.describe()} {context!r}"
        broker.allow("poor", "TOPIC", "out", "DESCRIBE", "DESCRIBE_CONFIGS")
        assert "may not write" in refused("NOT_ALLOWED", sink.check, context).what
        broker.allow("poor", "TOPIC", "out", "WRITE")
        refused("NOT_ALLOWED", sink.check, context)
        # As docs/guides/kafka-sink.md has them.
        sink, context = target("good", logins["good"])
        broker.allow("good", "TOPIC", "out", "DESCRIBE", "DESCRIBE_CONFIGS", "WRITE")
        broker.allow("good", "TOPIC", "out.tidegate.p.s", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE", "CREATE")
        broker.allow("good", "TRANSACTIONAL_ID", "tidegate/", "DESCRIBE", "WRITE", prefix=True)
        broker.allow("good", "BROKER", "kafka-cluster", "DESCRIBE")
        broker.allow("good", "GROUP", "tidegate", "READ")
        sink.check(context)
        with_rights = Target(broker.servers, "out", tmp_path)
        batch = with_rights.stage(1, [("a", "1")])
        assert sink.publish(Publication(1, 0, "m", None, (batch,)), sink.head(context), context) is not None
        assert [record.value for record in broker.read("out")] == [b"1"]


def test_without_the_client_library_it_is_told_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    target = Target("127.0.0.1:1", "out", tmp_path)
    assert "pip install 'tidegate[kafka]'" in refused("NO_KAFKA_CLIENT", target.sink.check, target.context).help
