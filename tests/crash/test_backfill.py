"""A backfill is killed at every step of its beginning, its swap and its end, and the same command comes again.

Whatever the step was, the tables are in the end those of a pipeline that never had the bug; until the swap is decided
they are as they were.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.thirty_days import ThirtyDays, a_process
from tests.kit.sampling import ALL, in_turn
from tests.spark.mended_shop import DAYS, MODULE, MendedShop, OneSession, Shown, always_right, never
from tidegate import backfill
from tidegate.backfill import discard, pause_pipeline, release_pipeline, swap
from tidegate.cli.main import main
from tidegate.errors import Rejected
from tidegate.execution.loop import Observer, Schedule, run_checkpoints
from tidegate.testing.crashes import crash_at, crash_at_line, lines_reached, points_reached

pytestmark = in_turn(seconds=35)

FILES = [str(path) for path in Path(backfill.__file__).parent.glob("*.py")]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: Any, spark: Any) -> MendedShop:
    """A shop whose code is mended, without a backfill yet."""
    shop = MendedShop(tmp_path_factory.mktemp("begun") / "shop", spark)
    shop.play_with_the_bug(3)
    return shop


@pytest.fixture(scope="module")
def caught_up(tmp_path_factory: Any, begun: MendedShop) -> MendedShop:
    """The same shop with a backfill that is ready to be swapped in."""
    shop = begun.copied(tmp_path_factory.mktemp("caught up") / "shop")
    shop.replayed(shop.line("fix", 1))
    return shop


@pytest.fixture(scope="module")
def right(tmp_path_factory: Any, spark: Any) -> Shown:
    return always_right(tmp_path_factory.mktemp("right") / "shop", spark, 3)


def decided(shop: MendedShop) -> bool:
    plans = [entry.rollback for entry in shop.coordinator().ledger.view().entries if entry.completed]
    return any(rollback is not None and rollback.line is not None for rollback in plans)


def test_killed_at_every_step_of_the_swap(tmp_path: Path, caught_up: MendedShop, right: Shown) -> None:
    wrong, sample = caught_up.shown(), caught_up.copied(tmp_path / "sample")
    with points_reached() as points:
        sample.swap_and_discard("fix")
    assert {"S9.decision.before", "S9.decision.after", "S10.publish.after", "R1.pin.after"} <= set(points)
    for number, point in enumerate(points):
        shop = caught_up.copied(tmp_path / f"{number}")
        with crash_at(point, points[:number].count(point)):
            shop.swap_and_discard("fix")
        if not decided(shop):
            assert shop.shown() == wrong, point
        shop.swap_and_discard("fix")
        assert shop.shown() == right, point


def test_a_pipeline_does_not_wait_for_a_swap_whose_process_has_died(tmp_path: Path, caught_up: MendedShop) -> None:
    shop = caught_up.copied(tmp_path / "shop")
    with a_process(1), crash_at("S6.ack.before"):
        shop.swap_and_discard("fix")
    assert [entry.rollback is not None for entry in shop.coordinator().ledger.view().still_open()] == [True]

    class Impatient(Observer):
        def waiting(self, why: str) -> None:
            raise AssertionError(why)

    shop.feed(DAYS[3])
    with a_process(1), pytest.raises(AssertionError, match="waits for checkpoint 4"):
        run_checkpoints(shop.coordinator(), OneSession(shop.spark), Schedule(checkpoints=1), Impatient())
    with a_process(2):
        (outcome,) = run_checkpoints(shop.coordinator(), OneSession(shop.spark), Schedule(checkpoints=1), Impatient())
    assert outcome.state == "completed"


def test_the_story_of_thirty_days_can_be_told(tmp_path: Path, spark: Any) -> None:
    """Of three of them, and of one of its points: `make matrix BACKFILL=1` tells all."""
    story = ThirtyDays(tmp_path, spark, days=3)
    points = story.points()
    assert {"S4.stage.after", "S9.decision.after", "S10.publish.after"} <= set(points)
    assert story.tell(points[len(points) // 2], points[: len(points) // 2].count(points[len(points) // 2])) == ""


EVERY = 1 if ALL else 20


def test_killed_at_lines_of_the_swap_and_of_the_end(tmp_path: Path, caught_up: MendedShop, right: Shown) -> None:
    """ALL=1: at every line of the package."""
    wrong, sample = caught_up.shown(), caught_up.copied(tmp_path / "sample")
    with lines_reached(FILES) as reached:
        sample.swap_and_discard("fix")
    for number, line in enumerate(reached[::EVERY]):
        shop = caught_up.copied(tmp_path / f"{number}")
        with crash_at_line(line):
            shop.swap_and_discard("fix")
        if not decided(shop):
            assert shop.shown() == wrong, line
        shop.swap_and_discard("fix")
        assert shop.shown() == right, line
        assert not list((tmp_path / f"{number}").rglob("lines/fix/shop")), line


def test_killed_at_lines_of_the_beginning(tmp_path: Path, begun: MendedShop) -> None:
    """It continues where it stopped, or begins anew; in the end the line has what the first one would have had."""
    sample = begun.copied(tmp_path / "sample")
    with lines_reached(FILES) as reached:
        sample.line("fix", 1)
    for number, line in enumerate(reached[::EVERY]):
        shop = begun.copied(tmp_path / f"{number}")
        with crash_at_line(line):
            shop.line("fix", 1)
        again = shop.line("fix", 1)
        assert again.backfill.ledger.view().last_id == 1, line
        (pin,) = (pin for pin in shop.coordinator().ledger.pins() if pin.kind == "line")
        assert pin.entry == 1, line
        shadow = again.backfill.graph.sinks["totals"].sink.head(again.backfill.context("totals"))
        assert (shadow.version, shadow.last_entry) == (0, None), line


def test_a_clean_up_takes_nothing_that_a_swap_is_about_to_name(
    tmp_path: Path, caught_up: MendedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = caught_up.copied(tmp_path / "shop")
    monkeypatch.chdir(shop.root)
    (shop.root / "mended.py").write_text(MODULE)
    before = set(shop.folder.glob("state/**/*.parquet"))
    with crash_at("S9.decision.before"):
        shop.swap_and_discard("fix")
    copied = set(shop.folder.glob("state/**/*.parquet")) - before
    assert copied
    for path in copied:  # the swap was broken off days ago, and is tried again now
        os.utime(path, (time.time() - 200_000,) * 2)
    place = ["-D", f"root={shop.folder.parent}", "-D", f"data={shop.root}"]
    assert main(["doctor", "mended:pipeline", "--repair", *place]) == 0
    assert copied <= set(shop.folder.glob("state/**/*.parquet"))


@pytest.mark.parametrize("how", ["retract", "discard", "keep"])
def test_what_others_have_committed_since_is_asked_about(
    tmp_path: Path, caught_up: MendedShop, right: Shown, how: Any
) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    shop = caught_up.copied(tmp_path / "shop")
    theirs = {"id": 99, "customer": 9, "amount": 9}
    row = pa.table({name: pa.array([value], pa.int64()) for name, value in theirs.items()})
    write_deltalake(str(shop.root / "tables/sales"), row, mode="append")
    wrong, line = shop.shown(), shop.reopened("fix")
    with pytest.raises(Rejected, match="others have committed since"):
        swap(line, by="ann", choices={}, wait=never)
    assert shop.shown() == wrong
    swap(line, by="ann", choices={"sales": how}, wait=never)
    shown = shop.shown()
    assert shown["totals"] == right["totals"]
    expected = {"retract": right["sales"] + Counter([repr(theirs)]), "discard": right["sales"], "keep": wrong["sales"]}
    assert shown["sales"] == expected[how]


def test_a_backfill_rests_on_what_counts_and_is_swapped_in_once(tmp_path: Path, caught_up: MendedShop) -> None:
    shop = caught_up.copied(tmp_path / "shop")
    live, wrong = shop.coordinator(), shop.shown()
    last = live.ledger.view().last_id
    shop.reopened("fix")
    first = swap(shop.reopened("fix"), by="ann", choices={}, wait=never)
    live.roll_back(last, run="back", by="bob")
    assert shop.shown() == wrong, "somebody took it back"
    assert swap(shop.reopened("fix"), by="ann", choices={}, wait=never).id == first.id
    assert shop.shown() == wrong, "to ask once more does not undo that"


def test_a_backfill_of_what_was_rolled_back_is_refused(tmp_path: Path, caught_up: MendedShop) -> None:
    shop = caught_up.copied(tmp_path / "shop")
    shop.coordinator().roll_back(1, run="back", by="bob")
    with pytest.raises(Rejected, match="was rolled back since"):
        swap(shop.reopened("fix"), by="ann", choices={}, wait=never)
    discard(shop.reopened("fix"), "ann")
    assert not list(shop.root.rglob("line-fix"))
    assert all(pin.kind != "line" for pin in shop.coordinator().ledger.pins())


def test_a_pipeline_that_somebody_has_suspended_stays_so(tmp_path: Path, caught_up: MendedShop, right: Shown) -> None:
    shop = caught_up.copied(tmp_path / "shop")
    shop.coordinator().suspend("bob", "looks at something")
    line = shop.reopened("fix")
    pause_pipeline(line, never)
    release_pipeline(line, "not now")
    pause_pipeline(line, never)
    swap(line, by="ann", choices={}, wait=never)
    assert shop.shown() == right
    suspension = shop.coordinator().suspended()
    assert suspension is not None
    assert suspension.cause == "bob"


@pytest.mark.parametrize("suspended", [False, True])
def test_a_swap_is_above_all_numbers_of_its_line(
    tmp_path: Path, caught_up: MendedShop, right: Shown, suspended: bool
) -> None:
    """Rows of states carry numbers, and the highest counts."""
    shop = caught_up.copied(tmp_path / "shop")
    line = shop.reopened("fix")
    while line.backfill.ledger.view().last_id <= shop.coordinator().ledger.view().last_id + 1:
        line.backfill.suspend("ann", "takes a number of the line's")
    if suspended:
        shop.coordinator().suspend("bob", "looks at something")
    swapped = swap(line, by="ann", choices={}, wait=never)
    assert swapped.id > line.backfill.ledger.view().last_id
    assert shop.shown() == right
    assert (shop.coordinator().suspended() is not None) == suspended
