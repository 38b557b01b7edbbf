"""A StatsD server that remembers what it heard, and an Airflow that is told to talk to it."""

from __future__ import annotations

import socket

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

__all__ = ["Listener"]


class Listener:
    """On loopback, by UDP, as StatsD is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tags: bool = False) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        settings = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(self.socket.getsockname()[1])}
        for name, value in (settings | {"INFLUXDB_ENABLED": str(tags)}).items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{name}", value)
        stats.initialize(factory=get_stats_factory(), export_legacy_names=False)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def heard(self) -> dict[str, str]:
        """The last value of each name. On loopback what was sent is there: nothing is waited for."""
        found = {}
        self.socket.setblocking(False)
        while True:
            try:
                name, _, value = self.socket.recv(65536).decode().rpartition(":")
            except BlockingIOError:
                return found
            found[name] = value
