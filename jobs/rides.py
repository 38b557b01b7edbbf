"""Scooter rides from Kafka into PostgreSQL: each ride once, and what each station earns.

    topic rides ──▶ once ──┬──────────────▶ table rides       each ride, once
                           ├─▶ stations ──▶ table stations    rides, minutes and revenue of each station, always current
                           └─▶ minutes ───▶ topic rides.per_minute   how many rides ended in each minute

Run it with `make run-kafka`, which starts a broker and a database of its own. A checkpoint applies its records to both
tables, to the topic and to the operators' state, or to none of them, whatever crashes.
"""

from __future__ import annotations

from tidegate import Pipeline
from tidegate.sinks import KafkaTopic, PostgresAppend, PostgresUpsert
from tidegate.sources import Kafka

# Rides may come up to a minute later than newer ones.
pipeline = Pipeline("rides", interval="1 min", watermark="1 min")

rides = pipeline.source(
    "rides",
    Kafka(
        "rides",
        connection="events",  # where and who: in the setting `connections`, so that no login is in the code
        schema="ride_id long, station string, minutes double, price decimal(8,2), ended_at timestamp",
        max_offsets=200_000,  # per checkpoint
    ),
    event_time="ended_at",
)

# Producers may send a ride twice.
once = rides.deduplicate(by=["ride_id"], within="1 day", uid="once")
stations = once.aggregate(
    by=["station"], rides="count(*)", minutes="sum(minutes)", revenue="sum(price)", uid="stations"
)
minutes = once.window(tumbling="1 min", by=["station"], rides="count(*)", uid="minutes")

once.sink("rides", PostgresAppend("rides", connection="reports"))
stations.sink("stations", PostgresUpsert("stations", keys=["station"], connection="reports"))
minutes.sink("per_minute", KafkaTopic("rides.per_minute", connection="events", key="station", partitions=2))
