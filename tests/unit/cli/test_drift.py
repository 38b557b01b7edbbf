"""Commands say what of the input did not fit the schema, and what becomes of it."""

import pytest

from tidegate.history.query import CheckpointHistory
from tidegate.history.table import remember
from tidegate.records.records import Drift, FoundColumn, SourceSchema

DECLARED = "`id` bigint, `amount` int, `customer` struct<name:string>"


def found(path, kind="new", type="string", records=1, file="2.json"):
    return FoundColumn(path=path, kind=kind, type=type, records=records, file=file)


FOUND = [
    found("AMOUNT", "case", "bigint"),
    found("amount", "type", "string", 3),
    found("ann@example.com", "new", "bigint"),
    found("customer.vip", "new", "boolean", 2),
    found("gone", "new", "void"),
    found("vip", "new", "boolean", 4),
]


def drifting(project, *, evolves=True, found=FOUND, more=0):
    """One checkpoint whose input does not fit."""
    schema = SourceSchema(ddl=DECLARED, evolves=evolves)
    project.complete(1, None, schema=schema, drift={"events": Drift(found=list(found), records=5, more=more)})
    return project


def fates(document):
    return {misfit["path"]: misfit["why_not"] or misfit["becomes_column"] for misfit in document["misfits"]}


def test_explain_says_what_did_not_fit_and_what_becomes_of_it(project, tidegate):
    drifting(project)
    said = tidegate("explain", "orders", "1").out.splitlines()
    assert [line for line in said if line.startswith("- Source events: ")] == [
        "- Source events: 5 records did not fit its schema.",
        "- Source events: new key vip, of type boolean, in 4 records, first in 2.json: it becomes a column with the "
        "next checkpoint; until then it is in the rescue column.",
        "- Source events: column amount, values of type string, in 3 records, first in 2.json: they are in the rescue "
        "column, and null in their own.",
        "- Source events: new key customer.vip, of type boolean, in 2 records, first in 2.json: it stays in the rescue "
        "column: it is inside another column: declare that column's type with it.",
        "- Source events: key in another case AMOUNT, of type bigint, in 1 record, first in 2.json: it stays in the "
        "rescue column: it differs from a column only in case.",
        "- Source events: new key ann@example.com, of type bigint, in 1 record, first in 2.json: it stays in the "
        "rescue column: a column cannot have this name.",
        "- Source events: 1 more did not fit: tidegate show orders 1",
    ]
    document = tidegate("explain", "orders", "1", "--json").json["drift"]["events"]
    assert document["records"] == 5
    assert fates(document)["gone"] == "it has been null so far, so its type is unknown"
    assert fates(document)["vip"] is True


def test_explain_says_which_type_a_column_becomes(project, tidegate):
    wider = FoundColumn(path="amount", kind="type", type="bigint", records=2, file="2.json", wider="bigint")
    drifting(project, found=[wider])
    assert (
        "- Source events: column amount, values of type bigint, in 2 records, first in 2.json: with the next "
        "checkpoint it becomes bigint; until then they are in the rescue column, and null in their own."
    ) in tidegate("explain", "orders", "1").out.splitlines()


def test_show_lists_all_that_did_not_fit(project, tidegate):
    drifting(project, more=1)
    text = tidegate("show", "orders", "1").out
    for path in ("vip", "amount", "customer.vip", "AMOUNT", "ann@example.com", "gone"):
        assert path in text
    assert "at least 1 more" in text
    source = tidegate("show", "orders", "1", "--json").json["ranges"]["events"]
    assert source["schema"] == DECLARED
    assert [misfit["records"] for misfit in source["drift"]["misfits"]] == [4, 3, 2, 1, 1, 1]


def test_a_source_that_only_rescues_gets_no_columns(project, tidegate):
    drifting(project, evolves=False)
    document = tidegate("explain", "orders", "1", "--json").json["drift"]["events"]
    assert set(fates(document).values()) == {False}


@pytest.mark.parametrize("count", [100, 101])
def test_more_than_a_hundred_new_keys_become_no_columns(project, tidegate, count):
    drifting(project, found=[found(f"key_{n}", records=n + 1) for n in range(count)])
    document = tidegate("explain", "orders", "1", "--json").json["drift"]["events"]
    why = "the source has more than 100 new keys, which look like data that is used as keys"
    assert set(fates(document).values()) == {True if count == 100 else why}
    assert len(document["misfits"]) == 100
    assert document["more"] == count - 100


def test_the_history_keeps_what_did_not_fit(project, tidegate):
    drifting(project)
    told = tidegate("explain", "orders", "1", "--json").json["drift"]
    project.complete(2, 1)
    remember(project.ledger, {})
    project.ledger.delete_entry(1, [])
    assert tidegate("show", "orders", "1", "--json").json["retired"]
    assert tidegate("explain", "orders", "1", "--json").json["drift"] == told


