"""Mistakes in the declaration of a Delta sink are all told, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.connectors.sink import SinkContext
from tidegate.errors import Invalid
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert

BAD: list[tuple[str, dict[str, Any]]] = [
    ("not usable", {"path": ""}),
    ("not usable", {"path": "  "}),
    ("not usable", {"path": "a\0b"}),
    ("not usable", {"path": "a\nb"}),
    ("not usable", {"path": 7}),
    ("not usable", {"path": "file://relative"}),
    ("a % or", {"path": "tables/100%"}),
    ("a % or", {"path": "tables\\x"}),
    ("twice", {"partition_by": ["a", "b", "a"]}),
    ("twice", {"partition_by": ["a", "A"]}),
    ("not a column name", {"partition_by": [""]}),
    ("not a column name", {"partition_by": [1]}),
    ("schema_evolution", {"schema_evolution": "merge"}),
    ("schema_evolution", {"schema_evolution": True}),
    ("is not one of", {"properties": {"delta.columnMapping.mode": "name"}}),
    ("is not one of", {"properties": {"delta.setTransactionRetentionDuration": "interval 1 day"}}),
    ("is not one of", {"properties": {"delta.enableDeletionVectors": "true"}}),
    ("is not one of", {"properties": {"owner": "me"}}),
    ('"true" or "false"', {"properties": {"delta.enableExpiredLogCleanup": "maybe"}}),
    ('"true" or "false"', {"properties": {"delta.appendOnly": True}}),
    ("whole number", {"properties": {"delta.checkpointInterval": "0"}}),
    ("interval", {"properties": {"delta.logRetentionDuration": "3 days"}}),
]
BAD_UPSERT: list[tuple[str, dict[str, Any]]] = [
    ("keys is empty", {"keys": []}),
    ("twice", {"keys": ["k", "k"]}),
    ("twice", {"keys": ["k", "K"]}),
    ("twice", {"order_by": ["a", "a"]}),
    ("not a column name", {"keys": [None]}),
    ("omit names 'k'", {"omit": ["k"]}),
    ("omit names 'a'", {"order_by": ["a"], "omit": ["a"]}),
    ("omit names 'p'", {"partition_by": ["p"], "omit": ["p"]}),
    ("delete_when is empty", {"delete_when": " "}),
    ("appendOnly", {"properties": {"delta.appendOnly": "true"}}),
]


@pytest.mark.parametrize(("said", "wrong"), BAD)
def test_a_bad_append(said, wrong):
    problems = DeltaAppend(**{"path": "t", **wrong}).problems()
    assert any(said in problem for problem in problems), problems


@pytest.mark.parametrize(("said", "wrong"), [*BAD, *BAD_UPSERT])
def test_a_bad_upsert(said, wrong):
    problems = DeltaUpsert(**{"path": "t", "keys": ["k"], **wrong}).problems()
    assert any(said in problem for problem in problems), problems


def test_all_mistakes_at_once():
    sink = DeltaUpsert("", keys=[], partition_by=["a", "a"], schema_evolution="x", properties={"x": "y"})  # type: ignore[arg-type]
    assert len(sink.problems()) == 5


def test_good_declarations_have_no_problems():
    assert DeltaAppend("t", partition_by="day", properties={"delta.checkpointInterval": "20"}).problems() == []
    sink = DeltaUpsert("s3://bucket/t%20", keys="k", order_by="at", delete_when="op = 'D'", omit=["op"])
    assert sink.problems() == []
    assert sink.keys == ("k",)


def test_a_description_has_everything_that_changes_what_is_written():
    one = DeltaUpsert("t", keys=["k"], order_by=["a"], delete_when="x", omit=["o"], partition_by=["p"])
    assert one.describe() == {
        "kind": "delta-upsert", "path": "t", "partition_by": ["p"], "schema_evolution": "refuse",
        "properties": {}, "keys": ["k"], "order_by": ["a"], "delete_when": "x", "omit": ["o"],
    }  # fmt: skip


def test_a_target_is_one_absolute_name(tmp_path):
    place = Place(str(tmp_path))
    assert DeltaAppend("t").target(place) == DeltaUpsert("./a/../t/", keys=["k"]).target(place) == f"{tmp_path}/t"
    assert DeltaAppend("s3://b/t/").target(place) == "s3://b/t"


def test_a_base_folder_that_delta_rs_misreads_is_refused_before_anything_is_planned(tmp_path):
    context = SinkContext("p", "u", "s", Place(f"{tmp_path}/100%25"))
    with pytest.raises(Invalid, match="a % or"):
        DeltaAppend("t").check(context)


@pytest.mark.parametrize("name", ["tidegate_deleted", "Tidegate_Order"])
def test_an_upsert_refuses_columns_that_it_would_overwrite(name: str) -> None:
    """A MERGE adds them to the rows of a batch."""
    fields = [{"name": each, "type": "long", "nullable": True, "metadata": {}} for each in ("k", name)]
    problems = DeltaUpsert("t", keys=["k"]).output_problems({"type": "struct", "fields": fields})
    assert problems == [f"{name!r} is a name that the sink itself uses"]
