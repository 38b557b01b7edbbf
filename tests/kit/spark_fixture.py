"""Spark for tests. Started when the first test asks for it, stopped when the last one has run.

spark: in this process, one for all tests of it. Not the place for what Connect does otherwise.
connect_spark: a session of the test's own on an embedded server, one server for all tests of the process.
    While it is open, `pyspark.sql.functions` is Connect's: do not ask for both in one test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.kit.jvm import INTERPRETED
from tidegate.spark.server import server as connect_server
from tidegate.spark.session import SparkSettings, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home, conf = tmp_path_factory.mktemp("spark-local"), INTERPRETED
    with session(SparkSettings(mode="local", home=home, master="local[2]", memory="2g", conf=conf)) as opened:
        yield opened


@pytest.fixture(scope="session")
def connect_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSettings]:
    """Settings of the server that this process's tests share; it is started by whoever opens a session."""
    home = tmp_path_factory.mktemp("spark-connect")
    yield SparkSettings(home=home, master="local[2]", memory="1g", idle_timeout=120, conf=INTERPRETED)
    connect_server.stop(home, force=True)


@pytest.fixture
def connect_spark(connect_settings: SparkSettings) -> Iterator[SparkSession]:
    with session(connect_settings) as opened:
        yield opened
