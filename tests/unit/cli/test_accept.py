"""`tidegate propose accept` of a proposal that is too old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.shop import CODE, Shop
from tidegate import seams
from tidegate.backfill import begin
from tidegate.cli.lifecycle import propose
from tidegate.ledger.ledger import stamp
from tidegate.proposal.expiry import BY
from tidegate.records.records import BackfillDiscarded


@pytest.mark.parametrize(("by", "code"), [(BY, 1), ("ann", 0)])
def test_one_that_has_expired_is_refused_and_one_that_somebody_ended_is_over(
    folder: Path, tidegate: Any, by: str, code: int
) -> None:
    shop = Shop(folder)
    shop.checkpoint()
    shop.coordinator.ledger.discard_line(BackfillDiscarded(**stamp(seams.new_id()), name="proposal-1", by=by))
    said = tidegate("propose", "accept", CODE, "--name", "proposal-1", "--yes", "--json")
    assert said.code == code
    if code:
        assert said.json["error"]["reason"] == "PROPOSAL_EXPIRED"
        assert f"tidegate propose {CODE} --keep" in said.json["error"]["help"]
    else:
        assert said.json["swap"] is None


def test_what_is_accepted_does_not_expire_before(folder: Path, tidegate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Shop(folder).checkpoint()
    monkeypatch.setattr(propose, "discard_expired", lambda *_: pytest.fail("it would discard what is accepted"))
    monkeypatch.setattr(propose, "accept", lambda *_, **__: 0)
    assert tidegate("propose", "accept", CODE, "--name", "proposal-1", "--yes").code == 0


def test_the_hook_of_a_deployment_accepts_only_what_this_very_code_has_made(folder: Path, tidegate: Any) -> None:
    shop = Shop(folder)
    shop.checkpoint()
    nothing = tidegate("propose", "accept", CODE, "--if-proposed", "--yes", "--json")
    assert (nothing.code, nothing.json["proposal"], nothing.json["swap"]) == (0, None, None)
    for name in ("proposal-1", "proposal-2"):
        begin(shop.coordinator, name, 0, by="ann", cuts="recorded", purpose="proposal")
    said = tidegate("propose", "accept", CODE, "--if-proposed", "--yes")
    assert (said.code, "no proposal that this code has made" in said.out) == (0, True), "they have made nothing yet"
    said = tidegate("propose", "accept", CODE, "--yes", "--json")
    assert (said.code, said.json["error"]["reason"]) == (2, "NO_SUCH_PROPOSAL")
    assert "none was made by this code" in said.json["error"]["message"]
    assert said.json["error"]["expected"] == "proposal-1 or proposal-2"


@pytest.mark.parametrize("limit", ["gate", "cost > 1.5x"])
def test_limits_at_which_an_acceptance_does_not_look_are_refused(folder: Path, tidegate: Any, limit: str) -> None:
    Shop(folder).checkpoint()
    said = tidegate("propose", "accept", CODE, "--yes", "--fail-on", limit, "--json")
    assert (said.code, said.json["error"]["reason"]) == (2, "BAD_LIMIT")
    assert repr(limit) in said.json["error"]["message"]
