"""Our sinks keep the contract of tidegate.testing; and what Delta tables promise beyond it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn, only_with_all
from tidegate.connectors.sink import Sink, Staging
from tidegate.delta import Location, open_table, read_table
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.testing import SinkContract

pytestmark = in_turn(seconds=110)


class DeltaContract(SinkContract):
    crash_lines = 20

    def rows(self) -> list[tuple[int, str]]:
        table = open_table(Location(self.target))
        return [] if table is None else [(row["k"], row["v"]) for row in read_table(table).to_pylist()]

    def unfit(self, rows: Any) -> Any:
        return rows.selectExpr("cast(k AS string) AS k", "v", "p", "1 AS extra")

    def refused(self, rows: Any) -> Any:
        self.spark.sql(f"ALTER TABLE delta.`{self.target}` ADD CONSTRAINT plain CHECK (v <> 'refused')")
        return rows.selectExpr("k", "'refused' AS v", "p")

    @property
    def target(self) -> str:
        return self.sink().target(self.place())

    def test_nobody_finds_files_that_spark_leaves_beside_data(self) -> None:
        self.publish(1, self.stage(1, 1, 2))
        assert not list(Path(self.target).rglob("*.crc")), "they double the files, and nobody syncs them"

    def test_somebody_elses_commit_in_between_is_a_lost_race_then_a_success(self) -> None:
        from deltalake import write_deltalake

        self.publish(1, self.stage(1, 1))
        head, batch = self.sink().head(self.context), self.stage(2, 2)
        write_deltalake(self.target, self.frame(9, value="theirs").toArrow(), mode="append")
        assert self.publish(2, batch, head=head) is None
        self.shows((1, "x"), (9, "theirs"))
        assert self.publish(2, batch) is not None
        self.shows((1, "x"), (2, "x"), (9, "theirs"))

    def test_a_pipeline_that_was_started_afresh_is_refused(self) -> None:
        self.publish(3, self.stage(3, 3))
        fresh = self.context_of("p", "another uid")
        for look in (self.sink().check, self.sink().head):
            with pytest.raises(Invalid, match="another pipeline"):
                look(fresh)

    def test_a_first_checkpoint_without_rows_makes_the_table(self) -> None:
        first = self.sink().prepare(self.frame(), self.context, Staging(1, "a"))
        assert first.rows == 0
        assert first.committable is not None
        assert self.publish(1, first.committable) is not None
        assert open_table(Location(self.target)) is not None
        self.shows()

    def test_an_output_that_does_not_fit_is_told_column_by_column(self) -> None:
        self.publish(1, self.stage(1, 1))
        with pytest.raises(Invalid) as refused:
            self.sink().prepare(self.unfit(self.frame(2)), self.context, Staging(2, "a"))
        assert "'k' is string; the table has int" in refused.value.what
        assert "'extra' (int) is not in the table" in refused.value.what


class TestDeltaAppend(DeltaContract):
    def sink(self) -> Sink:
        return DeltaAppend("target")


@only_with_all
class TestDeltaAppendPartitioned(DeltaContract):
    def sink(self) -> Sink:
        return DeltaAppend("target", partition_by=["p"])


class TestDeltaUpsert(DeltaContract):
    def sink(self) -> Sink:
        return DeltaUpsert("target", keys=["k"])


class TestDeltaUpsertPartitioned(DeltaContract):
    def sink(self) -> Sink:
        return DeltaUpsert("target", keys=["k"], order_by=["v"], partition_by=["p"])
