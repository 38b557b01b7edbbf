"""A backfill is killed at every step of its beginning, its swap and its end, and the same command comes again.

Whatever the step was, the tables are in the end those of a pipeline that never had the bug; until the swap is decided
they are as they were.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import ALL
from tests.spark.mended_shop import MODULE, Shop, Shown, always_right
from tidegate import backfill
from tidegate.cli.main import main
from tidegate.testing.crashes import crash_at, crash_at_line, lines_reached, points_reached

FILES = [str(path) for path in Path(backfill.__file__).parent.glob("*.py")]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: Any, spark: Any) -> Shop:
    """A shop whose code is mended, without a backfill yet."""
    shop = Shop(tmp_path_factory.mktemp("begun") / "shop", spark)
    shop.play_with_the_bug(3)
    return shop


@pytest.fixture(scope="module")
def caught_up(tmp_path_factory: Any, begun: Shop) -> Shop:
    """The same shop with a backfill that is ready to be swapped in."""
    shop = begun.copied(tmp_path_factory.mktemp("caught up") / "shop")
    shop.replayed(shop.line("fix", 1))
    return shop


@pytest.fixture(scope="module")
def right(tmp_path_factory: Any, spark: Any) -> Shown:
    return always_right(tmp_path_factory.mktemp("right") / "shop", spark, 3)


def decided(shop: Shop) -> bool:
    plans = [entry.rollback for entry in shop.coordinator().ledger.view().entries if entry.completed]
    return any(rollback is not None and rollback.line is not None for rollback in plans)


def test_killed_at_every_step_of_the_swap(tmp_path: Path, caught_up: Shop, right: Shown) -> None:
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


EVERY = 1 if ALL else 20


def test_killed_at_lines_of_the_swap_and_of_the_end(tmp_path: Path, caught_up: Shop, right: Shown) -> None:
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


def test_killed_at_lines_of_the_beginning(tmp_path: Path, begun: Shop) -> None:
    """It continues where it stopped, or begins anew; in the end the line has what the first one would have had."""
    sample = begun.copied(tmp_path / "sample")
    with lines_reached(FILES) as reached:
        sample.line("fix", 1)
    for number, line in enumerate(reached[::EVERY]):
        shop = begun.copied(tmp_path / f"{number}")
        with crash_at_line(line):
            shop.line("fix", 1)
        again = shop.line("fix", 1)
        assert again.own.ledger.view().last_id == 1, line
        (pin,) = (pin for pin in shop.coordinator().ledger.pins() if pin.kind == "line")
        assert pin.entry == 1, line
        shadow = again.own.graph.sinks["totals"].sink.head(again.own.context("totals"))
        assert (shadow.version, shadow.last) == (0, None), line


def test_a_clean_up_takes_nothing_that_a_swap_is_about_to_name(
    tmp_path: Path, caught_up: Shop, right: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = caught_up.copied(tmp_path / "shop")
    monkeypatch.chdir(shop.root)
    (shop.root / "mended.py").write_text(MODULE)
    with crash_at("S9.decision.before"):
        shop.swap_and_discard("fix")
    place = ["-D", f"root={shop.folder.parent}", "-D", f"data={shop.root}"]
    assert main(["doctor", "mended:pipeline", "--repair", *place]) == 0
    with crash_at("S1.entry.before"):
        shop.swap_and_discard("fix")
    assert main(["doctor", "mended:pipeline", "--repair", *place]) == 0
    shop.swap_and_discard("fix")
    assert shop.shown() == right
