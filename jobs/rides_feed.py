"""Sends rides to the topic `rides`, for `jobs/rides.py` to read: the same rides on every machine.

    python -m jobs.rides_feed --live 600      those of the last 600 seconds, then each second's when it is over
    python -m jobs.rides_feed --seconds 60    the next 60 seconds' worth, regardless of the clock

The rides of second *n* depend only on *n* and on how many there are, so the number of the last second determines what
must be in the tables. One ride in 30 is sent twice; one in 20 comes some seconds late.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.config import load_settings

TOPIC = "rides"
STATIONS = ("airport", "castle", "harbour", "market", "museum", "park", "stadium", "university")
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
_SECOND = "second"
"""The header of each record: the number of its second, by which a later feed continues."""


def rides(second: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the rides that are sent in a second: those that end in it, but for late ones, and late ones from before."""
    for number in range(max(0, second - 9), second + 1):
        for index in range(count):
            seed = hashlib.sha256(f"{number}/{index}".encode()).digest()
            delay = seed[0] % 9 + 1 if seed[1] % 20 == 0 else 0
            copies = (number + delay == second) + (number == second - 1 and seed[2] % 30 == 0 and delay == 0)
            for _ in range(copies):
                yield _ride(number, number * count + index, seed)


def _ride(second: int, ride_id: int, seed: bytes) -> dict[str, Any]:
    minutes = 2 + seed[3] % 58 + seed[4] % 4 / 4
    return {
        "ride_id": ride_id,
        "station": STATIONS[seed[5] % len(STATIONS)],
        "minutes": minutes,
        "price": f"{1 + minutes * 0.25:.2f}",
        "ended_at": (START + timedelta(seconds=second, milliseconds=seed[6] * 3)).isoformat(timespec="milliseconds"),
    }


class Feed:
    """A producer of rides, and the number of the last second that was sent."""

    def __init__(self, count: int) -> None:
        from confluent_kafka import Producer

        self.options = load_settings(start=Path(__file__).parent).place().connection("events")
        self.count = count
        self.producer = Producer({**self.options, "enable.idempotence": True, "compression.type": "lz4"})
        self.last = self._last_second()

    def send(self, first: int, last: int) -> None:
        """Send the rides of these seconds."""
        for second in range(first, last + 1):
            for ride in rides(second, self.count):
                value, key, headers = json.dumps(ride).encode(), ride["station"].encode(), {_SECOND: str(second)}
                self.producer.produce(TOPIC, value, key, headers=headers)
            self.producer.flush()
        self.last = max(self.last, last)

    def _last_second(self) -> int:
        """Return the highest second among the last records of all partitions; 0 if there are none. Make the topic if it
        is missing."""
        from confluent_kafka import Consumer, TopicPartition
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self.options)
        if TOPIC not in admin.list_topics(timeout=30).topics:
            admin.create_topics([NewTopic(TOPIC, num_partitions=4)])[TOPIC].result(30)
            return 0
        consumer = Consumer({**self.options, "group.id": "rides-feed", "enable.auto.commit": False})
        last = 0
        for partition in admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions:
            first, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)
            if first == end:
                continue
            consumer.assign([TopicPartition(TOPIC, partition, end - 1)])
            record = consumer.poll(30)
            if record is not None and record.error() is None:
                last = max(last, int(dict(record.headers() or [])[_SECOND]))
        consumer.close()
        return last


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m jobs.rides_feed", description="Send rides to Kafka.")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--live", type=int, metavar="SECONDS", help="begin with the last SECONDS, then send until Ctrl-C")
    how.add_argument("--seconds", type=int, help="send the rides of the next SECONDS, and end")
    parser.add_argument("--rides", type=int, default=40, help="rides that end in each second; 40")
    given = parser.parse_args(arguments)
    feed = Feed(given.rides)
    if given.seconds is not None:
        feed.send(feed.last + 1, feed.last + given.seconds)
        print(f"{TOPIC}: sent up to second {feed.last:,}")
        return
    while True:
        now = (seams.now() - START) // timedelta(seconds=1)
        feed.send(max(feed.last + 1, now - given.live), now)
        seams.sleep(1)


if __name__ == "__main__":
    main()
