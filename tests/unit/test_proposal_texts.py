"""The limits and the report of a proposal, as text."""

from __future__ import annotations

import msgspec
import pytest

from tidegate.errors import Invalid
from tidegate.proposal.kept import since
from tidegate.proposal.markdown import to_markdown
from tidegate.proposal.policy import broken_limits, parse_limit
from tidegate.proposal.report import CodeChange, GateChange, GateFindings, Merge, ProposalReport, SinceLast
from tidegate.proposal.tables import ColumnChange, Distribution, SchemaChange, TableDifference

SAME_SCHEMA = SchemaChange(added={}, removed={}, retyped={})
AMOUNT = ColumnChange(
    rows=3,
    mean_change=1.5,
    greatest_change=4.0,
    before=Distribution(nulls=0, mean=2.0, least=1.0, greatest=3.0),
    after=Distribution(nulls=0, mean=3.5, least=1.0, greatest=7.0),
)
REVENUE = TableDifference(
    schema=SAME_SCHEMA,
    keys=["country"],
    rows_before=1000,
    rows_after=1001,
    added=1,
    removed=0,
    changed=3,
    columns={"amount": AMOUNT},
    examples=[],
)
PASSED = GateFindings(judged=10, quarantined=0, outcomes={"pass": 2}, broken={})
BROKEN = GateFindings(judged=10, quarantined=4, outcomes={"pass": 1, "quarantine": 1}, broken={"positive": 4})
REPORT = ProposalReport(
    pipeline="orders",
    begins_after=5,
    replayed=[6, 7],
    stopped="",
    code=CodeChange(before="a" * 16, after="b" * 16, parts=[], operators={}, results=[]),
    merge=Merge(action="differs", reasons=[], backfill="tidegate backfill jobs.orders:pipeline --from 5"),
    tables={"revenue": REVENUE},
    unchanged_sinks=["topic"],
    manual_edits=[],
    gates=[GateChange(gate="checked", before=PASSED, after=BROKEN)],
    figures={"sync_seconds": [10.0, 16.0], "rows_out": [5.0, 6.0]},
)


@pytest.mark.parametrize(
    ("limit", "is_broken"),
    [
        ("rows", True),
        ("rows > 3", True),
        ("rows > 4", False),
        ("rows > 0.3 %", True),
        ("rows > 0.4%", False),
        ("gate", True),
        ("schema", False),
        ("cost > 1.5x", True),
        ("cost > 1.6x", False),
    ],
)
def test_a_limit_is_exact(limit: str, is_broken: bool) -> None:
    assert bool(broken_limits(REPORT, [parse_limit(limit)])) is is_broken


@pytest.mark.parametrize("text", ["row", "rows < 3", "rows > 3x", "cost > 2", "cost > 2 %", "rows > -1", ""])
def test_what_is_no_limit_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_limit(text)
    assert "rows > 0.1 %" in refused.value.expected


def test_a_gate_that_breaks_fewer_rows_is_not_worse() -> None:
    assert not GateChange(gate="checked", before=BROKEN, after=PASSED).is_worse
    assert not GateChange(gate="checked", before=BROKEN, after=None).is_worse
    assert GateChange(gate="checked", before=None, after=BROKEN).is_worse


def test_the_report_says_first_what_differs_and_what_follows() -> None:
    text = to_markdown(REPORT)
    lines = text.splitlines()
    assert lines[2] == "**Differs**: 4 of 1,000 rows of `revenue`."
    assert "To recompute what is there: `tidegate backfill jobs.orders:pipeline --from 5`" in lines
    assert "| `revenue` | 1,000 | 1,001 | 1 | 0 | 3 | `amount` (3) |" in lines
    assert "| `amount` | 2 → 3.5 | 1 | 3 → 7 | 0 | 1.5 | 4 |" in lines
    assert "| `topic` | – | – | – | – | – | not compared: a replay writes nothing there |" in lines
    assert any(line.startswith("| `checked` ⚠️ |") and "`positive` 4" in line for line in lines)
    assert "| sync | 10.00 s | 16.00 s | +60 % |" in lines
    assert "checkpoints (6 to 7), after checkpoint 5" in text


