"""`tidegate propose accept` of a proposal that is too old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.shop import CODE, Shop
from tidegate import seams
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
