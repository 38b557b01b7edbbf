"""The report as Markdown, as GitHub and GitLab render it in a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidegate.history.row import MEASURES
from tidegate.proposal.code_lines import ChangedLines
from tidegate.proposal.report import GateChange, GateFindings, ProposalReport, SinceLast
from tidegate.proposal.tables import ColumnChange, TableDifference
from tidegate.records.records import Json, KeySample

__all__ = ["to_markdown"]

_OUTCOMES = {
    "same": "The code is the same: the pipeline continues, and nothing has to be computed again.",
    "continues": "The pipeline continues, and nothing has to be computed again.",
    "differs": "The pipeline continues with this code. Rows that it has made stay as they are until a backfill.",
    "refused": "The pipeline does not continue with this code:",
}


def to_markdown(report: ProposalReport) -> str:
    """Return the report as Markdown."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ProposalReport) -> Iterator[str]:
    yield f"## What this change does to `{report.pipeline}`"
    yield ""
    yield _headline(report)
    yield ""
    if report.sample is not None:
        yield _sample(report.sample)
        yield ""
    for text in report.broken_limits:
        yield f"- ❌ {_text(text)}"
    if report.broken_limits:
        yield ""
    if report.since is not None:
        yield from _since(report.since)
    yield from _merge(report)
    if report.stopped:
        yield "### Not replayed to the end"
        yield ""
        yield _text(report.stopped)
        yield ""
    if report.manual_edits:
        yield "### Not repeated"
        yield ""
        yield from (f"- {_text(edit)}" for edit in report.manual_edits)
        yield ""
    if report.carried:
        yield _carried(report)
        yield ""
    if report.tables:
        yield from _tables(report)
    yield from _code(report)
    yield from _gates(report.gates)
    yield from _figures(report)
    start = f"after checkpoint {report.begins_after}" if report.begins_after else "from the beginning"
    if report.replayed:
        count = len(report.replayed)
        ids = f"{report.replayed[0]} to {report.replayed[-1]}" if count > 1 else str(report.replayed[0])
        yield (
            f"<sub>Replayed the input of {_count(count, 'checkpoint')} ({ids}), {start}, with the state as of then. "
            f"Code {report.code.before[:12]} → {report.code.after[:12]}. Production was not touched.</sub>"
        )


def _carried(report: ProposalReport) -> str:
    if len(report.carried) == len(report.tables):
        return "Nothing was replayed again: nothing has changed on the paths of these tables since the last push."
    names = ", ".join(f"`{name}`" for name in report.carried)
    return f"Not replayed again, because nothing has changed on their path since the last push: {names}."


def _headline(report: ProposalReport) -> str:
    if report.stopped:
        return "**The replay did not reach its end**, so tables are not compared."
    if not report.differs:
        return "**Nothing differs**: every replayed row is the same."
    differing = {name: table for name, table in report.tables.items() if table.differing}
    if not differing:
        return "No row differs; columns do."
    return f"**Differs**: {', '.join(_how_many(name, table) for name, table in differing.items())}."


def _sample(sample: KeySample) -> str:
    return (
        f"**A sample**: {sample.share * 100:.6g} % of the values of {_name(sample.by)}, chosen by their hash, with all "
        "of their rows. About these it is exact: code, schemas, and which of their rows differ. It does not tell "
        "whether rows of other values differ, what gates say of all rows, or what a checkpoint costs. It cannot be "
        "accepted."
    )


def _how_many(name: str, table: TableDifference) -> str:
    if table.differing <= table.rows_before:
        return f"{table.differing:,} of {table.rows_before:,} rows of `{name}`"
    # Added rows are not among those before; without keys a changed row counts twice.
    counts = {"added": table.added, "removed": table.removed, "changed": table.changed}
    return f"rows of `{name}` ({', '.join(f'{count:,} {how}' for how, count in counts.items() if count)})"


