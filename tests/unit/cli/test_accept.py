"""`tidegate propose accept`: which proposal it takes, and on what it decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.shop import CODE, Shop
from tests.simulation.toy_backfill import Endless, replayed
from tidegate import seams
from tidegate.backfill import begin, pause_pipeline
from tidegate.checkpoint import suspension
from tidegate.cli.lifecycle import accept, propose
from tidegate.errors import Rejected
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.proposal import acceptance
from tidegate.proposal.expiry import BY
from tidegate.proposal.policy import parse_limit
from tidegate.records.records import BackfillDiscarded, ProposalReported


def kept(ledger: Ledger, name: str) -> None:
    """Let a proposal have the report that only a kept one gets."""
    ledger.hint_proposal_reported(name, ProposalReported(**stamp(seams.new_id()), report={}))


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
        kept(shop.coordinator.ledger, name)
    said = tidegate("propose", "accept", CODE, "--if-proposed", "--yes")
    assert (said.code, "no proposal that this code has made" in said.out) == (0, True), "they have made nothing yet"
    said = tidegate("propose", "accept", CODE, "--if-proposed", "--name", "proposal-1", "--yes")
    assert (said.code, "no proposal proposal-1 that this code has made" in said.out) == (0, True)
    shop.coordinator.ledger.discard_line(BackfillDiscarded(**stamp(seams.new_id()), name="proposal-0", by=BY))
    assert tidegate("propose", "accept", CODE, "--if-proposed", "--name", "proposal-0", "--yes").code == 0, "expired"
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


def test_what_nobody_has_kept_is_not_accepted(folder: Path, tidegate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(folder)
    shop.checkpoint()
    monkeypatch.setattr(acceptance, "_is_of_this_code", lambda *_: True)
    begin(shop.coordinator, "proposal-1", 0, by="ci", cuts="recorded", purpose="proposal")
    hook = tidegate("propose", "accept", CODE, "--if-proposed", "--yes")
    assert (hook.code, "nothing to accept" in hook.out) == (0, True)
    named = tidegate("propose", "accept", CODE, "--name", "proposal-1", "--yes", "--json")
    assert (named.code, named.json["error"]["reason"]) == (1, "PROPOSAL_NOT_KEPT")
    assert f"tidegate propose {CODE} --keep" in named.json["error"]["help"]
    unnamed = tidegate("propose", "accept", CODE, "--yes", "--json")
    assert (unnamed.code, unnamed.json["error"]["reason"]) == (2, "NO_SUCH_PROPOSAL")
    assert "has no proposal that was kept" in unnamed.json["error"]["message"]


def test_of_several_proposals_of_this_code_the_hook_takes_the_newest(
    folder: Path, tidegate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(folder)
    shop.checkpoint()
    monkeypatch.setattr(acceptance, "_is_of_this_code", lambda *_: True)
    for name in ("zero", "one", "two"):
        begin(shop.coordinator, name, 0, by="ci", cuts="recorded", purpose="proposal")
        if name != "two":
            kept(shop.coordinator.ledger, name)
    chosen: list[str] = []

    def choose(live: Any, name: str, command: str) -> str:
        chosen.append(name)
        raise Rejected("enough", reason="ENOUGH")

    monkeypatch.setattr(accept, "choose_proposal", choose)
    tidegate("propose", "accept", CODE, "--if-proposed", "--yes")
    tidegate("propose", "accept", CODE, "--if-proposed", "--name", "zero", "--yes")
    assert chosen == ["one", "zero"]


class Compared:
    """Comparisons of a proposal while its pipeline goes on."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: list[bool]) -> None:
        self.world = Endless(tmp_path)
        self.world.checkpoint("run 1")
        self.line = begin(self.world.coordinator(), "proposal-1", 0, by="ann", cuts="recorded", purpose="proposal")
        replayed(self.line)
        self.same, self.rests = same, 0
        monkeypatch.setattr(acceptance, "compare_again", lambda _: {})
        monkeypatch.setattr(acceptance, "changes_nothing", lambda *_: self.same[0])
        monkeypatch.setattr(acceptance, "broken_table_limits", lambda _, limits: limits and not self.same[0])

    def read_rest(self) -> None:
        pause_pipeline(self.line, lambda _: None)
        replayed(self.line)
        self.rests += 1
        del self.same[0]

    def is_paused(self) -> bool:
        return suspension.suspended(self.world.ledger.view(), 0) is not None


@pytest.mark.parametrize("after", [True, False])
def test_that_nothing_differs_is_decided_about_all_that_the_pipeline_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    compared = Compared(tmp_path, monkeypatch, [True, after])
    assert acceptance.decide(compared.line, [], compared.read_rest) == ({}, True)
    assert compared.rests == 0, "it has caught up: production does not wait"
    compared.world.checkpoint("run 2")
    assert acceptance.decide(compared.line, [], compared.read_rest) == ({}, after)
    assert compared.rests == 1
    assert compared.line.has_caught_up()
    assert compared.is_paused() is after, "until it is discarded; a swap pauses it again"


def test_a_limit_is_not_broken_by_what_the_pipeline_has_made_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [parse_limit("rows")]
    compared = Compared(tmp_path, monkeypatch, [False, True])
    compared.world.checkpoint("run 2")
    assert acceptance.decide(compared.line, limits, compared.read_rest) == ({}, True)
