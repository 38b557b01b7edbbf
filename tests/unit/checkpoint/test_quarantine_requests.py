"""What people ask of quarantine: it is refused at once if no checkpoint would ever take it up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.aside_gate import Aside
from tests.kit.toy_world import ToyWorld
from tidegate.checkpoint.quarantine_requests import ask, pending_requests, requests_in_place
from tidegate.errors import Rejected
from tidegate.gates import Gate
from tidegate.ledger.ledger import stamp
from tidegate.records.records import BackfillDiscarded, BackfillRecord, Request


class AskedWorld(ToyWorld):
    def planned(self, run: str, **gates: Gate) -> None:
        """A checkpoint by code with these gates. How it ends is no matter."""
        self.gates = gates
        self.coordinator().abort(self.trigger(run), "CANCELLED", "by hand")


def request(action: str = "release", **words: Any) -> Request:
    return Request(**stamp("x"), number=1, gate="checked", action=action, seen=9, by="ann", **words)


@pytest.fixture
def world(tmp_path: Any) -> AskedWorld:
    return AskedWorld(tmp_path)


def test_what_is_asked_of_a_gate_that_sets_nothing_aside_any_more_is_refused_until_it_does_again(
    world: AskedWorld,
) -> None:
    world.planned("one", checked=Aside(quarantines=True))
    assert ask(world.ledger, request()).number == 1
    for run, gates in (("gone", {"other": Aside(quarantines=True)}), ("warns", {"checked": Aside(quarantines=False)})):
        world.planned(run, **gates)
        for action in ("release", "discard"):
            with pytest.raises(Rejected, match="no checkpoint would take up a request to gate 'checked'") as refused:
                ask(world.ledger, request(action))
            assert refused.value.reason == "NO_SUCH_GATE"
    assert ask(world.ledger, request("withdraw", withdraws=1)).number == 2, "what waits can be taken back"
    world.planned("back", checked=Aside(quarantines=True))
    assert ask(world.ledger, request()).number == 3


def test_rows_that_are_to_be_let_out_in_their_place_wait_for_a_backfill_and_for_no_checkpoint(
    world: AskedWorld,
) -> None:
    world.planned("one", checked=Aside(quarantines=True))
    ledger = world.ledger
    ordinary, in_place = ask(ledger, request()), ask(ledger, request(in_place=True))
    assert pending_requests(ledger, ledger.view(), "checked") == [ordinary]
    assert requests_in_place(ledger, "checked") == [in_place]

    words: Any = {"origin": 0, "manifest": None, "cuts": "recorded", "in_place": {"checked": [2]}}
    ledger.create_line(BackfillRecord(**stamp("x"), name="late", uid="u", by="ann", **words))
    with pytest.raises(Rejected, match="request 2 of gate 'checked' is taken up by backfill 'late'") as refused:
        ask(ledger, request("withdraw", withdraws=2))
    assert refused.value.reason == "TAKEN_UP"
    assert ask(ledger, request("withdraw", withdraws=1)).number == 3
    ledger.discard_line(BackfillDiscarded(**stamp("x"), name="late", by="ann"))
    assert ask(ledger, request("withdraw", withdraws=2)).number == 4
    assert requests_in_place(ledger, "checked") == []