def _since(since: SinceLast) -> Iterator[str]:
    yield f"### Since `{since.proposal}`"
    yield ""
    if not since.compares_tables:
        yield "One of both was not replayed to its end." + ("" if since.merge else " What a merge does is the same.")
        yield ""
    elif not since.differs:
        yield "The same: rows, gates and what a merge does." + (
            " The code is the same, too." if since.same_code else ""
        )
    if since.merge:
        yield f"- a merge: was *{since.merge[0]}*, is *{since.merge[1]}*"
    for name, counts in since.tables.items():
        texts = [f"{count.replace('_', ' ')} {before:,} → {after:,}" for count, (before, after) in counts.items()]
        yield f"- {_name(name)}: {', '.join(texts)}"
    yield from (f"- gate `{gate}`: other verdicts" for gate in since.gates)
    if not since.same_checkpoints:
        yield ""
        yield "Other checkpoints were replayed than then, so rows may differ for that reason."
    yield ""


def _merge(report: ProposalReport) -> Iterator[str]:
    yield "### If it is merged"
    yield ""
    if report.stopped and report.merge.action != "refused":
        yield "The state fits this code. Checkpoints with input like this are aborted, as the replay was."
    elif report.sample is not None and report.merge.action == "continues":
        yield "The pipeline continues with this code. Whether something has to be computed again, a sample cannot tell."
    else:
        yield _OUTCOMES[report.merge.action]
    if report.merge.reasons:
        yield ""
    for reason in report.merge.reasons:
        yield f"- {_text(reason)}"
    if report.merge.backfill:
        yield ""
        yield f"To recompute what is there: `{report.merge.backfill}`"
    yield ""


def _tables(report: ProposalReport) -> Iterator[str]:
    yield "### Tables"
    yield ""
    yield "| table | rows before | after | added | removed | changed | columns that change |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for name, table in report.tables.items():
        columns = ", ".join(f"{_name(column)} ({change.rows:,})" for column, change in table.columns.items())
        cells = [table.rows_before, table.rows_after, table.added, table.removed, table.changed]
        yield f"| {_name(name)} | {' | '.join(f'{cell:,}' for cell in cells)} | {columns or '–'} |"
    for name in report.unchanged_sinks:
        yield f"| `{name}` | – | – | – | – | – | not compared: a replay writes nothing there |"
    yield ""
    for name, table in report.tables.items():
        yield from _schema(name, table)
        yield from _distributions(name, table.columns)
        yield from _examples(name, table.examples)


def _schema(name: str, table: TableDifference) -> Iterator[str]:
    schema = table.schema
    if not schema.changed:
        return
    yield f"Columns of `{name}`:"
    yield ""
    yield from (f"- {_name(column)} {type} is new" for column, type in schema.added.items())
    yield from (f"- {_name(column)} {type} is gone" for column, type in schema.removed.items())
    yield from (f"- {_name(column)} was {before}, and is {after}" for column, (before, after) in schema.retyped.items())
    yield ""


def _distributions(name: str, columns: Mapping[str, ColumnChange]) -> Iterator[str]:
    numbers = {column: change for column, change in columns.items() if change.before and change.after}
    if not numbers:
        return
    yield f"Numbers of `{name}`, all rows:"
    yield ""
    yield "| column | mean | least | greatest | nulls | changes by, on average | at most |"
    yield "| --- | --- | --- | --- | --- | ---: | ---: |"
    for column, change in numbers.items():
        before, after = change.before, change.after
        assert before is not None
        assert after is not None
        cells = [
            _pair(before.mean, after.mean),
            _pair(before.least, after.least),
            _pair(before.greatest, after.greatest),
            _pair(before.nulls, after.nulls),
            _number(change.mean_change),
            _number(change.greatest_change),
        ]
        yield f"| {_name(column)} | {' | '.join(cells)} |"
    yield ""


