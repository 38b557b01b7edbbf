"""The shipped example: whoever starts it sees rows of both tables at once, and event time is about now."""

import re
from datetime import datetime, timedelta
from pathlib import Path

from jobs import orders_feed
from tests.kit.example import Expected
from tidegate import seams

ROOT = Path(__file__).resolve().parents[2]
AT = orders_feed.START + 1000 * orders_feed.FILE + timedelta(seconds=7)


def names(paths: list[Path]) -> list[int]:
    return [int(path.stem.partition("-")[2]) for path in paths if path.stem.startswith("orders")]


def test_the_first_checkpoint_of_make_run_has_rows_for_both_tables():
    files = int(re.search(r"orders_feed --live (\d+)", (ROOT / "Makefile").read_text())[1])
    per_checkpoint = re.findall(r"max_files=(\d+)", (ROOT / "jobs" / "orders.py").read_text())
    assert all(int(most) >= files for most in per_checkpoint)
    expected = Expected(files, files, 1000)
    assert len(expected.revenue) >= 6, "a minute of each country"
    assert expected.totals


def test_live_files_are_those_whose_time_is_over_and_end_now(tmp_path):
    with seams.installed(seams.Seams(now=lambda: AT)):
        assert names(orders_feed.feed_live(tmp_path, 3, 50)) == [998, 999, 1000]
        assert orders_feed.feed_live(tmp_path, 3, 50) == []
    times = re.findall(r'"at": "([^"]+)"', (tmp_path / "landing/orders/orders-001000.json").read_text())
    assert timedelta(0) < AT - max(map(datetime.fromisoformat, times)) < timedelta(seconds=30)


def test_after_a_night_it_continues_with_now_not_with_the_backlog_of_the_night(tmp_path):
    with seams.installed(seams.Seams(now=lambda: AT)):
        orders_feed.feed_live(tmp_path, 3, 50)
    with seams.installed(seams.Seams(now=lambda: AT + timedelta(hours=9))):
        assert names(orders_feed.feed_live(tmp_path, 3, 50)) == [2078, 2079, 2080]
    with seams.installed(seams.Seams(now=lambda: AT + timedelta(hours=9, seconds=30))):
        assert names(orders_feed.feed_live(tmp_path, 3, 50)) == [2081]
