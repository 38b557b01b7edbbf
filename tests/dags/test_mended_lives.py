"""Pipelines that an independent verification saw lose rows, played by a real scheduler, on Spark and PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.dags.server import Airflow
from tests.kit.postgres import Server, server
from tests.kit.sampling import only_with_all
from tidegate.history.backfill import backfill_statuses
from tidegate.ledger.ledger import open_ledger

pytestmark = only_with_all

HEAD = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files, PostgresChanges

pipeline = Pipeline({name!r}, interval="never", num_retained={num_retained})
"""
TAIL = "dag = build_dag(pipeline)\n"


class Life:
    """A pipeline of its own, with a landing folder; the test feeds it and triggers its runs."""

    def __init__(self, airflow: Airflow, name: str, body: str, num_retained: int = 20) -> None:
        self.airflow, self.name, self.folder = airflow, name, airflow.project.folder
        self.landing = self.folder / name / "in"
        self.landing.mkdir(parents=True)
        text = HEAD.format(name=name, num_retained=num_retained) + body + TAIL
        (airflow.project.dags / f"dag_{name}.py").write_text(text)
        airflow.known(name)

    def feed(self, *rows: dict[str, Any]) -> None:
        path = self.landing / f"{len(list(self.landing.iterdir())):05d}.json"
        path.with_suffix(".new").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        path.with_suffix(".new").rename(path)

    def run(self, dag: str = "", **conf: Any) -> dict[str, str]:
        """A run of its DAG from beginning to end; returns what became of its tasks."""
        run = self.airflow.trigger(dag or self.name, conf)
        assert run.ended() == "success", run.tasks()
        return run.tasks()

    def rows(self, table: str) -> list[dict[str, Any]]:
        return list(DeltaTable(str(self.folder / self.name / table)).to_pyarrow_table().to_pylist())

    @property
    def ledger(self) -> Any:
        return open_ledger(str(self.folder / "ledger"), self.name)

    def tidegate(self, *arguments: str) -> Any:
        command = [sys.executable, "-m", "tidegate", *arguments, "--json"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server("wal_level=logical") as started:
        yield started


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Airflow]:
    airflow = Airflow(tmp_path_factory.mktemp("airflow"))
    settings = airflow.project.folder / "tidegate.toml"
    options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in postgres.options.items())
    settings.write_text(f"{settings.read_text()}\n[connections.shop]\n{options}")
    suites = airflow.project.folder / "include" / "expectations"
    suites.mkdir(parents=True)
    (suites / "orders.yaml").write_text(
        "name: orders\nexpectations:\n"
        "  - {type: expect_column_values_to_be_between, kwargs: {column: v, min_value: 0}, id: positive}\n"
    )
    with airflow:
        yield airflow


def test_a_country_stays_while_one_customer_is_left_in_it(played: Airflow) -> None:
    life = Life(
        played,
        "moves",
        """
rows = pipeline.source("in", Files("moves/in/*.json", schema="id long, country string, version long"))
now = rows.latest(by="id", order_by="version", uid="now")
now.select("country").sink("countries", DeltaUpsert("moves/countries", keys=["country"]))
""",
    )
    life.feed({"id": 1, "country": "AT", "version": 1}, {"id": 2, "country": "AT", "version": 1})
    life.run()
    life.feed({"id": 1, "country": "DE", "version": 2})
    life.run()
    assert {row["country"] for row in life.rows("countries")} == {"AT", "DE"}
    life.feed({"id": 2, "country": "DE", "version": 2})
    life.run()
    assert {row["country"] for row in life.rows("countries")} == {"DE"}