def _examples(name: str, examples: Sequence[Json]) -> Iterator[str]:
    if not examples:
        return
    yield f"<details><summary>Some rows of {name}</summary>"
    yield ""
    yield "| | key | before | after |"
    yield "| --- | --- | --- | --- |"
    for example in examples:
        cells = [_values(example.get(side)) for side in ("key", "before", "after")]
        yield f"| {example['change']} | {' | '.join(cells)} |"
    yield ""
    yield "</details>"
    yield ""


def _code(report: ProposalReport) -> Iterator[str]:
    code = report.code
    if not (code.parts or code.operators or code.results or code.lines):
        return
    yield "### Code"
    yield ""
    yield from (f"- {_text(part)}" for part in code.parts)
    for operator, parts in code.operators.items():
        yield f"- operator `{operator}` is declared differently: {', '.join(parts)}"
    yield from (f"- {_text(result)}" for result in code.results)
    yield from (f"- {_changed(each, report)}" for each in code.lines)
    yield ""


def _changed(lines: ChangedLines, report: ProposalReport) -> str:
    span = f"line {lines.first}" if lines.first == lines.last else f"lines {lines.first} to {lines.last}"
    tables = []
    for name in lines.tables:
        table = report.tables.get(name)
        differs = " (differs)" if table is not None and table.differing else ""
        tables.append(f"{_name(name)}{differs}")
    return (
        f"{_name(lines.part)} changes in `{_flat(lines.file)}`, {span}, on the way to {', '.join(tables) or 'nothing'}"
    )


def _gates(gates: Sequence[GateChange]) -> Iterator[str]:
    changed = [gate for gate in gates if gate.before != gate.after]
    if not gates:
        return
    yield "### Gates"
    yield ""
    if not changed:
        yield "The same verdicts."
        yield ""
        return
    yield "| gate | before | after |"
    yield "| --- | --- | --- |"
    for gate in changed:
        worse = " ⚠️" if gate.is_worse else ""
        yield f"| `{gate.gate}`{worse} | {_findings_cell(gate.before)} | {_findings_cell(gate.after)} |"
    yield ""


def _findings_cell(findings: GateFindings | None) -> str:
    if findings is None:
        return "none"
    texts = [f"{count} × {outcome}" for outcome, count in sorted(findings.outcomes.items())]
    texts += [f"`{_text(rule)}` {count:,}" for rule, count in sorted(findings.broken.items())]
    if findings.quarantined:
        texts.append(f"{findings.quarantined:,} rows in quarantine")
    return ", ".join(texts)


def _figures(report: ProposalReport) -> Iterator[str]:
    if not report.figures:
        return
    yield "### Cost"
    yield ""
    yield "| | before | after | |"
    yield "| --- | ---: | ---: | ---: |"
    for name, (before, after) in report.figures.items():
        change = f"{(after - before) / before * 100:+,.0f} %" if before and after is not None else ""
        yield f"| {MEASURES[name].label} | {_measured(name, before)} | {_measured(name, after)} | {change} |"
    yield ""
    yield "<sub>Before: as recorded in production. Seconds depend on the machine.</sub>"
    yield ""


def _measured(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    unit = MEASURES[name].unit
    return f"{value:,.2f} s" if unit == "s" else f"{value:,.0f}" + (" B" if unit == "bytes" else "")


def _pair(before: float | None, after: float | None) -> str:
    return _number(before) if before == after else f"{_number(before)} → {_number(after)}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.6g}"


def _values(values: Json | None) -> str:
    if values is None:
        return ""
    return ", ".join(f"{_text(name)} = {_text(str(value))}" for name, value in values.items())


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _name(name: str) -> str:
    """Return the name of a column as code, in one cell."""
    without_ticks = _flat(name).replace("`", "'")
    return f"`{without_ticks}`"


def _flat(text: str) -> str:
    """Return a text that is one cell and one line."""
    return " ".join(text.split()).replace("|", "\\|")


def _text(text: str) -> str:
    """Return a text that is one cell and one line, and starts no HTML."""
    return _flat(text).replace("<", "&lt;")
