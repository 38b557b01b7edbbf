"""A server of PostgreSQL for all tests of a process, started when the first test asks for it."""

from collections.abc import Iterator

import pytest

from tests.kit.postgres import MISSING, Server, programs, server
from tests.kit.postgres_sinks import connections
from tidegate.records.place import Place


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[Server]:
    if programs() is None:
        pytest.skip(MISSING)
    with server("wal_level=logical", "fsync=off", "max_wal_senders=4", "max_replication_slots=8") as started:
        yield started


@pytest.fixture
def postgres(shared_postgres: Server) -> Server:
    """The server with an empty database."""
    shared_postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "DROP SCHEMA IF EXISTS other CASCADE")
    return shared_postgres


@pytest.fixture
def place(postgres: Server, tmp_path) -> Place:
    return Place(str(tmp_path), connections=connections(postgres))
