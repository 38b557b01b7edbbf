"""A pipeline has had a bug for a while. It is mended; what the bug made is computed again beside it, and swapped in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.mended_shop import DAYS, MODULE, OneSession, Shop, always_right, never
from tidegate.backfill import discard, swap
from tidegate.cli.main import main


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
    shop = Shop(tmp_path, spark)
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
        "rows_now": 6, "rows_after": 6, "taken_away": 3, "brought": 3
    }  # fmt: skip
    rows = backfill_tells("--diff", "sales", "--limit", "2")["rows"]
    assert [(row["id"], row["side"]) for row in rows] == [(4, "after"), (4, "now")], "one key beside each other"
    assert backfill_tells("--swap", "--yes")["savepoint"] == "before-backfill-1"
    assert shop.shown() == always_right(tmp_path / "right", spark, 2)
    assert backfill_tells("--discard", "backfill-1")["discarded"], "it was, by the swap"
    assert told("doctor", "mended:pipeline")
