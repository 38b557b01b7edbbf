"""The Kafka sink and the Kafka source understand one connection alike."""

from __future__ import annotations

import pytest

from tidegate.errors import Invalid
from tidegate.kafka import Cluster, KafkaLogin
from tidegate.records.place import Place


def test_what_is_for_the_schema_registry_does_not_reach_the_brokers_client():
    """librdkafka refuses an option that it does not know, so a connection that sources share would fail."""
    connections = {"events.bootstrap.servers": "one:9092", "events.schema.registry.basic.auth.user.info": "me:secret"}
    cluster = Cluster(KafkaLogin.of(None, "events", Place("/data", connections=connections)), "none")
    assert cluster.producer({}, {}) is not None
    assert cluster.servers == "one:9092"


def test_servers_of_the_declaration_come_before_those_of_the_connection():
    place = Place("/data", connections={"events.bootstrap.servers": "one:9092", "events.client.id": "shop"})
    assert KafkaLogin.of("two:9092", "events", place).servers == "two:9092"
    with pytest.raises(Invalid, match="names no brokers"):
        KafkaLogin.of(None, "events", Place("/data", connections={"events.client.id": "shop"}))