def test_a_released_row_is_in_the_table_or_in_quarantine_with_the_reason(played: Airflow) -> None:
    life = Life(
        played,
        "late",
        """
rows = pipeline.source("in", Files("late/in/*.json", schema="id long, v double, at timestamp"), event_time="at")
good = rows.gate(Expectations("orders", on_failure="quarantine"), name="checked")
good.deduplicate(by="id", within="1 hour", uid="once").sink("once", DeltaAppend("late/once"))
""",
    )
    life.feed({"id": 1, "v": 1, "at": "2026-03-01T10:00:00Z"}, {"id": 2, "v": -1, "at": "2026-03-01T10:05:00Z"})
    life.run()
    life.feed({"id": 3, "v": 1, "at": "2026-03-01T11:30:00Z"}, {"id": 4, "v": -1, "at": "2026-03-01T11:40:00Z"})
    life.run()
    looked = life.tidegate("quarantine", "release", "late", "checked", "--all", "--set", "v=1", "--dry-run")
    assert (looked["rows"], looked["expected"]["counts"], sum(looked["expected"]["not_released"].values())) == (2, 1, 1)
    life.tidegate("quarantine", "release", "late", "checked", "--all", "--set", "v=1")
    life.run()
    assert sorted(row["id"] for row in life.rows("once")) == [1, 3, 4]
    aside = DeltaTable(str(life.folder / "ledger" / "late" / "quarantine" / "checked")).to_pyarrow_table().to_pylist()
    left = {row["id"]: row["_tidegate_stays"] for row in aside if row["_tidegate_settled"] is None}
    assert list(left) == [2]
    assert "too late for deduplicate 'once'" in left[2]


def run_until_all_came(life: Life, count: int) -> list[int]:
    """Run the pipeline for as long as each run brings something; returns the ids in its table."""
    ids = sorted(row["id"] for row in life.rows("every"))
    while len(ids) < count:
        life.run()
        now = sorted(row["id"] for row in life.rows("every"))
        assert len(now) > len(ids), f"nothing more comes: {sorted(set(range(count)) - set(now))} are missing"
        ids = now
    return ids


def test_every_transaction_of_a_slot_comes_whatever_the_cut_and_after_a_rollback(
    played: Airflow, postgres: Server
) -> None:
    postgres.run(
        "CREATE TABLE moved (id bigint PRIMARY KEY, note text)",
        "CREATE PUBLICATION moved FOR TABLE moved",
        "SELECT pg_create_logical_replication_slot('moved', 'pgoutput')",
    )
    life = Life(
        played,
        "slot",
        """
changes = PostgresChanges("moved", connection="shop", slot="moved", publication="moved", max_bytes=700)
pipeline.source("in", changes).sink("every", DeltaAppend("slot/every"))
""",
        num_retained=3,
    )
    for id in range(40):
        postgres.run(f"INSERT INTO moved VALUES ({id}, 'row {id}')")
    life.run()
    assert run_until_all_came(life, 40) == list(range(40))
    oldest = min(id for id in life.ledger.ids() if life.ledger.is_retained(id) and id)
    life.tidegate("rollback", "dags.dag_slot:pipeline", "--to", str(oldest), "--yes")
    assert run_until_all_came(life, 40) == list(range(40))


def test_a_backfill_goes_by_the_clock_of_what_it_replays(played: Airflow) -> None:
    life = Life(
        played,
        "clocked",
        """
rows = pipeline.source("in", Files("clocked/in/*.json", schema="id long, k string", max_files=1))
rows.deduplicate(by="k", state_ttl="6 s", uid="firsts").sink("firsts", DeltaAppend("clocked/firsts"))
seconds = rows.window(tumbling="5 s", by="k", time="processing", uid="seconds", n="count(*)")
seconds.sink("seconds", DeltaAppend("clocked/seconds"))
""",
    )
    for id in range(6):
        life.feed({"id": id, "k": "a"}, {"id": id, "k": "b"})
        life.run()
    before = {table: sorted(map(repr, life.rows(table))) for table in ("firsts", "seconds")}
    assert len(before["seconds"]) > 2, "windows have closed on the way"
    tasks = life.run("clocked__backfill", **{"from": "1", "diff": "seconds", "cuts": "recorded"})
    assert (tasks["replay"], tasks["compare"]) == ("success", "success")
    (line,) = backfill_statuses(life.ledger, {})
    assert line.last_comparison is not None
    changed = {name: (table.rows_removed, table.rows_added) for name, table in line.last_comparison.tables.items()}
    assert set(changed.values()) == {(0, 0)}, changed
    assert {table: sorted(map(repr, life.rows(table))) for table in before} == before
