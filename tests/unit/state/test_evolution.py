"""Which changes of a column's type a state can continue with."""

from __future__ import annotations

import pytest

from tests.kit.delta import schema
from tidegate.state.evolution import changes_row_ids, refusals

KEPT = [("integer", "long"), ("byte", "short"), ("float", "double"), ("decimal(6,2)", "decimal(9,2)")]
CHANGED = [("integer", "double"), ("date", "timestamp_ntz"), ("decimal(6,2)", "decimal(8,4)")]


@pytest.mark.parametrize(("before", "now"), [*KEPT, *CHANGED])
def test_a_state_without_ids_of_rows_takes_each_wider_type(before: str, now: str) -> None:
    assert refusals(schema(k="long", v=before), schema(k="long", v=now), ["k"]) == []


@pytest.mark.parametrize(("before", "now"), KEPT)
def test_a_wider_type_that_keeps_the_ids_of_rows_is_taken(before: str, now: str) -> None:
    assert refusals(schema(k="long", _row="string", v=before), schema(k="long", v=now), ["k"]) == []


@pytest.mark.parametrize(("before", "now"), CHANGED)
def test_a_wider_type_that_changes_the_ids_of_rows_is_refused(before: str, now: str) -> None:
    (problem,) = refusals(schema(k="long", _row="string", v=before), schema(k="long", v=now), ["k"])
    assert problem.endswith("rows with this type have other ids than the stored ones")
    assert len(refusals(schema(k="long", v=before), schema(k="long", v=now), ["k", "_row"])) == 1


@pytest.mark.parametrize(("before", "now"), CHANGED)
def test_ids_that_can_be_computed_again_may_change_unless_a_column_is_dropped(before: str, now: str) -> None:
    stored = schema(k="long", _row="string", v=before)
    assert changes_row_ids(stored, schema(k="long", _row="string", v=now))
    assert refusals(stored, schema(k="long", _row="string", v=now), ["k", "_row"], can_compute_ids=True) == []
    with_another = schema(k="long", _row="string", v=before, dropped="string")
    (problem,) = refusals(with_another, schema(k="long", _row="string", v=now), ["k", "_row"], can_compute_ids=True)
    assert problem.endswith("rows with this type have other ids than the stored ones")
