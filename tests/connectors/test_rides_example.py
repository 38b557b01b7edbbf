"""The second example: rides from a real Kafka into a real PostgreSQL and back, compared with what was sent."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jobs.rides_feed import TOPIC, Feed, rides
from tests.kit.kafka import Broker
from tests.kit.postgres import Server
from tests.kit.sampling import in_turn
from tidegate import testing

pytestmark = in_turn(seconds=50)

COUNT = 20
"""Rides that end in each second."""
WATERMARK = timedelta(minutes=1)


class Expected:
    """What must be there after so many seconds of rides."""

    def __init__(self, seconds: int) -> None:
        sent = [ride for second in range(1, seconds + 1) for ride in rides(second, COUNT)]
        self.copies = len(sent)
        self.rides = {ride["ride_id"]: ride for ride in sent}
        self.watermark = max(map(ended_at, self.rides.values())) - WATERMARK

    @property
    def stations(self) -> dict[str, tuple[int, float, Decimal]]:
        found = defaultdict(list)
        for ride in self.rides.values():
            found[ride["station"]].append(ride)
        return {
            station: (len(all), sum(ride["minutes"] for ride in all), sum(Decimal(ride["price"]) for ride in all))
            for station, all in found.items()
        }

    @property
    def per_minute(self) -> Counter[tuple[datetime, str, int]]:
        found = Counter((minute(ride), ride["station"]) for ride in self.rides.values())
        complete = {key: rides for key, rides in found.items() if key[0] + timedelta(minutes=1) <= self.watermark}
        return Counter((*key, rides) for key, rides in complete.items())


def ended_at(ride: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(ride["ended_at"])


def minute(ride: dict[str, Any]) -> datetime:
    return ended_at(ride).replace(second=0, microsecond=0)


@pytest.fixture
def feed(kafka_broker: Broker, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Feed:
    connections = {"events": {"bootstrap.servers": kafka_broker.servers}, "reports": postgres.options}
    monkeypatch.setenv("TIDEGATE_CONNECTIONS", json.dumps(connections))
    return Feed(COUNT)


def test_whatever_crashes_each_ride_is_counted_once_everywhere(
    feed: Feed, kafka_broker: Broker, postgres: Server, spark: Any, tmp_path: Path
) -> None:
    from jobs.rides import pipeline

    crashes = ["S4.stage.after", "S9.decision.before", "S9.decision.after", "S10.publish.before", "S10.publish.after"]
    with testing.run(pipeline, tmp_path, spark=spark) as running:
        for point in crashes:
            feed.send(feed.last + 1, feed.last + 45)
            running.crash_at(point)
        running.checkpoint()
    expected = Expected(feed.last)
    assert expected.copies > len(expected.rides), "none is sent twice"
    found = postgres.run("SELECT ride_id, station, minutes, price, ended_at FROM rides")
    assert Counter(found) == Counter(
        (ride["ride_id"], ride["station"], ride["minutes"], Decimal(ride["price"]), ended_at(ride))
        for ride in expected.rides.values()
    )
    stations = postgres.run("SELECT station, rides, minutes, revenue FROM stations")
    assert {station: tuple(totals) for station, *totals in stations} == expected.stations
    records = [json.loads(record.value or b"") for record in kafka_broker.read("rides.per_minute")]
    assert expected.per_minute, "no minute is complete"
    assert Counter((moment(each["window_start"]), each["station"], each["rides"]) for each in records) == (
        expected.per_minute
    )


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_feed_continues_where_the_last_one_ended(feed: Feed, kafka_broker: Broker) -> None:
    feed.send(feed.last + 1, feed.last + 3)
    again = Feed(COUNT)
    assert again.last == feed.last
    again.send(again.last + 1, again.last + 1)
    sent = [int(dict(record.headers)["second"]) for record in kafka_broker.read(TOPIC)]
    assert sorted(set(sent)) == list(range(min(sent), again.last + 1))


def test_without_its_connections_the_example_is_no_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make run` is without a broker."""
    import runpy

    file = str(Path(__file__).parents[2] / "dags/rides.py")
    monkeypatch.delenv("TIDEGATE_CONNECTIONS", raising=False)
    assert "dag" not in runpy.run_path(file)
