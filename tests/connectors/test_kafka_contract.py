"""The Kafka sink keeps the contract of sinks: the public suite, on a real broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.kit.kafka import Broker
from tidegate.sinks import KafkaTopic
from tidegate.testing import SinkContract

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class OnBroker(SinkContract):
    """A topic of each test's own."""

    broker: Broker

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_broker: Broker) -> None:
        self.broker = kafka_broker


class TestLog(OnBroker):
    def sink(self) -> KafkaTopic:
        return KafkaTopic(self.unique_name, servers=self.broker.servers, partitions=2, order_by="k")

    def rows(self) -> list[tuple[int, str]]:
        if self.unique_name not in self.broker.admin().list_topics(timeout=30).topics:
            return []
        found = (json.loads(record.value or b"") for record in self.broker.read(self.unique_name))
        return [(row["k"], row["v"]) for row in found]

    def unfit(self, rows: DataFrame) -> DataFrame | None:
        return rows.drop("k")


class TestTable(OnBroker):
    def sink(self) -> KafkaTopic:
        config = {"cleanup.policy": "compact"}
        return KafkaTopic(self.unique_name, servers=self.broker.servers, key="k", partitions=2, topic_config=config)

    def rows(self) -> list[tuple[int, str]]:
        if self.unique_name not in self.broker.admin().list_topics(timeout=30).topics:
            return []
        table = {record.key: record.value for record in self.broker.read(self.unique_name)}
        found = (json.loads(value) for value in table.values() if value is not None)
        return [(row["k"], row["v"]) for row in found]

    def unfit(self, rows: DataFrame) -> DataFrame | None:
        return rows.drop("k")
