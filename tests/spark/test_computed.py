"""How an operator was computed, and why in that way, is told by what shows a checkpoint."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.cli.main import main
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.state import kernel_driver

COLUMNS = "k long, d double, v long, at timestamp"


def rows(pipeline: Pipeline) -> Any:
    return sources(pipeline, COLUMNS, event_time="at", watermark="1 min")


def deduplicated(pipeline: Pipeline) -> None:
    rows(pipeline).deduplicate(by="k", within="1 hour", uid="it").sink("out", DeltaAppend("tables/out"))


def late_taken(pipeline: Pipeline) -> None:
    once = rows(pipeline).deduplicate(by="k", within="1 hour", uid="it")
    once.sink("out", DeltaAppend("tables/out"))
    once["late"].sink("late", DeltaAppend("tables/late"))


def by_a_double(pipeline: Pipeline) -> None:
    rows(pipeline).deduplicate(by="d", within="1 hour", uid="it").sink("out", DeltaAppend("tables/out"))


def averaged(pipeline: Pipeline) -> None:
    middles = rows(pipeline).aggregate(by="k", middle="max_by(v, at)", uid="it")
    middles.sink("out", DeltaUpsert("tables/out", keys=["k"]))


def summed(pipeline: Pipeline) -> None:
    rows(pipeline).aggregate(by="k", total="sum(v)", uid="it").sink("out", DeltaUpsert("tables/out", keys=["k"]))


def summed_again(pipeline: Pipeline) -> None:
    """What the first one replaces is taken by the second one."""
    totals = rows(pipeline).aggregate(by="k", total="sum(v)", uid="it")
    totals.aggregate(by="total", n="count(*)", uid="again").sink("out", DeltaUpsert("tables/out", keys=["total"]))


def with_ttl(pipeline: Pipeline) -> None:
    latest = rows(pipeline).latest(by="k", order_by=["at"], state_ttl="2 days", uid="it")
    latest.sink("out", DeltaUpsert("tables/out", keys=["k"]))


def left_joined(pipeline: Pipeline) -> None:
    other = sources(pipeline, "k long, w long", "others")
    both = rows(pipeline).join(other, on="k", how="left", prefix="other_", uid="it")
    both.sink("out", DeltaUpsert("tables/out", keys=["k", "v", "w"]))


@pytest.mark.parametrize(
    ("build", "told", "rows_in_and_out"),
    [
        (deduplicated, "workers", (5, 0)),
        (late_taken, "workers", (5, 0)),
        (by_a_double, "workers", (5, 0)),
        (averaged, "Spark: it has a function that is more than sums, counts, least and greatest values", (None, None)),
        (summed, "workers", (5, 5)),
        (summed_again, "workers", (5, 5)),
        (with_ttl, "workers", (5, 5)),
        (left_joined, "workers", (10, 20)),
    ],
)
def test_it_is_told_who_computed_an_operator_and_why(
    spark: Any,
    tmp_path: Path,
    monkeypatch: Any,
    build: Callable[[Pipeline], None],
    told: str,
    rows_in_and_out: tuple[int | None, int | None],
) -> None:
    play = SmallPipeline(tmp_path, spark, build)
    for minute in range(2):  # a state is begun otherwise than it is continued
        play.feed([{"k": n, "d": n, "v": n, "at": f"2026-01-01T00:0{minute}:0{n}Z"} for n in range(5)])
        if build is left_joined:
            play.feed([{"k": n, "w": n} for n in range(5)], "others")
        id = play.checkpoint()
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    monkeypatch.chdir(tmp_path)
    (step,) = (step for step in play.ack(id).stats.steps if step.name == "state it")
    assert step.computed is not None
    text = step.computed.text
    assert (step.computed.rows_in, step.computed.rows_out) == rows_in_and_out
    if told == "workers":
        told += ", {:,} rows in, {:,} out".format(*rows_in_and_out)
    assert re.sub(r", read \d of \d row groups", "", text) == told
    for command in ("profile", "show"):
        assert any("state it" in line and line.rstrip().endswith(text) for line in said(command, "play", str(id)))
    (span,) = (
        part
        for job in json.loads(whole("profile", "play", "--json"))["span"]["parts"]
        for part in job["parts"]
        if part["name"] == "state it"
    )
    assert span["computed"] == {
        "workers": told.startswith("workers"),
        "spark": told.startswith("Spark"),
        "why": step.computed.why,
        "spilled": 0,
        "row_groups_read": step.computed.row_groups_read,
        "row_groups": step.computed.row_groups,
        "rows_in": rows_in_and_out[0],
        "rows_out": rows_in_and_out[1],
    }


@pytest.mark.parametrize("build", [deduplicated, summed, with_ttl])
def test_it_is_told_how_many_row_groups_of_the_state_were_read(
    spark: Any, tmp_path: Path, build: Callable[[Pipeline], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three checkpoints have keys of their own, and leave a file for each half of the key groups; 10 to 14
    are all in one half. The last one has keys of the second."""
    monkeypatch.setattr(kernel_driver, "MAX_STORED_FOR_ONE_WORKER", -1)  # two workers, each with half of the key groups
    play, told = SmallPipeline(tmp_path, spark, build), []
    for first in (0, 10, 20, 11):
        play.feed([{"k": first + n, "d": n, "v": n, "at": f"2026-01-01T00:00:0{n}Z"} for n in range(5)])
        told.append(read_of(play, play.checkpoint()))
    assert told == [(0, 0), (0, 2), (0, 3), (1, 5)]


def read_of(play: SmallPipeline, id: int) -> tuple[int, int]:
    """How many row groups workers have read in a checkpoint, and of how many."""
    (step,) = (step for step in play.ack(id).stats.steps if step.name == "state it")
    assert step.computed is not None
    told = f", read {step.computed.row_groups_read} of {step.computed.row_groups} row groups"
    assert step.computed.text.endswith(told if step.computed.row_groups else " out")
    return step.computed.row_groups_read, step.computed.row_groups


def whole(*arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*arguments]) == 0
    return out.getvalue()


def said(*arguments: str) -> list[str]:
    return whole(*arguments).splitlines()
