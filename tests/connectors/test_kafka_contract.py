"""The Kafka sink keeps the contract of sinks: the public suite, on a real broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.kit.kafka import Broker, KafkaRecord
from tests.kit.sampling import in_turn, only_with_all
from tidegate.sinks import KafkaTopic, SinkContext
from tidegate.testing import SinkContract

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = in_turn(seconds=30)


class OnBroker(SinkContract):
    crash_lines = 10

    """A topic of each test's own. As before a first plan, the topics are made before anything is staged."""

    broker: Broker

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_broker: Broker) -> None:
        self.broker, self.checked = kafka_broker, set[str]()

    def context_of(self, pipeline: str, uid: str) -> SinkContext:
        context = super().context_of(pipeline, uid)
        if context.app_id not in self.checked:
            self.checked.add(context.app_id)
            self.sink().check(context)
        return context

    def records(self) -> list[KafkaRecord]:
        exists = self.unique_name in self.broker.admin().list_topics(timeout=30).topics
        return self.broker.read(self.unique_name) if exists else []


class TestLog(OnBroker):
    def sink(self) -> KafkaTopic:
        return KafkaTopic(self.unique_name, servers=self.broker.servers, partitions=2, order_by="k")

    def rows(self) -> list[tuple[int, str]]:
        found = (json.loads(record.value or b"") for record in self.records())
        return [(row["k"], row["v"]) for row in found]

    def unfit(self, rows: DataFrame) -> DataFrame | None:
        return rows.drop("k")

    def refused(self, rows: DataFrame) -> DataFrame | None:
        return rows.selectExpr("k", "repeat(v, 2000000) AS v", "p")


@only_with_all
class TestTable(OnBroker):
    def sink(self) -> KafkaTopic:
        config = {"cleanup.policy": "compact"}
        return KafkaTopic(self.unique_name, servers=self.broker.servers, key="k", partitions=2, topic_config=config)

    def rows(self) -> list[tuple[int, str]]:
        table = {record.key: record.value for record in self.records()}
        found = (json.loads(value) for value in table.values() if value is not None)
        return [(row["k"], row["v"]) for row in found]

    def unfit(self, rows: DataFrame) -> DataFrame | None:
        return rows.drop("k")
