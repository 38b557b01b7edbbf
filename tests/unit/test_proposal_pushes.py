"""Which tables the next push of a pull request replays again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.limits import Limits
from tidegate import Pipeline
from tidegate.pipeline.declare import Stream
from tidegate.proposal.pushes import choose_sinks, hash_paths
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

SCHEMA = "id long, k string, v double"


def shop(**changes: Any) -> Any:
    """A pipeline with a table of each kind of path, as a change of its code has left it."""
    given = {"where": "v > 0", "total": "sum(v)", "pattern": "landing/*.json", "has_more": False} | changes
    pipeline = Pipeline("shop", root="ledger", data=".")
    rows = pipeline.source("rows", Files(given["pattern"], schema=SCHEMA))
    others = pipeline.source("others", Files("others/*.json", schema=SCHEMA))
    kept = rows.select("id", "k", "v", where=given["where"], name="kept")

    def own(frame: Any) -> Any:
        return frame

    paths: dict[str, Stream] = {
        "selected": kept,
        "united": kept.union(others, name="both"),
        "own": pipeline.stage(kept)(own),
        "chance": kept.select("id", "uuid() AS token", name="tokens"),
        "looked_up": kept.join(table="tables/rates", on="k", uid="rates"),
        "elsewhere": others.select("id", name="ids"),
    }
    if given["has_more"]:
        paths["more"] = others.select("k", name="keys")
    for name, stream in paths.items():
        stream.sink(name, DeltaAppend(f"tables/{name}"))
    totals = kept.aggregate(by="k", total=given["total"], uid="totals")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
    return pipeline.graph()


def hashes(settings: Any = None, hidden: tuple[str, ...] = (), examples: int = 0, **changes: Any) -> dict[str, str]:
    ledger = SimpleNamespace(start=lambda: SimpleNamespace(uid="uid"))
    live: Any = SimpleNamespace(graph=shop(**changes), ledger=ledger, settings=settings or Limits(), place=None)
    return hash_paths(live, hidden, examples)


def test_what_cannot_be_known_completely_is_replayed_each_time() -> None:
    assert set(hashes()) == {"selected", "united", "elsewhere", "totals"}
    assert hashes() == hashes()


@pytest.mark.parametrize(
    ("changes", "unchanged"),
    [
        ({"where": "v > 1"}, {"elsewhere"}),
        ({"pattern": "landing/new/*.json"}, {"elsewhere"}),
        ({"total": "sum(v * 2)"}, {"selected", "united", "elsewhere"}),
        ({"settings": Limits(recorded={"spark.conf": {"spark.executorEnv.RATE": "2"}})}, set()),
        ({"has_more": True}, {"selected", "united", "elsewhere", "totals"}),
        ({"hidden": ("v",)}, set()),
        ({"examples": 3}, set()),
    ],
)
def test_a_change_counts_for_the_tables_behind_it(changes: dict[str, Any], unchanged: set[str]) -> None:
    before, after = hashes(), hashes(**changes)
    assert {name for name in before if before[name] == after[name]} == unchanged


def test_every_source_is_read_by_something() -> None:
    graph = shop()
    everything = list(graph.sinks)
    assert choose_sinks(graph, everything) == []
    assert choose_sinks(graph, ()) == everything
    assert choose_sinks(graph, [name for name in everything if name != "totals"]) == ["united", "totals"]
