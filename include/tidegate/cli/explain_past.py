"""What `tidegate explain` reads off a row of the history: sizes and delays; all of it, where records are retired."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.checkpoint.condition import REASONS
from tidegate.cli.documents import clock, rows_text, seconds_between, size_text
from tidegate.state.table import STATE

__all__ = ["measured", "past_events"]

SHOWN = 5
"""So many states are told of by name, the largest."""


def measured(row: dict[str, Any]) -> Iterator[str]:
    """Why it took so much, how long it waited, and how large what is remembered has become."""
    for name, part in row["details"]["sources"].items():
        if part.get("pace"):
            yield f"How much of source {name}: {part['pace']['why']}."
    states = sorted(row["details"]["states"].items(), key=lambda each: -each[1]["bytes"])
    if states:
        told = [f"{name.removeprefix(STATE)} {s['rows']:,} rows, {size_text(s['bytes'])}" for name, s in states[:SHOWN]]
        more = f" and {len(states) - SHOWN} more" if len(states) > SHOWN else ""
        new = size_text(sum(state["delta"] for _, state in states))
        yield f"Operators remember {'; '.join(told)}{more}. It has written {new} of that anew."
    delays = {
        "until its last job began": row["delay_seconds"],
        "between the first and the last ack that a job takes from": row["align_seconds"],
        "from its decision until every table showed it": row["publish_seconds"],
    }
    waited = [f"{seconds:.1f} s {what}" for what, seconds in delays.items() if seconds is not None and seconds >= 0.1]
    if waited:
        yield f"It waited {', '.join(waited)}."
    if row["lag_seconds"] is not None:
        yield f"Event time was {row['lag_seconds']:,.0f} s behind the clock when it was decided."


def past_events(row: dict[str, Any]) -> Iterator[str]:
    """The story of one whose records are gone."""
    details = row["details"]
    yield "Its records are retired: this is what the history has of it."
    yield f"It was planned at {clock(row['planned'])} UTC ({row['kind']}), by run {row['run']!r}."
    for name, part in details["sources"].items():
        yield f"Source {name} read {part['summary'] or ('nothing new' if part['empty'] else 'a range')}."
    for job, ack in details["jobs"].items():
        after = seconds_between(row["planned"], ack["acked"])
        staged = f"{after or 0:.1f} s after the plan, with {rows_text(ack['rows']) or 'nothing'}"
        yield f"Job {job} was acknowledged by attempt {ack['attempt']} {staged}."
        yield from (f"Operator {name} counted {rows_text(counted)}." for name, counted in ack["counts"].items())
    for gate, said in details["gates"].items():
        why = f" ({said['why']})" if said["why"] else ""
        aside = f", set {said['quarantined']:,} aside" if said["outcome"] != "abort" else ""
        yield f"Gate {gate} judged {said['rows']:,} rows{aside}: {said['outcome']}{why}."
        yield from (f"Gate {gate}: rule {each['rule']}: {each['why']}." for each in said["broken"])
    yield from measured(row)
    if row["outcome"] == "aborted":
        meaning = f", {REASONS[row['reason']]}" if row["reason"] in REASONS else ""
        yield f"It was aborted at {clock(row['decided'])} UTC: {row['reason']}{meaning}."
    elif row["decided"]:
        by = f", by {row['by']}" if row["by"] else ""
        yield f"It is {row['outcome']} since {clock(row['decided'])} UTC{by}."
    if text := details["detail"] or row["why"]:
        yield f"In its own words: {text}"
    if row["undone_by"] is not None:
        yield f"It no longer counts: rollback {row['undone_by']} went back behind it."
    versions = [f"{name} at version {table['version']}" for name, table in details["tables"].items()]
    if versions:
        yield f"With it the tables stood at: {', '.join(versions)}."
