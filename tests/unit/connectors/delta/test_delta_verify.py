"""Scenario 16, Delta: what happened to the table after the plan is named before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.delta_sources import Table, add, cdc, remove, source
from tidegate.errors import Invalid
from tidegate.sources import SourceContext


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table", **{"delta.enableChangeDataFeed": "true"})


def plan(context: SourceContext, table: Table, mode: Any = "append") -> Any:
    end = source(mode=mode).plan(None, context).end
    table.append("a", "b")
    table.append("c")
    planned = source(mode=mode).plan(end, context)
    source(mode=mode).verify(planned.splits, context)
    return planned.splits


def changed(splits: Any, context: SourceContext) -> str:
    with pytest.raises(Invalid) as caught:
        source().verify(splits, context)
    assert caught.value.reason == "SOURCE_CHANGED"
    assert "'orders'" in caught.value.what
    return caught.value.what


def test_scenario_16_vacuumed_files_are_named(context: SourceContext, table: Table) -> None:
    splits = plan(context, table)
    (table.folder / "a").unlink()
    (table.folder / "c").write_text("")
    said = changed(splits, context)
    assert "file 'a' is gone (VACUUM?)" in said
    assert "file 'c' has 0 bytes instead of 10" in said
    assert "'b'" not in said


def test_scenario_16_a_table_dropped_after_the_plan(context: SourceContext, table: Table) -> None:
    splits = plan(context, table)
    table.drop()
    assert "file 'a' is gone" in changed(splits, context)


def test_scenario_16_a_table_created_again_after_the_plan(context: SourceContext, table: Table) -> None:
    splits = plan(context, table)
    table.drop()
    again = Table(table.folder, "t2")
    again.append("a", "b")
    again.append("c")
    with pytest.raises(Invalid, match="its id is t2, it was t1") as caught:
        source().verify(splits, context)
    assert caught.value.reason == "TABLE_RECREATED"


def test_scenario_16_a_version_written_again_after_the_plan(context: SourceContext, table: Table) -> None:
    splits = plan(context, table)
    table.next = 2
    table.append("z")
    assert "version 2: its commit was written again" in changed(splits, context)


def test_for_parquet_files_the_log_may_be_cleaned_up_after_the_plan(context: SourceContext, table: Table) -> None:
    splits = plan(context, table)
    table.path(1).unlink()
    source().verify(splits, context)


def test_for_a_change_feed_the_log_must_stay(context: SourceContext, table: Table) -> None:
    splits = plan(context, table, "changes")
    table.path(1).rename(table.folder / "away")
    with pytest.raises(Invalid, match=r"version 1: its commit file is gone"):
        source(mode="changes").verify(splits, context)


def test_scenario_16_vacuumed_files_of_a_change_feed_are_named(context: SourceContext, table: Table) -> None:
    table.append("a")
    end = source(mode="changes").plan(None, context).end
    table.commit(add("b"), remove("a"), cdc("_change_data/x"), operation="UPDATE")
    table.commit(remove("b"), operation="DELETE")
    splits = source(mode="changes").plan(end, context).splits
    (table.folder / "a").unlink()  # not needed: the update's rows are in _change_data
    source(mode="changes").verify(splits, context)
    (table.folder / "b").unlink()
    (table.folder / "_change_data/x").unlink()
    said = changed(splits, context)
    assert "'b' is gone" in said
    assert "'_change_data/x' is gone" in said


def test_of_many_lost_files_a_few_are_named_and_all_are_counted(context: SourceContext, table: Table) -> None:
    table.append(*(f"f{n}" for n in range(50)))
    splits = source().plan(None, context).splits
    for file in table.folder.glob("f*"):
        file.unlink()
    assert "… and 30 more" in changed(splits, context)
