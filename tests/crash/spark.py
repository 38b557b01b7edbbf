"""The embedded Spark Connect server of the crash tests, and a session on it for each forked child."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kit.jvm import INTERPRETED, QUICK
from tidegate.spark.conf import SparkSettings, session_conf
from tidegate.spark.server.client import loopback, open_session
from tidegate.spark.server.server import acquire, stop

_open: list[Any] = []


COMPILED = "TIDEGATE_TESTS_COMPILED"
"""A variable for the environment: Spark compiles, as users' does, because there are many rows."""


def settings(home: Path) -> SparkSettings:
    conf = QUICK if os.environ.get(COMPILED) else INTERPRETED
    return SparkSettings(home=home, master="local[2]", memory="1g", idle_timeout=120, conf=conf)


@contextlib.contextmanager
def server(home: Path) -> Iterator[dict[str, Any]]:
    """A server that stays for the length of the block; what a child needs to know to reach it."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with acquire(settings(home)) as info:
        yield {"port": info.port, "token": info.token, "home": str(home), "pid": info.pid}
    stop(home, force=True)


def client(spec: dict[str, Any]) -> Any:
    """A session of this process's own. It ends with the process."""
    conf = session_conf(settings(Path(spec["home"])))
    session = open_session(loopback(spec["port"], spec["token"]), conf, answer_timeout=30, patience=1)
    _open.append(session)  # kept, so that it is not closed behind our back
    return session.__enter__()