def test_values_cannot_break_the_table_or_bring_html() -> None:
    example = {"change": "changed", "key": {"id": 1}, "before": {"note": "a|b\nc"}, "after": {"note": "<script>"}}
    tables = {"revenue": msgspec.structs.replace(REVENUE, examples=[example])}
    text = to_markdown(msgspec.structs.replace(REPORT, tables=tables))
    assert "| changed | id = 1 | note = a\\|b c | note = &lt;script> |" in text.splitlines()


def test_names_of_columns_cannot_break_the_table() -> None:
    example = {"change": "added", "key": {"a|b": 1}, "after": {}}
    table = msgspec.structs.replace(REVENUE, columns={"we`ird|name": AMOUNT}, examples=[example])
    lines = to_markdown(msgspec.structs.replace(REPORT, tables={"revenue": table})).splitlines()
    assert "| `revenue` | 1,000 | 1,001 | 1 | 0 | 3 | `we'ird\\|name` (3) |" in lines
    assert "| `we'ird\\|name` | 2 → 3.5 | 1 | 3 → 7 | 0 | 1.5 | 4 |" in lines
    assert "| added | a\\|b = 1 |  |  |" in lines


def test_more_rows_that_differ_than_there_were_are_told_by_how() -> None:
    rows = msgspec.structs.replace(REVENUE, keys=[], rows_before=2, rows_after=2, added=2, removed=2, changed=0)
    new = msgspec.structs.replace(REVENUE, rows_before=0, rows_after=3, added=3, changed=0)
    text = to_markdown(msgspec.structs.replace(REPORT, tables={"rows": rows, "new": new}))
    assert text.splitlines()[2] == "**Differs**: rows of `rows` (2 added, 2 removed), rows of `new` (3 added)."


def test_nothing_differs_is_said_in_one_line() -> None:
    same = msgspec.structs.replace(REVENUE, rows_after=1000, added=0, changed=0, columns={})
    merge = Merge(action="continues", reasons=[], backfill="")
    text = to_markdown(msgspec.structs.replace(REPORT, tables={"revenue": same}, merge=merge, gates=[]))
    assert text.splitlines()[2] == "**Nothing differs**: every replayed row is the same."
    assert "nothing has to be computed again" in text


def test_a_replay_that_a_gate_has_ended_promises_nothing() -> None:
    text = to_markdown(msgspec.structs.replace(REPORT, stopped="checkpoint 7 was aborted: GATE_FAILED", tables={}))
    assert "The pipeline continues with this code" not in text
    assert "checkpoint 7 was aborted: GATE_FAILED" in text


def test_what_a_replay_does_not_repeat_is_named() -> None:
    edit = "in checkpoint 6 ann edited the state of operator 'totals', which no replay repeats"
    assert f"- {edit}" in to_markdown(msgspec.structs.replace(REPORT, manual_edits=[edit])).splitlines()


def test_what_was_not_replayed_to_the_end_is_not_the_same_as_the_last_push() -> None:
    same = SinceLast(proposal="pr-1", created="", same_code=False, same_checkpoints=True, merge=[], tables={}, gates=[])
    assert "The same: rows" in to_markdown(msgspec.structs.replace(REPORT, since=same))
    stopped = msgspec.structs.replace(REPORT, stopped="it does not fit", tables={}, gates=[])
    for before, after in ((REPORT, stopped), (stopped, REPORT)):
        text = to_markdown(msgspec.structs.replace(after, since=since(("pr-1", "", before), after)))
        assert "The same: rows" not in text
        assert "One of both was not replayed to its end. What a merge does is the same." in text
        assert "rows before 1,000" not in text
