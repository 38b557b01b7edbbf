"""What docs/guides/postgres.md tells a user to run, run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.postgres_sinks import CONNECTION
from tidegate.sources import PostgresChanges, PostgresTable, SourceContext
from tidegate.testing.source_contract import MemoryBlobs

GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/postgres.md").read_text()


def statements():
    blocks = re.findall(r"```sql\n(.*?)```", GUIDE, re.DOTALL)
    return [statement.strip() for block in blocks for statement in block.split(";") if statement.strip()]


def test_after_the_statements_of_the_guide_both_sources_plan(postgres, place):
    postgres.run("CREATE TABLE events (id bigint)", "CREATE TABLE orders (id bigint PRIMARY KEY)")
    postgres.run(*statements())
    try:
        context = SourceContext("p", "s", place, MemoryBlobs())
        assert PostgresTable("events", connection=CONNECTION, xid_column="xid").plan(None, context).is_empty
        changes = PostgresChanges(
            "orders", connection=CONNECTION, slot="tidegate_orders", publication="tidegate_orders"
        )
        assert changes.beginning(context)["lsn"] > 0
    finally:
        postgres.run("SELECT pg_drop_replication_slot('tidegate_orders')", "DROP PUBLICATION tidegate_orders")


def test_the_docstrings_of_the_sources_show_the_same_statements():
    for source in (PostgresTable, PostgresChanges):
        shown = [line.strip(" ;") for line in source.__doc__.splitlines() if line.strip().endswith(";")]
        assert shown
        assert set(shown) <= set(statements())
