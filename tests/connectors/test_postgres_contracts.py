"""The sinks and sources of PostgreSQL keep the contracts that tidegate.testing asks of everybody's."""

from __future__ import annotations

import pytest

from tests.kit.postgres import PASSWORD
from tests.kit.postgres_sinks import CONNECTION, connections
from tests.kit.sampling import ALL, in_turn
from tidegate.records.place import Place
from tidegate.sinks import PostgresAppend, PostgresUpsert
from tidegate.sources import PostgresChanges, PostgresTable
from tidegate.testing import SinkContract, SourceContract

pytestmark = in_turn(seconds=140)


SLOT = "tidegate_contract"


class OnPostgres:
    """A connector on the tests' server."""

    secrets = (PASSWORD,)

    @pytest.fixture(autouse=True)
    def _set_up_folder(self, tmp_path, spark, postgres):
        self.postgres = postgres
        self.set_up(tmp_path, spark)

    def place(self):
        return Place(str(self.folder), connections=connections(self.postgres))


class PostgresSinkContract(OnPostgres, SinkContract):
    crash_lines = 20

    def rows(self):
        if self.postgres.run("SELECT to_regclass('t')") == [(None,)]:
            return []
        return self.postgres.run("SELECT k, v FROM t")

    def unfit(self, rows):
        return rows.selectExpr("cast(k AS string) AS k", "v", "p", "1 AS extra")

    def refused(self, rows):
        self.postgres.run("ALTER TABLE t ADD CHECK (v <> 'refused')")
        return rows.selectExpr("k", "'refused' AS v", "p")


class TestAppend(PostgresSinkContract):
    def sink(self):
        return PostgresAppend("t", connection=CONNECTION)


class TestUpsert(PostgresSinkContract):
    def test_a_process_that_dies_at_any_step_of_a_checkpoint_loses_and_doubles_nothing(self):
        if not ALL:
            pytest.skip("as for rows that are added: ALL=1")
        super().test_a_process_that_dies_at_any_step_of_a_checkpoint_loses_and_doubles_nothing()

    def sink(self):
        return PostgresUpsert("t", connection=CONNECTION, keys=["k"], order_by=["v"], allow_rollback=True)

    @pytest.mark.skip(reason="a table of which rows are taken back has one pipeline only")
    def test_pipelines_whose_names_are_prefixes_do_not_see_each_other(self):
        pass

    @pytest.mark.skip(reason="a table of which rows are taken back has one pipeline only")
    def test_a_discarded_attempt_takes_only_its_own_files(self):
        pass


class TestTable(OnPostgres, SourceContract):
    def source(self):
        return PostgresTable("t", connection=CONNECTION, xid_column="xid", max_rows=2)

    def create(self):
        self.postgres.run(
            "CREATE TABLE t (id bigint, name text, xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
            "CREATE INDEX ON t (xid)",
        )

    def put(self, rows):
        insert(self.postgres, rows)

    def spoil(self):
        self.postgres.run("DELETE FROM t WHERE id = 0")


class TestChanges(OnPostgres, SourceContract):
    @pytest.fixture(autouse=True)
    def _set_up_folder(self, tmp_path, spark, postgres):
        drop = f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        postgres.run(drop, "DROP PUBLICATION IF EXISTS contract")
        self.postgres = postgres
        self.set_up(tmp_path, spark)
        yield
        postgres.run(drop, "DROP PUBLICATION IF EXISTS contract")

    def source(self):
        return PostgresChanges("t", connection=CONNECTION, slot=SLOT, publication="contract")

    def create(self):
        self.postgres.run(
            "CREATE TABLE t (id bigint, name text)",
            "CREATE PUBLICATION contract FOR TABLE t",
            f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
        )

    def put(self, rows):
        insert(self.postgres, rows)

    def spoil(self):
        self.postgres.run(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())")


def insert(postgres, rows):
    for id, name in rows:
        postgres.run(f"INSERT INTO t VALUES ({id}, {'NULL' if name is None else repr(name)})")
