"""`tidegate backfill` without Spark: what it tells before it does anything, and what a live backfill forbids."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.shop import CODE, SHOP, Shop
from tests.kit.sqlite_shop import SqliteShop
from tidegate.backfill import begin, discard
from tidegate.backfill.discard import release_name
from tidegate.cli.lifecycle import backfill as command
from tidegate.ledger import Ledger
from tidegate.lifecycle import control, savepoint
from tidegate.records.records import ChangeByHand
from tidegate.sinks import DeltaAppend, DeltaUpsert, FileExport, KafkaTopic, PostgresAppend, PostgresUpsert

TOLD = "copied stays as it is: its rows cannot be removed, and none are written again."
FOR_GOOD = ("cancel", CODE, "-D", "retention=never_retain", "--yes")


@pytest.fixture
def sqlite_shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteShop:
    """Two checkpoints, on a Delta table and in SQLite; and a backfill has nothing to compute, so it needs no Spark."""
    shop = SqliteShop(folder)
    for _ in range(2):
        shop.checkpoint()
    monkeypatch.setattr(command, "replay_remaining", lambda *_, **__: (False, []))
    return shop


def words(text: str) -> str:
    return " ".join(text.split())


def test_what_stays_as_it_is_is_told_before_anything_is_done(sqlite_shop: SqliteShop, tidegate: Any) -> None:
    plainly = words(tidegate("backfill", CODE, "--from", "2", "--dry-run").out)
    assert TOLD in plainly
    assert "replaces, later good, in one commit each" in plainly
    assert tidegate("backfill", CODE, "--from", "2", "--dry-run", "--json").json["unchanged_sinks"] == ["copied"]
    assert sqlite_shop.coordinator.ledger.lines() == [], "it was only asked about"

    assert words(tidegate("backfill", CODE, "--from", "2").out).startswith(TOLD)
    said = words(tidegate("backfill", CODE, "--swap", "--yes").out)
    assert said.index(TOLD) < said.index("is swapped in")


def test_what_is_in_the_way_of_a_swap_is_told_and_no_swap_offered(
    sqlite_shop: SqliteShop, folder: Path, tidegate: Any
) -> None:
    offer = "--swap # swap it in"
    assert offer in words(tidegate("backfill", CODE, "--from", "2", "--name", "fix").out)
    assert tidegate("backfill", CODE, "--json").json["problems"] == []
    tidegate("backfill", CODE, "--discard", "fix")

    said = words(tidegate("backfill", CODE, "--from", "beginning").out)
    assert [line.origin for line in sqlite_shop.coordinator.ledger.lines()] == [0], "not even the first one counts"
    assert "Blocks its swap: it has completed no checkpoint yet" in said
    assert offer not in said
    sqlite_shop.checkpoint(publish=False)
    (log,) = (path for path in folder.rglob("_delta_log") if path.parent.name == "good")
    shutil.rmtree(log.parent)
    (why,) = tidegate("backfill", CODE, "--json").json["problems"]
    assert why.startswith("table 'good'")
    assert "is missing" in why
    assert "put it back from a copy" in why


@pytest.mark.parametrize("dry", [True, False])
def test_what_cannot_be_begun_from_is_refused_with_the_same_words_by_the_dry_run(
    folder: Path, tidegate: Any, dry: bool
) -> None:
    shop = Shop(folder)
    for _ in range(2):
        shop.checkpoint()
    shop.coordinator.abort(shop.trigger().id, "CANCELLED", "by hand")
    shop.coordinator.roll_back(1, run="back", by="ann")
    for origin, reason in ((3, "NO_SUCH_CHECKPOINT"), (9, "NO_SUCH_CHECKPOINT"), (2, "DOES_NOT_COUNT")):
        said = tidegate("backfill", CODE, "--from", str(origin), "--json", *(["--dry-run"] if dry else []))
        assert (said.code, said.json["error"]["reason"]) == (1, reason)
        assert f"checkpoint {origin}" in said.json["error"]["message"]


def test_it_stays_as_it_is_and_then_gets_what_is_new(sqlite_shop: SqliteShop, tidegate: Any) -> None:
    tidegate("backfill", CODE, "--from", "2")
    swapped = tidegate("backfill", CODE, "--swap", "--yes", "--json").json
    assert (swapped["unchanged_sinks"], list(swapped["tables"])) == (["copied"], ["good"])
    assert sqlite_shop.copied() == [1, 2]
    id = sqlite_shop.checkpoint()
    assert sqlite_shop.copied() == [1, 2, id]
    assert tidegate("doctor", CODE).code == 0


def test_what_was_changed_by_hand_is_told_by_number_and_author_and_lost_only_by_choice(
    sqlite_shop: SqliteShop, tidegate: Any
) -> None:
    change = ChangeByHand(operator="totals", action="bootstrap", by="mia on laptop")
    id = sqlite_shop.checkpoint(standing=True, by_hand=change)
    told = tidegate("backfill", CODE, "--from", "2", "--dry-run")
    assert told.code == 1
    text = f"Not possible: in checkpoint {id} mia on laptop loaded history into operator 'totals'"
    assert text in words(told.out)
    said = tidegate("backfill", CODE, "--from", "2", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "CANNOT_BACKFILL")
    assert sqlite_shop.coordinator.ledger.lines() == []

    told = tidegate("backfill", CODE, "--from", "2", "--dry-run", "--drop-by-hand")
    assert told.code == 0
    assert f"Is lost: manual changes by mia on laptop in checkpoint {id}" in words(told.out)
    tidegate("backfill", CODE, "--from", "2", "--drop-by-hand", "--cuts", "recorded")
    (line,) = sqlite_shop.coordinator.ledger.lines()
    assert line.cuts == "recorded"


def test_recorded_cuts_are_refused_where_a_checkpoint_is_not_retained(sqlite_shop: SqliteShop, tidegate: Any) -> None:
    ledger = sqlite_shop.coordinator.ledger
    savepoint.create(ledger, "monday", 1, "ann")
    for _ in range(2):
        sqlite_shop.checkpoint()
    plan = Path(ledger.home) / "checkpoints/00000003/plan.json"
    plan.rename(plan.with_name("away"))
    told = tidegate("backfill", CODE, "--from", "monday", "--dry-run", "--cuts", "recorded", "--json")
    assert (told.code, told.json["possible"], told.json["cuts"]) == (1, False, "recorded")
    assert "checkpoint 3, on which 4 rests, is not retained" in told.json["problems"][0]


def test_only_delta_tables_have_shadows() -> None:
    sinks = [
        FileExport("out"),
        KafkaTopic("orders", servers="x:9092"),
        PostgresAppend("orders", connection="shop"),
        PostgresUpsert("totals", connection="shop", keys=["k"]),
        DeltaAppend("a"),
        DeltaUpsert("b", keys=["k"]),
    ]
    assert [sink.shadow("x") is None for sink in sinks] == [True] * 4 + [False] * 2


@pytest.fixture
def shop(folder: Path) -> Shop:
    shop = Shop(folder)
    for _ in range(2):
        shop.checkpoint()
    return shop


def test_a_pipeline_is_not_cancelled_for_good_beneath_its_backfill(shop: Shop, tidegate: Any) -> None:
    line = begin(shop.coordinator, "fix", 1, by="ann")
    said = tidegate(*FOR_GOOD, "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "BACKFILL_IN_PROGRESS")
    assert "--discard fix" in said.json["error"]["help"]
    assert tidegate("stop", CODE, "--drain", "-D", "retention=never_retain", "--yes").code == 1
    assert shop.coordinator.ledger.view().last_id == 2, "nothing was written"
    discard(line, "ann")
    assert tidegate(*FOR_GOOD).code == 0
    said = tidegate("backfill", CODE, "--from", "1", "--json")
    assert said.json["error"]["reason"] == "STOPPED"


def test_nor_beneath_one_that_was_broken_off_as_it_began(
    shop: Shop, tidegate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "create_line", _killed)
    with pytest.raises(KeyboardInterrupt):
        begin(shop.coordinator, "fix", 1, by="ann")
    assert tidegate(*FOR_GOOD).code == 1
    release_name(shop.coordinator.ledger, "fix", "ann")
    assert tidegate(*FOR_GOOD).code == 0


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_clean_up_that_a_backfill_has_held_up_continues_when_it_is_discarded(shop: Shop, tidegate: Any) -> None:
    """It began just before the pipeline was cancelled, and its pin was seen by nobody."""
    line = begin(shop.coordinator, "fix", 1, by="ann")
    ledger = shop.coordinator.ledger
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "refuse_backfills", lambda ledger: None)
        assert tidegate(*FOR_GOOD).code == 0
    assert 1 in ledger.ids()
    discard(line, "ann")
    assert 1 not in ledger.ids()


def test_the_line_of_a_pipeline_with_a_hook_needs_none_of_its_own(folder: Path) -> None:
    shop = Shop(folder, SHOP + "pipeline.hook('model', on_trigger=lambda it: {'at': it.id})\n")
    for _ in range(2):
        shop.checkpoint()
    line = begin(shop.coordinator, "fix", 1, by="ann")
    planned = line.backfill.trigger("replay")
    assert planned.plan.base == 1
