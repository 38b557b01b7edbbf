"""list, show and explain of checkpoints whose records are long gone: what the history still tells."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def past(long_ago):
    """Ten checkpoints: 2, 5, 8 were aborted; the ledger has only the last ones left."""
    assert long_ago.ledger.entry(1) is None
    return long_ago


def ids(tidegate, *arguments):
    said = tidegate("list", "orders", "--json", *arguments)
    assert said.code == 0, said.err
    return [row["id"] for row in said.json["checkpoints"]], said.json["has_more"]


def test_a_plain_list_is_of_what_is_retained_and_names_the_way_to_the_rest(past, tidegate):
    kept, more = ids(tidegate)
    assert (kept, more) == (sorted(past.ledger.ids(), reverse=True), False)
    assert "tidegate list orders --all" in tidegate("list", "orders").out


def test_the_history_is_filtered_sorted_and_paged(past, tidegate):
    assert ids(tidegate, "--all") == (list(range(10, 0, -1)), False)
    assert ids(tidegate, "--all", "--limit", "3", "--skip", "3") == ([7, 6, 5], True)
    assert ids(tidegate, "--state", "aborted") == ([8, 5, 2], False)
    assert ids(tidegate, "--match", "cancelled") == ([2], False)
    assert ids(tidegate, "--sort", "id", "--ascending", "--limit", "2") == ([1, 2], True)
    assert ids(tidegate, "--until", "2020-01-01") == ([], False)
    assert ids(tidegate, "--since", "1 h", "--kind", "manual")[0] == list(range(10, 0, -1))
    out = tidegate("list", "orders", "--state", "aborted", "--limit", "2").out
    assert "JOB_FAILED" in out
    assert "1 to 2 of 3; for more: --skip 2" in out
    assert "past the end" in tidegate("list", "orders", "--match", "no such words").out


@pytest.mark.parametrize(
    "arguments",
    [["--state", "lost"], ["--sort", "colour"], ["--skip", "-1"], ["--since", "soon"], ["--all", "--before", "3"]],
)
def test_what_cannot_be_asked_for_is_refused(past, tidegate, arguments):
    assert tidegate("list", "orders", *arguments).code == 2


def test_a_retired_one_is_shown_from_the_history(past, tidegate):
    found = tidegate("show", "orders", "1", "--json").json
    assert (found["id"], found["state"], found["retired"], found["records"]) == (1, "completed", True, None)
    assert found["rows"] == {"a": 3, "b": 3}
    assert found["jobs"]["main"]["attempt"]
    kept = tidegate("show", "orders", "10", "--json").json
    assert (kept["retired"], kept["records"]["plan"]["id"]) == (False, 10)
    assert found.keys() - {"undone_by"} <= kept.keys()
    text = tidegate("show", "orders", "1").out
    assert "Checkpoint 1 of orders: completed" in text
    assert "Its records are retired" in text
    assert "manifest" in text


def test_a_retired_one_is_explained_from_the_history(past, tidegate):
    said = tidegate("explain", "orders", "2")
    assert (said.code, said.out.splitlines()[0]) == (0, "Checkpoint 2 of orders: aborted")
    assert "Its records are retired" in said.out
    assert "CANCELLED, a person stopped it" in said.out
    assert "Details: boom" in said.out
    done = tidegate("explain", "orders", "1").out
    assert "Job main was acknowledged by attempt" in done
    assert "it had staged a 3, b 3" in done
    assert "It was completed at" in done


def test_one_that_never_was_is_a_no(past, tidegate):
    for command in ("show", "explain"):
        said = tidegate(command, "orders", "11")
        assert (said.code, "has no checkpoint 11" in said.err) == (1, True)


def test_a_lost_history_says_so_and_hides_nothing_else(past, tidegate):
    shutil.rmtree(past.folder / "history")
    (past.folder / "history").mkdir()
    (past.folder / "history" / "_delta_log").write_text("no folder")
    said = tidegate("list", "orders", "--all")
    assert "The history is left out" in said.out
    assert tidegate("show", "orders", "1").code == 1
    assert tidegate("show", "orders", "10").code == 0
