"""A pipeline has had a bug for a while. It is mended; what the bug made is computed again beside it, and swapped in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.sampling import in_turn
from tests.spark.mended_shop import DAYS, MODULE, MendedShop, OneSession, always_right, never
from tests.spark.small_pipeline import SmallPipeline
from tidegate import Pipeline
from tidegate.backfill import begin, discard, replay, swap
from tidegate.backfill.compare import difference_of, differing_rows
from tidegate.cli.main import main
from tidegate.errors import Rejected
from tidegate.execution.loop import Observer, Schedule
from tidegate.history.backfill import backfill_statuses
from tidegate.sinks import DeltaAppend
from tidegate.sources import DeltaTable

pytestmark = in_turn(seconds=40)


@pytest.mark.parametrize("origin", [0, 1])
def test_what_a_bug_made_is_replaced_at_once(tmp_path: Path, spark: Any, origin: int) -> None:
    shop = MendedShop(tmp_path / "shop", spark)
    shop.play_with_the_bug(4)
    wrong = shop.shown()
    line = shop.replayed(shop.line("fix", origin))
    assert shop.shown() == wrong, "nobody sees anything yet"
    shop.play(DAYS[4:5])  # the pipeline continues, and does not wait
    assert states(shop) == [("replaying", (5,))]
    shop.replayed(line)
    assert states(shop) == [("caught_up", ())]
    swapped = swap(line, by="ann", choices={}, wait=never)
    assert swapped.error is None
    assert swapped.savepoint == "before-fix"
    assert shop.shown() == always_right(tmp_path / "right", spark, 5)

    discard(shop.reopened("fix"), "ann")
    shop.play(DAYS[5:])
    assert shop.shown() == always_right(tmp_path / "right too", spark, 6)


def test_a_part_is_computed_for_a_look_and_compared_with_the_tables_as_of_then(tmp_path: Path, spark: Any) -> None:
    shop = MendedShop(tmp_path / "shop", spark)
    shop.play_with_the_bug(5)
    line = shop.line("look", 1)
    line.backfill.larger, line.backfill.until = 1000, line.live.real_entry(3)
    shop.replayed(line)
    assert line.progress().rests_on == 3
    sales = difference_of(line, "sales")
    assert (sales.rows_now, sales.rows_after, sales.rows_removed, sales.rows_added) == (9, 9, 6, 6), (
        "ids 4 to 11, no fives"
    )
    assert {row["id"] for row in differing_rows(line, "sales", 100)} == {4, 6, 7, 8, 9, 11}
    shop.replayed(line)  # nothing is left to do
    assert line.progress().rests_on == 3
    with pytest.raises(Rejected, match="not read yet"):
        swap(line, by="ann", choices={}, wait=never)
    line = shop.replayed(shop.reopened("look"))
    assert swap(line, by="ann", choices={}, wait=never).error is None
    assert shop.shown() == always_right(tmp_path / "right", spark, 5)


def test_a_backfill_reads_larger_ranges_than_the_pipeline_did(tmp_path: Path, spark: Any) -> None:
    shop = MendedShop(tmp_path / "shop", spark, files_at_once=1)
    shop.play_with_the_bug(5)
    line = shop.line("fix", 1)
    line.backfill.larger = 3
    shop.replayed(line)
    ledger = line.backfill.ledger
    files = [entry.plan.sources["rows"].summary for id in ledger.ids() if (entry := ledger.entry(id)) is not None]
    assert [each.partition(",")[0] for each in files[1:]] == ["3 of 4 files", "1 file"], "after the fork"


def test_a_source_that_began_at_the_moment_begins_there_again(tmp_path: Path, spark: Any) -> None:
    def declare(pipeline: Pipeline) -> None:
        rows = pipeline.source("rows", DeltaTable(str(tmp_path / "in"), start="latest"))
        rows.sink("out", DeltaAppend("tables/out"))

    def arrive(id: int) -> None:
        write_deltalake(tmp_path / "in", pa.table({"id": [id]}), mode="append")

    arrive(1)
    shop = SmallPipeline(tmp_path, spark, declare, "shop")
    shop.coordinator().trigger("idle", only_if_new=True)
    for id in (2, 3):
        arrive(id)
        shop.checkpoint()
    line = begin(shop.coordinator(), "again", 0, by="ann")
    replay(line, OneSession(spark), Schedule(), Observer())
    difference = difference_of(line, "out")
    assert (difference.rows_after, difference.rows_removed, difference.rows_added) == (2, 0, 0)


def states(shop: MendedShop) -> list[tuple[str, tuple[int, ...]]]:
    """How the pages, which run no code of the pipeline, tell of its backfills."""
    return [(line.state, line.pending) for line in backfill_statuses(shop.coordinator().ledger, {})]


class TheSession(OneSession):
    """Stands in for those that the command would open."""

    opened: Any = None

    def __enter__(self) -> TheSession:
        return self

    def __exit__(self, *_: object) -> None:
        """It stays open."""

    def cancel(self) -> None:
        raise AssertionError("nobody has pressed Ctrl-C")


def test_the_command_tells_compares_swaps_and_leaves_a_way_back(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tidegate.cli.lifecycle import backfill as command

    monkeypatch.setattr(command, "reused_session", lambda settings: TheSession(spark))
    monkeypatch.chdir(tmp_path)
    shop = MendedShop(tmp_path, spark)
    (tmp_path / "mended.py").write_text(MODULE)
    shop.play_with_the_bug(2)

    def told(*arguments: str) -> Any:
        place = ["-D", f"root={tmp_path}/ledger", "-D", f"data={tmp_path}"]
        code = main([*arguments, *place, "--json"])
        assert code == 0, capsys.readouterr()
        return json.loads(capsys.readouterr().out)

    def backfill_tells(*arguments: str) -> Any:
        return told("backfill", "mended:pipeline", *arguments)

    assert backfill_tells("--from", "first-day", "--dry-run")["tables"] == ["sales", "totals"]
    assert backfill_tells("--from", "first-day")["tables"]["sales"] == {
        "rows_now": 6, "rows_after": 6, "rows_removed": 3, "rows_added": 3
    }  # fmt: skip
    rows = backfill_tells("--diff", "sales", "--limit", "2")["rows"]
    assert [(row["id"], row["side"]) for row in rows] == [(4, "after"), (4, "now")], "one key beside each other"
    assert backfill_tells("--swap", "--yes")["savepoint"] == "before-backfill-1"
    assert shop.shown() == always_right(tmp_path / "right", spark, 2)
    assert backfill_tells("--discard", "backfill-1")["discarded"], "it was, by the swap"
    assert told("doctor", "mended:pipeline")
