"""A topic planned against a real broker: what is new, what has gone, and who may not ask. Without Spark."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.kit.kafka import READER, READERS_PASSWORD, Broker, group_offsets, login_of
from tests.kit.sampling import in_turn
from tests.kit.schema_registry import schema_registry
from tests.kit.waiting import eventually
from tidegate import seams
from tidegate.connectors.kafka import cluster as kafka_cluster
from tidegate.connectors.kafka import topic as kafka_topic
from tidegate.connectors.kafka.avro.registry import Registry
from tidegate.connectors.kafka.avro.values import Undecodable
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.sources import Kafka, SourceContext
from tidegate.testing.source_contract import MemoryBlobs, drain

pytestmark = in_turn(seconds=30)

HOUR_MS = 3_600_000


@pytest.fixture
def topic(kafka_broker: Broker) -> str:
    """A new one of two partitions."""
    name = f"orders-{uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def context() -> SourceContext:
    return SourceContext("shop", "orders", Place("/data"), MemoryBlobs())


def source_of(broker: Broker, topic: str, **changes: Any) -> Kafka:
    source = Kafka(topic, **({"servers": broker.servers, "schema": "id long"} | changes))
    assert source.problems() == []
    return source


def send(broker: Broker, topic: str, count: int, partition: int = 0, **how: Any) -> None:
    broker.send(topic, [(None, json.dumps({"id": id})) for id in range(count)], partition=partition, **how)


def refused(kind: type[TidegateError], reason: str, source: Kafka, start: Json | None, context: SourceContext) -> str:
    with pytest.raises(kind) as error:
        source.plan(start, context)
    assert error.value.reason == reason
    assert READERS_PASSWORD not in str(error.value)
    return str(error.value)


# -- what is new ---------------------------------------------------------------------------------------


def test_a_plan_ends_where_the_partitions_end_and_the_next_one_begins_there(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    source = source_of(kafka_broker, topic)
    assert source.plan(None, context).is_empty
    send(kafka_broker, topic, 3)
    send(kafka_broker, topic, 2, partition=1)
    first = source.plan(None, context)
    assert first.splits["ranges"] == {"0": [0, 3], "1": [0, 2]}
    assert (first.amount, first.has_more, first.summary) == (5, False, "5 offsets in 2 of 2 partitions")
    assert first.lag is not None
    assert (first.lag.rows, first.lag.seconds) == (0, None)
    send(kafka_broker, topic, 1, partition=1)
    second = source.plan(first.end, context)
    assert second.splits["ranges"] == {"1": [2, 3]}
    again = source.plan(second.end, context)
    assert (again.is_empty, again.end, again.summary) == (True, second.end, "no new records")


def test_a_plan_ends_before_a_transaction_that_is_open_and_takes_it_once_it_is_decided(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    source = source_of(kafka_broker, topic)
    producer = kafka_broker.producer(transactional_id=topic)
    producer.init_transactions()
    send(kafka_broker, topic, 3)
    producer.begin_transaction()
    send(kafka_broker, topic, 4, producer=producer)
    send(kafka_broker, topic, 2)
    planned = source.plan(None, context)
    assert planned.splits["ranges"] == {"0": [0, 3]}, "what comes after an open transaction waits, too"
    producer.abort_transaction()
    eventually("the end of the transaction is seen", lambda: not source.plan(planned.end, context).is_empty)
    last = source.plan(planned.end, context)
    assert last.splits["ranges"] == {"0": [3, 10]}, "offsets of aborted records and of the marker count, too"


def test_what_waits_behind_an_open_transaction_is_told(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    source = source_of(kafka_broker, topic)
    send(kafka_broker, topic, 2)
    producer = kafka_broker.producer(transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    send(kafka_broker, topic, 1, producer=producer)
    send(kafka_broker, topic, 5, timestamp_ms=round(time.time() * 1000) - HOUR_MS)
    planned = source.plan(None, context)
    assert planned.splits["ranges"] == {"0": [0, 2]}
    assert (planned.has_more, planned.amount) == (False, 2), "none of it can be planned yet"
    assert planned.summary == "2 offsets in 1 of 2 partitions; 6 wait for an open transaction to end"
    assert planned.lag is not None
    assert planned.lag.rows == 6
    assert planned.lag.seconds is not None
    nothing = source.plan(planned.end, context)
    assert (nothing.is_empty, nothing.summary) == (True, "no new records; 6 wait for an open transaction to end")
    producer.abort_transaction()


def test_a_bound_gives_each_partition_its_part_and_the_rest_is_told_with_its_age(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    an_hour_ago = round(time.time() * 1000) - HOUR_MS
    send(kafka_broker, topic, 90, timestamp_ms=an_hour_ago)
    send(kafka_broker, topic, 30, partition=1)
    source = source_of(kafka_broker, topic, max_offsets=40)
    planned = source.plan(None, context)
    assert planned.splits["ranges"] == {"0": [0, 30], "1": [0, 10]}
    assert (planned.has_more, planned.amount) == (True, 40)
    assert planned.lag is not None
    assert planned.lag.rows == 80
    assert planned.lag.seconds == pytest.approx(3600, rel=0.2)
    plans, _ = drain(source, context, planned.end)
    assert [plan.amount for plan in plans] == [40, 40]
    bounded = SourceContext("shop", "orders", context.place, context.blobs, at_most=8)
    assert source.plan(None, bounded).splits["ranges"] == {"0": [0, 6], "1": [0, 2]}


def test_partitions_that_are_added_are_read_from_their_beginning(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    source = source_of(kafka_broker, topic, start="latest")
    send(kafka_broker, topic, 3)
    start = source.beginning(context)
    kafka_broker.add_partitions(topic, 3)
    assert source.plan(start, context).end == start, "while it is empty, a new partition changes no position"
    send(kafka_broker, topic, 2, partition=2)
    planned = source.plan(start, context)
    assert planned.splits["ranges"] == {"2": [0, 2]}


# -- where to begin ------------------------------------------------------------------------------------


def test_it_begins_at_the_end_at_a_moment_or_at_offsets_and_nothing_later_moves_that(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    now = round(time.time() * 1000)
    for hours in (3, 2, 1):
        send(kafka_broker, topic, 1, timestamp_ms=now - hours * HOUR_MS)
    moment = datetime.fromtimestamp(now / 1000 - 2.5 * 3600, UTC)
    for start, offsets in (
        ("latest", {"0": 3, "1": 0}),
        (moment, {"0": 1, "1": 0}),
        (datetime.now(UTC), {"0": 3, "1": 0}),
        ({0: 2, 1: 0}, {"0": 2, "1": 0}),
    ):
        source = source_of(kafka_broker, topic, start=start)
        beginning = source.beginning(context)
        assert beginning is not None
        assert beginning["offsets"] == offsets
        assert source.plan(beginning, context).amount == 3 - offsets["0"]
    assert source_of(kafka_broker, topic).beginning(context) is None


@pytest.mark.parametrize("moment", [datetime(1900, 1, 1, tzinfo=UTC), datetime.fromtimestamp(-0.001, UTC)])
def test_a_moment_before_all_records_is_the_beginning_however_old(
    kafka_broker: Broker, topic: str, context: SourceContext, moment: datetime
) -> None:
    send(kafka_broker, topic, 3)
    begin = source_of(kafka_broker, topic, start=moment).beginning(context)
    assert begin is not None
    assert begin["offsets"] == {"0": 0, "1": 0}


@pytest.mark.parametrize("start", [{0: 0}, {0: 4, 1: 0}, {0: 0, 1: 0, 2: 0}])
def test_offsets_to_begin_at_that_the_topic_does_not_have_are_refused(
    kafka_broker: Broker, topic: str, context: SourceContext, start: Mapping[int, int]
) -> None:
    send(kafka_broker, topic, 3)
    with pytest.raises(Invalid, match="partition 0: offsets from 0 to 3") as error:
        source_of(kafka_broker, topic, start=start).beginning(context)
    assert error.value.reason == "NO_OFFSET"


# -- what has gone -------------------------------------------------------------------------------------


def test_records_that_expired_unread_are_told_or_skipped_if_that_is_wanted(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    source = source_of(kafka_broker, topic, max_offsets=2)
    send(kafka_broker, topic, 9)
    planned = source.plan(None, context)
    source.verify(planned.splits, context)
    kafka_broker.delete_records(topic, {0: 5})
    with pytest.raises(Invalid, match="partition 0: planned from 0, the oldest left is 5") as error:
        source.verify(planned.splits, context)
    assert error.value.reason == "SOURCE_CHANGED"
    told = refused(Invalid, "RECORDS_EXPIRED", source, planned.end, context)
    assert "has deleted 3 offsets" in told
    assert "read up to 2, the oldest left is 5" in told
    skipping = source_of(kafka_broker, topic, on_expired="skip").plan(planned.end, context)
    assert skipping.splits["ranges"] == {"0": [5, 9]}
    assert skipping.summary == "4 offsets in 1 of 2 partitions; 3 have expired unread"
    kafka_broker.delete_records(topic, {0: 9})
    nothing = source_of(kafka_broker, topic, on_expired="skip").plan(planned.end, context)
    assert nothing.is_empty
    assert nothing.end is not None
    assert nothing.end["offsets"] == {"0": 9, "1": 0}


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    source = source_of(kafka_broker, topic)
    send(kafka_broker, topic, 3)
    planned = source.plan(None, context)
    kafka_broker.delete_topic(topic)
    kafka_broker.create_topic(topic, partitions=2)
    send(kafka_broker, topic, 5)
    with pytest.raises(Invalid, match="was deleted and created again") as error:
        source.verify(planned.splits, context)
    assert error.value.reason == "TOPIC_RECREATED"
    assert "deleted and created again" in refused(Invalid, "TOPIC_RECREATED", source, planned.end, context)


def test_another_cluster_and_a_partition_that_went_back_are_told(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    source = source_of(kafka_broker, topic)
    send(kafka_broker, topic, 3)
    end = source.plan(None, context).end
    assert end is not None
    assert "in another cluster" in refused(Invalid, "CLUSTER_CHANGED", source, end | {"cluster": "other"}, context)
    beyond = end | {"offsets": {"0": 7, "1": 0}}
    assert "partition 0: at 7, ends at 3" in refused(Invalid, "OFFSETS_WENT_BACK", source, beyond, context)
    with pytest.raises(Invalid, match="ends before what was read or planned"):
        source.verify({"cluster": end["cluster"], "topic_id": end["topic_id"], "ranges": {"0": [0, 7]}}, context)


def test_a_compacted_topic_is_refused_unless_it_is_allowed(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    kafka_broker.create_topic(f"{topic}-compacted", cleanup_policy="compact")
    source = source_of(kafka_broker, f"{topic}-compacted")
    assert "set allow_compacted=True" in refused(Invalid, "TOPIC_COMPACTED", source, None, context)
    assert source_of(kafka_broker, f"{topic}-compacted", allow_compacted=True).plan(None, context).is_empty


def test_an_unknown_topic_is_told_with_those_of_a_similar_name(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    told = refused(Invalid, "NO_TOPIC", source_of(kafka_broker, f"{topic}s"), None, context)
    assert f"has no topic '{topic}s'" in told
    assert f"one like '{topic}'" in told


# -- others who watch ----------------------------------------------------------------------------------


def test_the_offsets_of_a_group_follow_completed_checkpoints(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    source = source_of(kafka_broker, topic, group=f"{topic}-watchers")
    send(kafka_broker, topic, 3)
    end = source.plan(None, context).end
    assert end is not None
    for _ in range(2):
        source.on_checkpoint_completed(end, context)
    assert group_offsets(kafka_broker, f"{topic}-watchers") == {0: 3, 1: 0}


# -- processes, and time -------------------------------------------------------------------------------


def test_a_group_in_which_somebody_else_consumes_is_told(
    kafka_broker: Broker, topic: str, context: SourceContext
) -> None:
    from confluent_kafka import Consumer

    send(kafka_broker, topic, 1)
    source = source_of(kafka_broker, topic, group=topic)
    planned = source.plan(None, context)
    assert planned.end is not None
    consumer = Consumer({"bootstrap.servers": kafka_broker.servers, "group.id": topic, "log_level": 0})
    consumer.subscribe([topic])
    try:
        eventually("it consumes", lambda: (consumer.poll(0.1), consumer.assignment())[1])
        with pytest.raises(Invalid, match="it has an active consumer") as error:
            source.on_checkpoint_completed(planned.end, context)
        assert error.value.reason == "GROUP_IN_USE"
    finally:
        consumer.close()
    source.on_checkpoint_completed(planned.end, context)
    assert group_offsets(kafka_broker, topic)[0] == 1


def test_a_forked_process_plans_with_a_client_of_its_own_and_ends(
    kafka_broker: Broker, topic: str, context: SourceContext, tmp_path: Path
) -> None:
    source = source_of(kafka_broker, topic)
    send(kafka_broker, topic, 3)
    before = source.plan(None, context)
    child = os.fork()
    if child == 0:
        inherited = len(kafka_cluster._admins)
        (tmp_path / "planned").write_text(f"{source.plan(None, context).amount} {inherited}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "planned").read_text() == "3 0"
    assert source.plan(None, context) == before, "the parent's client goes on"


def test_one_client_serves_all_plans_of_a_process(kafka_broker: Broker, topic: str, context: SourceContext) -> None:
    source_of(kafka_broker, topic).plan(None, context)
    known = len(kafka_cluster._admins)
    source_of(kafka_broker, topic).plan(None, context)
    assert len(kafka_cluster._admins) == known


# -- logins, and a broker that is away -----------------------------------------------------------------


def logged_in(broker: Broker, **changes: str) -> SourceContext:
    return SourceContext("shop", "orders", Place("/data", connections=login_of(broker, **changes)), MemoryBlobs())


def test_a_login_needs_the_rights_that_its_error_names_and_a_right_password(kafka_broker: Broker, topic: str) -> None:
    send(kafka_broker, topic, 3)
    source = Kafka(topic, connection="events", schema="id long")
    context = logged_in(kafka_broker)
    assert "rights Describe and Read" in refused(Invalid, "NOT_ALLOWED", source, None, context)
    kafka_broker.allow(READER, "TOPIC", topic, "DESCRIBE", "READ")
    told = eventually("rights apply", lambda: "DescribeConfigs" in (told := _told(source, context)) and told)
    assert "set allow_compacted=True" in told
    unlooked = Kafka(topic, connection="events", schema="id long", allow_compacted=True)
    assert unlooked.plan(None, context).amount == 3
    kafka_broker.allow(READER, "TOPIC", topic, "DESCRIBE_CONFIGS")
    eventually("rights apply", lambda: not _told(source, context))
    planned = source.plan(None, context)
    assert READERS_PASSWORD not in repr(planned)
    assert READERS_PASSWORD not in repr(source.describe())
    grouped = Kafka(topic, connection="events", schema="id long", group="watchers")
    with pytest.raises(Invalid, match="group watchers") as error:
        grouped.on_checkpoint_completed(planned.end or {}, context)
    assert error.value.reason == "NOT_ALLOWED"
    wrong = logged_in(kafka_broker, sasl_password=f"{READERS_PASSWORD}-wrong")
    assert "refuses the login" in refused(Invalid, "BAD_LOGIN", source, None, wrong)


def _told(source: Kafka, context: SourceContext) -> str:
    """What is wrong with a plan, if anything."""
    try:
        source.plan(None, context)
    except Invalid as error:
        return str(error)
    return ""


def test_a_broker_that_is_away_is_waited_for_and_asked_again(
    kafka_broker: Broker, topic: str, context: SourceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(kafka_broker, topic)
    send(kafka_broker, topic, 3)
    planned = source.plan(None, context)
    with monkeypatch.context() as away:
        for module in (kafka_cluster, kafka_topic):
            away.setattr(module, "ANSWER_S", 1.0)
        with kafka_broker.paused():
            refused(Unavailable, "KAFKA_AWAY", source, None, context)
        kafka_broker.kill()
        try:
            told = refused(Unavailable, "KAFKA_AWAY", source, None, context)
            with pytest.raises(Unavailable):
                source.verify(planned.splits, context)
        finally:
            kafka_broker.start()
    assert f"asking about the topic {topic}" in told
    eventually("it plans again", lambda: _planned_again(source, context))
    assert source.plan(None, context).splits == planned.splits


def _planned_again(source: Kafka, context: SourceContext) -> bool:
    try:
        return source.plan(None, context) is not None
    except Unavailable:
        return False


# -- a schema registry ---------------------------------------------------------------------------------

SCHEMA = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}


def test_a_registry_is_asked_once_for_each_schema_and_its_refusals_are_told() -> None:
    with schema_registry() as serving:
        number = serving.register(SCHEMA)
        serving.login = f"me:{READERS_PASSWORD}"
        with pytest.raises(Invalid, match="the schema registry refuses the login: 401"):
            Registry(serving.url, None).schema(number)
        registry = Registry(f"{serving.url}/", serving.login)
        assert registry.schema(number) == registry.schema(number)
        assert serving.asked == [f"/schemas/ids/{number}"] * 2
        with pytest.raises(Undecodable, match="the registry has no schema 7"):
            registry.schema(7)


@pytest.mark.parametrize(
    ("compatibility", "types", "new", "problem"),
    [
        ("BACKWARD", [], "string", None),
        ("BACKWARD", ["string", "long"], "int", "was long and is int"),
        ("BACKWARD", ["long", "string"], "long", None),  # it is a version: nothing is compared
        ("BACKWARD", ["int", "long"], "double", None),
        ("BACKWARD_TRANSITIVE", ["string", "long"], "double", "was string and is double"),
    ],
)
def test_a_sink_asks_whether_a_subject_takes_a_schema(
    compatibility: str, types: list[str], new: str, problem: str | None
) -> None:
    def schema(kind: str) -> str:
        return json.dumps({**SCHEMA, "fields": [{"name": "id", "type": kind}]})

    with schema_registry() as serving:
        serving.compatibility = compatibility
        for kind in types:
            serving.version("orders", schema(kind))
        registry = Registry(serving.url, None)
        if problem is None:
            registry.refuse_incompatible("orders", schema(new), "out")
            return
        with pytest.raises(Invalid, match=problem) as refused:
            registry.refuse_incompatible("orders", schema(new), "out")
        assert "declare the type that the latest version has" in str(refused.value.help)


@pytest.mark.parametrize("act", ["refuse_incompatible", "register"])
def test_a_schema_that_a_registry_calls_invalid_and_a_wrong_url_are_told_at_once(act: str) -> None:
    with schema_registry() as serving:
        serving.refuses = "Illegal character in: 4you"
        with pytest.raises(Invalid, match="calls the schema for orders invalid: Illegal character in: 4you"):
            getattr(Registry(serving.url, None), act)("orders", json.dumps(SCHEMA), "out")
        assert len(serving.asked) == 1
        with pytest.raises(Invalid, match="there is no schema registry at .*/api: 404"):
            getattr(Registry(f"{serving.url}/api", None), act)("orders", json.dumps(SCHEMA), "out")


def test_a_registry_that_is_away_is_asked_again_and_then_told() -> None:
    with schema_registry() as serving, seams.installed(seams.Seams(sleep=lambda _: None)):
        serving.away = True
        with pytest.raises(Unavailable, match="the schema registry does not answer: 503"):
            Registry(serving.url, None).schema(1)
        assert len(serving.asked) == 3
