"""Topics of a Kafka broker: one that is read, and one that a pipeline sends to."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from tests.kit.kafka import Broker
from tests.world.other_side import Happening, OtherSide, Servers, SinkSide, SourceSide, Table, act, happened
from tests.world.project import Project, row_of

__all__ = ["KafkaSinkSide", "KafkaSourceSide"]

NAMES = ("id", "n", "v")


class KafkaSide(OtherSide):
    """What befalls a broker."""

    needs = "kafka"
    is_away = False

    @property
    def broker(self) -> Broker:
        return self.servers.kafka

    def set_config(self, topic: str, name: str, value: str) -> None:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = self.broker.admin()
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(60)

    @act
    def broker_is_killed(self) -> Happening | None:
        if self.is_away:
            return None
        self.broker.kill()
        self.broker.start()
        return happened()

    @act
    def broker_is_away(self) -> Happening | None:
        if self.is_away:
            return None
        self.broker.stop()
        self.is_away = True

        def undo() -> None:
            if self.is_away:
                self.broker.start()
                self.is_away = False

        self.closing.callback(undo)
        return happened("KAFKA_AWAY", undo, passing=True)


class KafkaSourceSide(KafkaSide, SourceSide):
    kind = "kafka"
    in_flight: ClassVar[str] = "KAFKA_AWAY"

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        super().__init__(dice, servers)
        self.topic = servers.new_name("events")
        self.partitions = 1
        self.sent = 0
        self.places: dict[str, tuple[int, int]] = {}
        """Partition and offset of each unit."""
        self.names = ("'events'", self.topic)
        self.open: tuple[Any, list[int]] | None = None

    def declared(self) -> tuple[str, str]:
        bound = self.dice.choice([1, 3, 1000])
        schema = 'schema="id long, n long, v string", on_new_column="refuse"'
        self.code = f'Kafka("{self.topic}", servers="{self.broker.servers}", {schema}, max_offsets={bound}'
        return f"{self.code})", self.SINK

    def begin(self, project: Project) -> None:
        super().begin(project)
        self.broker.create_topic(self.topic, partitions=self.partitions)

    def end(self) -> None:
        self.commit_open()
        super().end()

    def arrive(self) -> None:
        self.commit_open()
        if not self.is_away and self.is_there:
            for id in self.some_ids():
                self.send(id)

    is_there = True

    def send(self, id: int, producer: Any = None, **changed: Any) -> None:
        row = dict(zip(NAMES, row_of(id), strict=True)) | changed
        partition = self.dice.randrange(self.partitions)
        self.broker.send(self.topic, [(str(id), json.dumps(row))], partition=partition, producer=producer)
        if not changed and producer is None:
            self.sent += 1
            name = f"record {self.sent} of {self.topic}"
            self.show(name, [id])
            self.places[name] = (partition, 0)

    def commit_open(self) -> None:
        if self.open is not None:
            (producer, ids), self.open = self.open, None
            producer.commit_transaction(60)
            for id in ids:
                self.sent += 1
                self.show(f"record {self.sent} of {self.topic}", [id])

    def wrong(self, succeeded: bool) -> list[str]:
        return super().wrong(succeeded and self.open is None)

    def ends(self) -> dict[int, int]:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        admin = self.broker.admin()
        asked = {TopicPartition(self.topic, at): OffsetSpec.latest() for at in range(self.partitions)}
        return {each.partition: int(done.result(60).offset) for each, done in admin.list_offsets(asked).items()}

    # -- what comes after

    @act
    def partitions_are_added(self) -> Happening | None:
        if self.is_away or not self.is_there or self.partitions > 3:
            return None
        self.partitions += 1
        self.broker.add_partitions(self.topic, self.partitions)
        return happened()

    @act
    def records_expire(self) -> Happening | None:
        """All of them, read or not."""
        self.commit_open()
        if self.is_away or not self.is_there:
            return None
        self.broker.delete_records(self.topic, self.ends())
        self.hide(*self.units)
        return happened(
            "RECORDS_EXPIRED SOURCE_CHANGED",
            code=lambda: self.project.write_code(reads=f"{self.code}, on_expired='skip')"),
            advice="on_expired='skip'",
        )

    @act
    def transaction_stays_open(self) -> Happening | None:
        if self.is_away or self.open is not None or not self.is_there:
            return None
        producer = self.broker.producer(transactional_id=self.servers.new_name("t"), transaction_timeout_ms=60_000)
        producer.init_transactions(60)
        producer.begin_transaction()
        ids = self.some_ids()
        for id in ids:
            self.send(id, producer)
        self.open = producer, ids
        return happened()

    @act
    def transaction_is_aborted(self) -> Happening | None:
        if self.is_away or not self.is_there:
            return None
        producer = self.broker.producer(transactional_id=self.servers.new_name("t"))
        producer.init_transactions(60)
        producer.begin_transaction()
        for id in self.some_ids():
            self.send(id, producer)
        producer.abort_transaction(60)
        return happened()

    @act
    def key_is_renamed(self) -> Happening | None:
        """In one record; then it expires, as all others do."""
        self.commit_open()
        if self.is_away or not self.is_there:
            return None
        self.send(self.some_ids()[0], more="?")

        def expire() -> None:
            self.broker.delete_records(self.topic, self.ends())
            self.hide(*self.units)
            self.project.write_code(reads=f"{self.code}, on_expired='skip')")

        return happened("MALFORMED_RECORD", expire)

    @act
    def topic_is_compacted(self) -> Happening | None:
        if self.is_away or not self.is_there:
            return None
        self.set_config(self.topic, "cleanup.policy", "compact,delete")
        back = lambda: self.set_config(self.topic, "cleanup.policy", "delete")  # noqa: E731
        return happened("TOPIC_COMPACTED", back, passing=True)

    @act
    def topic_is_deleted(self) -> Happening | None:
        self.commit_open()
        if self.is_away or not self.is_there:
            return None
        self.broker.delete_topic(self.topic)
        self.is_there = False
        self.hide(*self.units)
        return happened("NO_TOPIC TOPIC_GONE KAFKA_AWAY", final=True)

    @act
    def topic_is_made_again(self) -> Happening | None:
        """With as many records, or more."""
        self.commit_open()
        if self.is_away or not self.is_there:
            return None
        self.broker.delete_topic(self.topic)
        self.broker.create_topic(self.topic, partitions=self.partitions)
        self.hide(*self.units)
        for _ in range(self.sent + 2):
            self.send(self.project.new_ids(1)[0])
        return happened("TOPIC_RECREATED", final=True)


class KafkaSinkSide(KafkaSide, SinkSide):
    kind = "kafka-topic"
    in_flight: ClassVar[str] = "KAFKA_AWAY"

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        super().__init__(dice, servers)
        self.topic = servers.new_name("rows")
        self.marks = f"{self.topic}.tidegate.orders.rows"
        self.names = ("'rows'", "sink rows", self.topic)

    def declared(self) -> tuple[str, str]:
        told = f'"{self.topic}", servers="{self.broker.servers}", partitions=2, transaction_timeout=30'
        return self.SOURCE, f"KafkaTopic({told})"

    def there(self, topic: str) -> bool:
        return topic in self.broker.admin().list_topics(timeout=30).topics

    def published(self) -> Table:
        if not self.there(self.topic):
            return Counter()
        rows = (json.loads(record.value) for record in self.broker.read(self.topic) if record.value)
        return Counter((row["id"], row["n"], row["v"]) for row in rows)

    def wrong(self, succeeded: bool) -> list[str]:
        return [] if self.is_away else super().wrong(succeeded)

    def by_hand(self, change: Callable[[], object]) -> Happening | None:
        if self.is_away or not self.there(self.topic):
            return None
        self.settle()
        change()
        self.table = self.published()
        return happened()

    @act
    def others_send(self) -> Happening | None:
        rows = [dict(zip(NAMES, row_of(id), strict=True)) for id in self.some_ids()]
        return self.by_hand(lambda: self.broker.send(self.topic, [(None, json.dumps(row)) for row in rows]))

    @act
    def records_expire(self) -> Happening | None:
        def expire() -> None:
            found = {record.partition: record.offset + 1 for record in self.broker.read(self.topic)}
            if found:
                self.broker.delete_records(self.topic, found)

        return self.by_hand(expire)

    @act
    def partitions_are_added(self) -> Happening | None:
        def add() -> None:
            total = len(self.broker.admin().list_topics(self.topic, timeout=30).topics[self.topic].partitions)
            self.broker.add_partitions(self.topic, total + 1)

        return self.by_hand(add)

    @act
    def records_are_too_large(self) -> Happening | None:
        if self.is_away or not self.there(self.topic):
            return None
        self.set_config(self.topic, "max.message.bytes", "120")
        back = lambda: self.set_config(self.topic, "max.message.bytes", "1048588")  # noqa: E731
        return happened("RECORD_TOO_LARGE RECORD_REFUSED BAD_TOPIC", back, passing=True)

    @act
    def topic_is_made_again(self) -> Happening | None:
        return self._topic_is_gone(again=True)

    @act
    def topic_is_deleted(self) -> Happening | None:
        return self._topic_is_gone(again=False)

    def _topic_is_gone(self, *, again: bool) -> Happening | None:
        if self.is_away or not self.there(self.topic):
            return None
        self.settle()
        if not self.done:
            return None
        self.broker.delete_topic(self.topic)
        if again:
            self.broker.create_topic(self.topic, partitions=2)
        self.replaced(Counter(), 0)
        return happened("TOPIC_RECREATED OTHER_TABLE NO_TOPIC TABLE_DAMAGED", final=True)

    @act
    def marks_are_deleted(self) -> Happening | None:
        if self.is_away or not self.there(self.marks):
            return None
        self.settle()
        if not self.done:
            return None
        self.broker.delete_topic(self.marks)
        return happened("TABLE_DAMAGED MARKS_GONE BAD_MARKS", final=True)
