"""A pipeline that version 0.2.0 has begun continues with today's code, or is refused before anything is planned."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.earlier.version_0_2 import AS_TOLD, CONTINUED, EARLIER, NAME, REFUSED, ROWS, Feed
from tests.kit.sampling import turn_of
from tests.spark.small_pipeline import SmallPipeline
from tidegate.errors import Invalid
from tidegate.execution.analysis import analyse
from tidegate.records.records import Drain, Json

KEPT = Path(__file__).parents[1] / "earlier" / "version_0_2.tar.xz"


def as_it_was(pipeline: str, folder: Path) -> Path:
    """The folder of a pipeline, as that version has left it, in another place than where it was made."""
    with tarfile.open(KEPT) as archive:
        of_it = [member for member in archive if member.name.split("/")[1:2] == [pipeline]]
        archive.extractall(folder, of_it, filter="data")
    return folder / pipeline


def feed(play: SmallPipeline, rows: Feed) -> None:
    for source, of_it in rows.items():
        play.feed(of_it, source)


def tables(play: SmallPipeline) -> dict[str, Counter[str]]:
    """The rows of all tables. What was -0.0 in a key is 0.0 today; what was written stays as it was."""
    return {name: Counter(map(plain, play.rows(f"tables/{name}"))) for name in sorted(play.graph().sinks)}


def plain(row: Json) -> str:
    return repr({name: value + 0.0 if isinstance(value, float) else value for name, value in row.items()})


@pytest.mark.parametrize("name", turn_of([*CONTINUED, *AS_TOLD], of=6))
def test_tables_are_what_todays_code_makes_from_the_beginning(name: str, tmp_path: Path, spark: Any) -> None:
    build = (CONTINUED | AS_TOLD)[name]
    goes_on = SmallPipeline(as_it_was(name, tmp_path), spark, build, NAME)
    goes_on.files = sum(len(rows) for rows in ROWS[:EARLIER])
    anew = SmallPipeline(tmp_path / "anew", spark, build, NAME)
    for rows in ROWS[:EARLIER]:
        feed(anew, rows)
        anew.checkpoint()
    coordinator = goes_on.coordinator()
    assert analyse(coordinator, spark, coordinator.ledger.view().last_completed) == []
    for play in (goes_on, anew):
        for rows in ROWS[EARLIER:]:
            feed(play, rows)
            play.checkpoint()
        play.checkpoint(drain=Drain(by="a test"))
    found, wanted = tables(goes_on), tables(anew)
    assert all(wanted.values()), "each table has rows"
    for table, rows in wanted.items():
        assert found[table] == rows, table


@pytest.mark.parametrize(
    ("name", "told"), [("filtered", r"was count\(distinct CASE WHEN"), ("after a join", "over a stream")]
)
def test_a_state_that_means_something_else_today_is_refused_before_anything_is_planned(
    name: str, told: str, tmp_path: Path, spark: Any
) -> None:
    play = SmallPipeline(as_it_was(name, tmp_path), spark, REFUSED[name], NAME)
    with pytest.raises(Invalid, match=told) as refused:
        play.checkpoint()
    assert "STATE_CHANGED" in f"{refused.value.reason} {refused.value.what}"
    assert "give a changed result another name" in refused.value.help, "what to do"
    assert play.coordinator().ledger.view().last_id == EARLIER
