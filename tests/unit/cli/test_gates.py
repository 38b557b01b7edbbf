"""suite, approve and reject: what they say, and what they leave alone."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.kit.suites import BROKEN, GOOD, gx_project, gx_rule, gx_suite
from tidegate.gates.expectations.catalogue import CATALOGUE
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Ack, Hold, JobStats, Payload, RecordedRule, Verdict

# -- suites --------------------------------------------------------------------------------------------


@pytest.fixture
def suites(folder):
    made = folder / "include" / "expectations"
    made.mkdir(parents=True)
    return made


def test_every_broken_suite_is_refused_with_file_and_line(suites, tidegate):
    for number, (text, _, _) in enumerate(BROKEN.values()):
        (suites / f"broken{number:02d}.yaml").write_text(text)
    said = tidegate("suite", "check", "--quick", "--json")
    assert (said.code, said.json["error"]["reason"]) == (2, "BAD_SUITE")
    told = said.json["error"]["message"].splitlines()
    for number, (_, line, message) in enumerate(BROKEN.values()):
        where = f"{suites}/broken{number:02d}.yaml:{line}: "
        assert any(each.startswith(where) and message in each for each in told), (where, message)


def test_suites_are_checked_by_name_by_path_or_all_and_against_a_sample(suites, tidegate):
    (suites / "orders.yaml").write_text(GOOD)
    assert tidegate("suite", "check", "--quick", "--json").json["suites"]["orders"]["rules"] == 3
    (suites.parent / "sample.csv").write_text("order_id,at\n1,2\n")
    sample = ("--sample", "include/sample.csv")
    assert tidegate("suite", "check", "orders", "--quick", *sample).code == 0
    (suites.parent / "sample.csv").write_text("order_id,att\n1,2\n")
    said = tidegate("suite", "check", "include/expectations/orders.yaml", "--quick", *sample)
    assert (said.code, "orders.yaml:10: " in said.err, "no column 'at'; did you mean 'att'?" in said.err) == (
        2,
        True,
        True,
    )
    assert tidegate("suite", "check", "order", "--quick").code == 2


def test_suites_of_a_context_are_checked_with_expectations_of_ones_own(folder, tidegate):
    gx_project(folder, gx_suite(gx_rule("expect_known_country", kwargs={"column": "country"})), "shop.orders")
    (folder / "own_rules.py").write_text("class ExpectKnownCountry(gxe.ExpectColumnValuesToNotBeNull): pass\n")
    said = tidegate("suite", "check", "--context", "gx", "--quick", "--json")
    assert (said.code, "'expect_known_country' is not known" in said.json["error"]["message"]) == (2, True)
    said = tidegate("suite", "check", "--context", "gx", "--quick", "--modules", "own_rules", "--json")
    assert said.json["suites"] == {"shop.orders": {"rules": 1, "problems": []}}
    said = tidegate("suite", "check", "orders", "--context", "gx", "--quick", "--json")
    assert "has no suite 'orders'" in said.json["error"]["message"]


def test_what_is_available_is_listed_where_the_error_says(folder, tidegate):
    known = tidegate("suite", "list", "--json").json["expectations"]
    assert {each["type"] for each in known} == set(CATALOGUE)
    assert "expect_column_values_to_not_be_null" in tidegate("suite", "list").out


def test_a_suite_is_begun_once_and_can_be_read(suites, tidegate):
    assert tidegate("suite", "init", "fresh").code == 0
    assert tidegate("suite", "check", "fresh", "--quick").code == 0
    said = tidegate("suite", "init", "fresh", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "THERE")
    assert tidegate("suite", "init", "../up").code == 2


def test_a_proposed_suite_says_what_the_sample_keeps(folder, tidegate):
    rows = [
        {
            "id": n,
            "country": "DE" if n % 3 else "AT",
            "amount": n / 2,
            "note": None if n % 10 == 0 else f"note {n % 40}",
        }
        for n in range(200)
    ]
    (folder / "sample.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = tidegate("suite", "profile", "found", "--sample", "sample.json", "--write")
    assert said.code == 0, said.err
    assert tidegate("suite", "check", "found", "--quick", "--sample", "sample.json").code == 0
    text = (folder / "include/expectations/found.yaml").read_text()
    rules = [line.removeprefix("- type: ") for line in text.splitlines() if line.startswith("- type")]
    assert "expect_column_values_to_be_unique" in rules
    assert "value_set:\n    - AT\n    - DE\n" in text
    assert "mostly: 0.9\n" in text
    assert "column: amount\n    min_value: 0\n" in text
    said = tidegate("suite", "profile", "found", "--sample", "nowhere.json", "--json")
    assert (said.code, said.json["error"]["reason"]) == (2, "BAD_SAMPLE")


# -- a checkpoint that is held -------------------------------------------------------------------------


@pytest.fixture
def held(project):
    """1 completed, 2 held by gate `checked`."""
    project.complete(1, None)
    project.plan(2, 1)
    broken = RecordedRule(rule="mean", policy="hold", severity="critical", rows=None, why="found 99")
    verdict = Verdict(
        outcome="hold",
        rows=7,
        quarantined=0,
        hold=Hold(limit_s=None, default="reject"),
        broken=[broken],
        policy={},
        results=Payload(data={}),
    )
    ack = Ack(**stamp("a2"), id=2, job="main", prev=None, sinks={}, gates={"checked": verdict}, stats=JobStats())
    project.ledger.create_ack(ack)
    return project


def test_what_is_held_is_told_and_approved_or_rejected_once(held, tidegate):
    assert tidegate("list", "orders", "--json").json["checkpoints"][0]["state"] == "held"
    story = tidegate("explain", "orders", "2").out
    assert "Gate checked judged 7 rows; its verdict is hold." in story
    assert "rule mean: found 99; its policy is hold." in story
    assert "held by gate 'checked'" in story
    assert "approve orders 2" in story
    assert "mean: found 99" in tidegate("show", "orders", "2").out
    said = tidegate("approve", "orders", "2", "--note", "as agreed", "--json")
    assert (said.code, said.json["answers"]["checked"]["note"]) == (0, "as agreed")
    late = tidegate("reject", "orders", "2", "checked", "--json")
    assert (late.code, late.json["error"]["reason"]) == (1, "ANSWERED")
    assert "approved it at gate checked: as agreed" in tidegate("explain", "orders", "2").out


def test_what_a_gate_cannot_quarantine_is_refused_by_the_command(held, tidegate):
    said = tidegate("reject", "orders", "2", "--quarantine", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "CANNOT_QUARANTINE")
    assert held.ledger.answer(2, "checked") is None


def test_a_rejection_to_quarantine_says_what_comes_next(held, tidegate):
    held.plan(3, 2, commits=["quarantine.checked"])
    held.ledger.create_ack(msgspec.structs.replace(held.ledger.ack(2, "main").ack, **stamp("a3"), id=3))
    assert "reject orders 3 --quarantine" in tidegate("explain", "orders", "3").out
    said = tidegate("reject", "orders", "3", "--quarantine", "--note", "a broken feed", "--json")
    assert (said.code, said.json["answers"]["checked"]["quarantined"]) == (0, True)
    story = tidegate("explain", "orders", "3").out
    assert "chose quarantine at gate checked: a broken feed" in story


def test_a_rejection_says_how_to_continue(held, tidegate):
    said = tidegate("reject", "orders", "2")
    assert (said.code, "resume orders" in said.out) == (0, True)
    assert tidegate("approve", "orders", "1", "--json").json["error"]["reason"] == "NOT_HELD"
