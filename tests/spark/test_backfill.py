"""A pipeline has had a bug for a while. It is mended; what the bug made is computed again beside it, and swapped in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.mended_shop import DAYS, Shop, always_right, never
from tidegate.backfill import discard, swap


@pytest.mark.parametrize("origin", [0, 1])
def test_what_a_bug_made_is_replaced_at_once(tmp_path: Path, spark: Any, origin: int) -> None:
    shop = Shop(tmp_path / "shop", spark)
    shop.play_with_the_bug(4)
    wrong = shop.shown()
    line = shop.replayed(shop.line("fix", origin))
    assert shop.shown() == wrong, "nobody sees anything yet"
    shop.play(DAYS[4:5])  # the pipeline goes on, and does not wait
    shop.replayed(line)
    swapped = swap(line, by="ann", choices={}, wait=never)
    assert swapped.error is None
    assert swapped.savepoint == "before-fix"
    assert shop.shown() == always_right(tmp_path / "right", spark, 5)

    discard(shop.reopened("fix"), "ann")
    shop.play(DAYS[5:])
    assert shop.shown() == always_right(tmp_path / "right too", spark, 6)
