"""Values that broke a rule, as people see them: a few of each rule, however many another one has."""

from __future__ import annotations

from tidegate.gates.examples import examples_of


def test_each_broken_rule_has_examples_of_its_own():
    def finding(rule: str, values: list[object], success: bool = False) -> dict[str, object]:
        return {
            "expectation_config": {"id": rule},
            "success": success,
            "result": {"partial_unexpected_list": values},
        }

    results = {
        "results": [
            finding("positive", [-1, -2, -3, -4, -5, -6]),
            finding("known", ["XX", "XX", "YY"]),
            finding("kept", ["fine"], success=True),
            finding("rows", []),
        ]
    }
    assert examples_of(results) == {"positive": ["-1", "-2", "-3"], "known": ["'XX'", "'YY'"]}
