"""Requests to accept a proposal that no page has checked: the run itself refuses them, before it reads anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulation.toy_backfill import Endless
from tidegate.backfill import begin
from tidegate.dag.tasks.backfill import RequestedBackfill, _refuse_swap
from tidegate.errors import TidegateError
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Act, KeySample, ProposalReported
from tidegate.seams import new_id


def refused(world: Endless, name: str, **parameters: Any) -> str:
    act = Act(**stamp(new_id()), action="swap", by="ann", request={"name": name, **parameters}, run="")
    try:
        _refuse_swap(world.ledger, RequestedBackfill(name, "", act, {}))
    except TidegateError as error:
        return error.reason
    return ""


@pytest.fixture
def world(tmp_path: Path) -> Endless:
    world = Endless(tmp_path)
    world.checkpoint("run 1")
    sample = KeySample(share=0.1, by="id", sources={})
    for name in ("kept", "left", "sampled"):
        of = sample if name == "sampled" else None
        begin(world.coordinator(), name, 0, by="ci", cuts="recorded", purpose="proposal", sample=of)
        if name != "left":
            world.ledger.hint_proposal_reported(name, ProposalReported(**stamp(new_id()), report={}))
    begin(world.coordinator(), "fix", 0, by="ann")
    return world


def test_what_was_not_kept_or_has_read_a_sample_is_not_accepted(world: Endless) -> None:
    assert [refused(world, name) for name in ("kept", "fix")] == ["", ""]
    assert refused(world, "left") == "PROPOSAL_NOT_KEPT"
    assert refused(world, "sampled") == "ONLY_A_SAMPLE"


@pytest.mark.parametrize("limit", ["gate", "cost > 1.5x", "rows < 3", "rowz"])
def test_a_limit_that_nothing_checks_is_not_ignored(world: Endless, limit: str) -> None:
    assert refused(world, "kept", fail_on=["rows > 1 %", "schema"]) == ""
    assert refused(world, "kept", fail_on=[limit]) == "BAD_LIMIT"
