"""The Kafka sink and the Kafka source understand one connection alike."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidegate.connectors.kafka import Cluster, KafkaLogin, cluster
from tidegate.connectors.kafka.topic import SourceTopic
from tidegate.errors import Invalid
from tidegate.records.place import Place


def test_what_is_for_the_schema_registry_does_not_reach_the_brokers_client():
    """librdkafka refuses an option that it does not know, so a connection that sources share would fail."""
    connections = {"events.bootstrap.servers": "one:9092", "events.schema.registry.basic.auth.user.info": "me:secret"}
    cluster = Cluster(KafkaLogin.resolve(None, "events", Place("/data", connections=connections)), "none")
    assert cluster.producer({}, {}) is not None
    assert cluster.servers == "one:9092"


def test_servers_of_the_declaration_come_before_those_of_the_connection():
    place = Place("/data", connections={"events.bootstrap.servers": "one:9092", "events.client.id": "shop"})
    assert KafkaLogin.resolve("two:9092", "events", place).servers == "two:9092"
    with pytest.raises(Invalid, match="names no brokers"):
        KafkaLogin.resolve(None, "events", Place("/data", connections={"events.client.id": "shop"}))


def test_leaders_are_looked_up_anew_before_a_question_is_asked_again(monkeypatch):
    """After a restart of brokers the client knows a leader of an older epoch, and would ask it for minutes."""
    done: list[str] = []
    client = SimpleNamespace(poll=lambda _: None, list_topics=lambda timeout: done.append("looked up"))
    monkeypatch.setattr(cluster, "_admin_of", lambda _: SimpleNamespace(client=client, reported=[]))
    monkeypatch.setattr(cluster, "_POLL_S", 0.0)

    def ask() -> Future[str]:
        answer: Future[str] = Future()
        if "looked up" in done:
            answer.set_result("here")
        else:
            answer.set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
        done.append("asked")
        return answer

    assert Cluster(KafkaLogin({"bootstrap.servers": "one:9092"}), "none").answer(ask) == "here"
    assert done == ["asked", "looked up", "asked"]


def test_offsets_of_a_group_are_committed_though_its_coordinator_is_still_loading(monkeypatch):
    """That error comes inside of an answer, per partition: the answer as a whole is none."""
    codes = [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR, None]

    def alter(wanted: object, request_timeout: float) -> dict[str, Future[SimpleNamespace]]:
        code, answer = codes.pop(0), Future[SimpleNamespace]()
        partition = SimpleNamespace(error=None if code is None else KafkaError(code))
        answer.set_result(SimpleNamespace(topic_partitions=[partition]))
        return {"watchers": answer}

    client = SimpleNamespace(poll=lambda _: None, list_topics=lambda timeout: None, alter_consumer_group_offsets=alter)
    monkeypatch.setattr(cluster, "_admin_of", lambda _: SimpleNamespace(client=client, reported=[]))
    monkeypatch.setattr(cluster, "_POLL_S", 0.0)

    SourceTopic("orders", KafkaLogin({"bootstrap.servers": "one:9092"})).commit("watchers", {0: 3})
    assert codes == []
