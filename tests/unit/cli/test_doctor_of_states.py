"""`doctor` looks at what acks name before it is decided: rows of sinks, and states."""

from __future__ import annotations

from tests.kit import forks

shop = forks.shop


def test_states_of_an_undecided_checkpoint_are_looked_at(shop, tidegate):
    shop.acked()
    staged = "staged for state.totals in checkpoint 4"

    def found():
        findings = tidegate("doctor", "shop:orders", "--json").json["findings"]
        return next(each for each in findings if each["check"] == staged)

    assert (found()["state"], found()["detail"]) == ("ok", "4 files, not published yet")
    shop.state_table.local(shop.state(3).files[0].file.path).unlink()
    assert found()["state"] == "bad"
    assert "1 of 4 files are gone or changed" in found()["detail"]
