"""The declaration of a gate: what is wrong with it is told, all at once."""

from __future__ import annotations

import pytest

from tidegate.errors import Invalid
from tidegate.gates import Expectations, GateContext
from tidegate.gates.expectations.origin import FileSuite
from tidegate.records.place import Place


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        (
            Expectations("o", on_failure="stop"),
            "policy 'stop' for severity critical: expected abort, hold, quarantine, warn",
        ),
        (Expectations("o", on_failure={"fatal": "abort"}), "on_failure names severity 'fatal': expected critical,"),
        (Expectations("o", on_failure="quarantine", at_most=5), "at_most is 5: expected a share from 0 to 1"),
        (Expectations("o", at_most=0.1), "on_failure quarantines nothing"),
        (Expectations(""), "suite '' is not a suite's name"),
    ],
)
def test_a_wrong_declaration_is_told(gate, told):
    assert any(told in problem for problem in gate.problems())


def test_a_right_declaration_has_no_problems():
    gate = Expectations("o", on_failure={"critical": "abort", "warning": "quarantine"}, at_most=0.05, private=["iban"])
    assert gate.problems() == []
    assert gate.quarantines
    assert gate.describe()["on_failure"] == {"critical": "abort", "warning": "quarantine", "info": "warn"}
    assert not Expectations("o").quarantines


def test_a_suite_lies_beside_the_code(tmp_path):
    place = Place(str(tmp_path))
    assert FileSuite("orders").path(place) == tmp_path / "include" / "expectations" / "orders.yaml"
    assert FileSuite("suites/o.yaml").path(place) == tmp_path / "suites" / "o.yaml"
    with pytest.raises(Invalid, match="would be read from s3://"):
        FileSuite("orders").path(Place("s3://bucket"))
    with pytest.raises(Invalid, match="there is no suite"):
        Expectations("orders").check(GateContext("p", "g", place))
