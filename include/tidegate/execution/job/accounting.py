"""Accounts for every row: all counts of one stream must agree, or there is no ack.

    who                              has counted
    a source whose files tell        what it was to read
    a job above                      what it has sent
    a gate                           what it judged; and what it let pass: without the bad ones, with those it released
    a table that rows are added to   what lies in its files
    a channel                        what lies in its files

Nothing is read to be counted: a stream of which nobody, or only one, knows a number is taken at its word. That files
hold what was written into them is seen to where they are staged (`delta/files/footers.py: refuse_difference`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tidegate.connectors.sink import Prepared
from tidegate.errors import Unavailable
from tidegate.execution.job.exchange import Exchange
from tidegate.pipeline.graph.graph import Job
from tidegate.records.records import Amount, Verdict

__all__ = ["refuse_unaccounted"]


def refuse_unaccounted(
    job: Job,
    taken: Mapping[str, Amount],
    verdicts: Mapping[str, Verdict],
    staged: Mapping[str, Prepared],
    exchange: Exchange,
) -> None:
    """Raise Unavailable if the counts of a stream differ; the message has each count with its origin."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for name, amount in taken.items():
        if amount.rows is not None:
            counts[name][f"source {name} has"] = amount.rows
    for name, rows in exchange.taken_rows.items():
        counts[name]["the job above has sent"] = rows
    for gated in job.gates:
        if (verdict := verdicts.get(gated.name)) is not None:
            counts[gated.input][f"gate {gated.name} has judged"] = verdict.rows
            passed = verdict.rows - verdict.quarantined + verdict.released
            counts[gated.name][f"gate {gated.name} has let pass"] = passed
    for sinking in job.sinks:
        if sinking.sink.counts_input_rows and (prepared := staged.get(sinking.name)) is not None:
            counts[sinking.input][f"staged for {sinking.name}"] = prepared.rows
    for name, rows in exchange.sent_rows.items():
        counts[name]["sent to other jobs"] = rows
    wrong = [
        f"of {name!r}, " + ", ".join(f"{counter} {rows:,}" for counter, rows in rows_by_counter.items())
        for name, rows_by_counter in counts.items()
        if len(set(rows_by_counter.values())) > 1
    ]
    if wrong:
        raise Unavailable(
            "rows are missing, or there are too many: " + "; ".join(wrong),
            expected="the same number of rows wherever those of one stream are counted",
            help="it is tried again; if it stays so, look whether all machines of Spark see the same files as this "
            "one. Nothing of this attempt counts",
            reason="ROWS_MISSING",
        )