def test_keys_that_are_no_columns_are_not_shown_to_users_who_may_not_read_rows(project):
    drifting(project)
    details = CheckpointHistory(project.ledger, {}, with_values=False).find(1).details
    misfits = details.sources["events"].drift.misfits
    assert [misfit.path for misfit in misfits] == ["vip", "amount", None, "AMOUNT", None, None]
    assert {misfit.file for misfit in misfits} == {None}
    assert [misfit.records for misfit in misfits] == [4, 3, 2, 1, 1, 1]


def test_doctor_notes_keys_that_could_become_columns_and_do_not(project, tidegate):
    drifting(project)
    findings = [
        each for each in tidegate("doctor", "orders", "--json").json["findings"] if each["check"] == "source events"
    ]
    assert [each["state"] for each in findings] == ["note"]
    assert "customer.vip: it is inside another column" in findings[0]["detail"]
    assert "vip: it becomes" not in findings[0]["detail"]
    assert "declare them in the schema" in findings[0]["help"]


def test_doctor_has_nothing_to_say_of_a_source_that_only_rescues(project, tidegate):
    drifting(project, evolves=False)
    assert "source events" not in tidegate("doctor", "orders").out


# -- tidegate schema -------------------------------------------------------------------------------------


def evolving(project):
    """Checkpoint 1 finds `vip`; 2 was aborted; 3 has it; 4 has another type of a declared column, and one less."""
    before = SourceSchema(ddl="`id` bigint, `amount` int", evolves=True)
    after = SourceSchema(ddl="`id` bigint, `amount` int, `vip` boolean", evolves=True)
    last = SourceSchema(ddl="`id` string, `vip` boolean", evolves=True)
    drift = Drift(found=[found("vip", "new", "boolean", 4)], records=4)
    project.complete(1, None, schema=before, drift={"events": drift})
    project.plan(2, 1, schema=after)
    project.abort(2)
    project.complete(3, 1, schema=after)
    project.complete(4, 3, schema=last)
    return project


def change(name, before, after, found_by=None, file=None):
    return {"name": name, "before": before, "after": after, "found_by": found_by, "file": file}


def test_schema_lists_the_checkpoints_that_changed_it(project, tidegate):
    evolving(project)
    timeline = tidegate("schema", "orders", "--json").json["sources"]["events"]
    assert timeline["is_complete"]
    assert [(each["checkpoint"], each["columns"]) for each in timeline["changes"]] == [
        (1, []),
        (3, [change("vip", None, "boolean", 1, "2.json")]),
        (4, [change("id", "bigint", "string"), change("amount", "int", None)]),
    ]
    said = tidegate("schema", "orders").out
    for text in ("id bigint, amount int", "+ vip boolean", "checkpoint 1, 2.json", "~ id bigint → string", "- amount"):
        assert text in said


def test_schema_of_retired_checkpoints_comes_from_the_history(project, tidegate):
    evolving(project)
    told = tidegate("schema", "orders", "--json").json
    remember(project.ledger, {})
    for id in (1, 2, 3):
        project.ledger.delete_entry(id, [])
    assert tidegate("schema", "orders", "--json").json == told


def test_schema_says_which_checkpoint_made_a_column_wider(project, tidegate):
    wider = FoundColumn(path="amount", kind="type", type="string", records=2, file="2.json", wider="bigint")
    before, after = (SourceSchema(ddl=f"`id` bigint, `amount` {kind}") for kind in ("int", "bigint"))
    project.complete(1, None, schema=before, drift={"events": Drift(found=[wider], records=2)})
    project.complete(2, 1, schema=after)
    timeline = tidegate("schema", "orders", "--json").json["sources"]["events"]
    assert timeline["changes"][1]["columns"] == [change("amount", "int", "bigint", 1, "2.json")]
    assert "~ amount int → bigint" in tidegate("schema", "orders").out


def test_schema_compares_two_checkpoints(project, tidegate):
    evolving(project)
    compared = tidegate("schema", "orders", "--from", "1", "--to", "4", "--json").json["sources"]["events"]
    assert compared["columns"] == [
        change("id", "bigint", "string"),
        change("vip", None, "boolean"),
        change("amount", "int", None),
    ]
    assert "+ vip boolean" in tidegate("schema", "orders", "--from", "1", "--to", "4").out
    assert "the same columns" in tidegate("schema", "orders", "--from", "2", "--to", "3").out


def test_schema_of_one_source(project, tidegate):
    evolving(project)
    assert set(tidegate("schema", "orders", "events", "--json").json["sources"]) == {"events"}
    said = tidegate("schema", "orders", "evnts", "--json")
    assert (said.code, said.json["error"]["reason"], said.json["error"]["expected"]) == (2, "NO_SUCH_SOURCE", "events")
    said = tidegate("schema", "orders", "--from", "1", "--json")
    assert (said.code, said.json["error"]["expected"]) == (
        2,
        "both --from and --to, to compare two checkpoints, or neither",
    )


def test_a_source_with_a_fixed_schema_has_no_timeline(project, tidegate):
    project.complete(1, None)
    assert tidegate("schema", "orders", "--json").json["sources"] == {}
    assert "each is read with the columns that the code declares" in tidegate("schema", "orders").out
