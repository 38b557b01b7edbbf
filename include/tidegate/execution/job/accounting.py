"""Accounts for every row: all counts of one stream must agree, or there is no ack.

    counted by                                     rows
    a source, if its files have their counts       in its range
    a job upstream                                 that it sent
    a gate                                         that it judged; and that passed: without bad ones, with released ones
    a table that rows are appended to              in its files
    a channel                                      in its files

No row is read only to be counted. A stream with fewer than two counts is not checked. That files have the rows that
were written is checked where they are staged (`delta/files/footers.py: refuse_difference`).
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
        verdict = verdicts.get(gated.name)
        if verdict is not None:
            counts[gated.input][f"gate {gated.name} has judged"] = verdict.rows
            passed = verdict.rows - verdict.quarantined + verdict.released
            counts[gated.name][f"gate {gated.name} has let pass"] = passed
    for sinking in job.sinks:
        prepared = staged.get(sinking.name)
        if prepared is not None and sinking.sink.counts_input_rows:
            counts[sinking.input][f"staged for {sinking.name}"] = prepared.rows
    for name, rows in exchange.sent_rows.items():
        counts[name]["sent to other jobs"] = rows
    differences = []
    for name, rows_by_counter in counts.items():
        if len(set(rows_by_counter.values())) > 1:
            texts = [f"{counter} {rows:,}" for counter, rows in rows_by_counter.items()]
            differences.append(f"of {name!r}, {', '.join(texts)}")
    if differences:
        raise Unavailable(
            "rows are missing, or there are too many: " + "; ".join(differences),
            expected="the same number of rows wherever those of one stream are counted",
            help="the job is retried; if this persists, check that all machines of Spark see the same files as this "
            "one. Nothing of this attempt counts",
            reason="ROWS_MISSING",
        )
