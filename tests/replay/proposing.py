"""A random change of a drawn pipeline's code is proposed, merged and accepted: what its report says differs is exactly
what then differs.

The report is compared with tables as delta-rs reads them before the swap and after it, counted by plain Python, and
with the report of a push after another one, which replays only what has changed between both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.replay.oracle import Trial
from tests.spark.mended_shop import OneSession, never
from tidegate.backfill import discard, open_line, replay, swap
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid, Rejected
from tidegate.execution.loop import Observer, Schedule
from tidegate.proposal.acceptance import changes_nothing, compare_again
from tidegate.proposal.pushes import carry_over, choose_sinks, find_last_push, hash_paths, only_sinks, store_push
from tidegate.proposal.replay import ReplayRange, choose_range, impossible, opened
from tidegate.proposal.replay import run as replay_proposal
from tidegate.proposal.report import ProposalReport, make_report
from tidegate.proposal.tables import TableDifference

__all__ = ["propose_and_accept"]

Rows = list[dict[str, Any]]


def propose_and_accept(trial: Trial, change: str) -> None:
    """Propose a change of the code of a pipeline, and accept it."""
    play, told = trial.play, trial.told
    before = read_tables(play.coordinator())
    play.drawn = replace(play.drawn, change=change)
    live = play.coordinator()
    origin = trial.dice.choice(["beginning", *map(str, play.origins()[:-1])])
    subject = f"proposal of {change!r} from {origin}"
    with trial.later():
        try:
            chosen = choose_range(live.ledger, over=None, origin=origin, end=None)
        except Invalid as error:
            told.note(f"{subject}: {error.reason}")
            return
        if problems := impossible(live, chosen, keep=True):
            told.refused += 1
            told.note(f"{subject} is refused: {problems[0]}")
            return
        told.backfills += 1
        told.note(subject)
        pushed = _push_another_change(trial, chosen)
        with opened(live, chosen, by="ann", note="", keep=True) as line:
            made = replay_proposal(line, OneSession(play.spark), Schedule(), Observer())
            report = make_report(line, chosen, made, live=live, command="drawn", examples=1000)
        if pushed:
            _push(trial, chosen, report)
    if read_tables(live) != before:
        told.finds(f"{subject} has changed the pipeline's tables")
    if made.stopped is not None:
        told.note(f"it ends: {made.stopped.what}")
        with trial.later():
            discard(line, "ann")
        return
    _accept(trial, line.name, report, before)


def _push_another_change(trial: Trial, chosen: ReplayRange) -> bool:
    """Let there be an earlier push, whose code differs on the path of some tables. Return whether it has a report."""
    play = trial.play
    play.drawn = replace(play.drawn, has_fewer_others=True)
    earlier = play.coordinator()
    play.drawn = replace(play.drawn, has_fewer_others=False)
    if impossible(earlier, chosen):
        return False
    with opened(earlier, chosen, by="ann", note="", keep=False) as line:
        made = replay_proposal(line, OneSession(play.spark), Schedule(), Observer())
        report = make_report(line, chosen, made, live=earlier, command="drawn", examples=1000)
    store_push(earlier.ledger, "drawn", (), report, hash_paths(earlier, (), 1000))
    return True


def _push(trial: Trial, chosen: ReplayRange, whole: ProposalReport) -> None:
    """Replay only what has changed since the earlier push, and compare with the report about everything."""
    live, told = trial.play.coordinator(), trial.told
    push = find_last_push(live.ledger, "drawn", (), hash_paths(live, (), 1000))
    assert push is not None
    changed = choose_sinks(live.graph, push.unchanged)
    if not push.unchanged or not changed or push.replayed != chosen:
        return
    part = only_sinks(live, replace(trial.play.limits, recorded={"allow_non_restored_state": True}), changed)
    with opened(part, chosen, by="ann", note="", keep=False) as line:
        made = replay_proposal(line, OneSession(trial.play.spark), Schedule(), Observer())
        report = make_report(line, chosen, made, live=live, command="drawn", examples=1000)
    report = carry_over(live, report, push, part, command="drawn")
    told.note(f"the next push does not replay {', '.join(report.carried)}")
    told.tables += len(report.carried)
    for name in ("tables", "gates", "merge", "stopped", "unchanged_sinks"):
        if getattr(report, name) != getattr(whole, name):
            told.finds(f"after a push, {name} are reported as {getattr(report, name)}, not {getattr(whole, name)}")


def _accept(trial: Trial, name: str, report: ProposalReport, before: Mapping[str, Rows]) -> None:
    """Swap it in, and compare what has become of the tables with its report."""
    told, live = trial.told, trial.play.coordinator()
    record = live.ledger.line(name)
    assert record is not None
    line = open_line(live, record)
    with trial.later():
        replay(line, OneSession(trial.play.spark), Schedule(), Observer())
        again = compare_again(line)
        if changes_nothing(line, again):
            told.note("nothing differs")
            discard(line, "ann")
        else:
            try:
                swap(line, by="ann", choices={}, wait=never)
            except Rejected as error:
                told.finds(f"what was proposed is not swapped in: {error}")
            discard(line, "ann")
    after = read_tables(live)
    for table, reported in report.tables.items():
        told.tables += 1
        told.rows += len(after[table])
        if again[table] != replace_examples(reported):
            told.finds(f"{table}: nothing has happened since, and it compares as {again[table]}, not as {reported}")
        for problem in problems_of(reported, before[table], after[table]):
            told.finds(f"{table}: {problem}")


def replace_examples(reported: TableDifference) -> TableDifference:
    """Return what is reported without examples of rows, which nobody asks for when it is accepted."""
    import msgspec

    return msgspec.structs.replace(reported, examples=[])


def read_tables(live: Coordinator) -> dict[str, Rows]:
    """Return the rows of the pipeline's tables; of none that a replay leaves as they are."""
    tables: dict[str, Rows] = {}
    contexts = live.contexts(live.graph.sinks)
    for name, sinking in live.graph.sinks.items():
        location = sinking.sink.delta_table(contexts[name])
        if location is None:
            continue
        tables[name] = []
        if (Path(location.url) / "_delta_log").exists():
            tables[name] = sorted(DeltaTable(location.url).to_pyarrow_table().to_pylist(), key=repr)
    return tables


def problems_of(reported: TableDifference, before: Rows, after: Rows) -> list[str]:
    """Return where the report is not exactly what differs between the rows before and after."""
    counted: dict[str, int]
    if reported.keys:
        counted = _by_key(reported.keys, before, after)
    else:
        old, new = (Counter(map(repr, rows)) for rows in (before, after))
        counted = {"added": (new - old).total(), "removed": (old - new).total(), "changed": 0}
    counted |= {"rows_before": len(before), "rows_after": len(after)}
    wrong = []
    for what, count in counted.items():
        told = getattr(reported, what) if not what.startswith("column ") else _column(reported, what)
        if told != count:
            wrong.append(f"{what}: the report says {told}, and it is {count}")
    for name in reported.columns:
        if f"column {name}" not in counted:
            wrong.append(f"column {name} does not differ, and the report says so")
    differing = counted["added"] + counted["removed"] + counted["changed"]
    if not reported.keys:  # a row that is there twice is one example
        differing = len({repr(example) for example in reported.examples})
    if len(reported.examples) != min(differing, 1000):
        wrong.append(f"{differing} rows differ, and {len(reported.examples)} examples are given")
    return wrong


def _column(reported: TableDifference, what: str) -> int:
    change = reported.columns.get(what.removeprefix("column "))
    return change.rows if change is not None else 0


def _by_key(keys: Sequence[str], before: Rows, after: Rows) -> dict[str, int]:
    """Count the rows that differ by their keys, and by column."""
    old, new = ({repr([row[key] for key in keys]): row for row in rows} for rows in (before, after))
    both = old.keys() & new.keys()
    changed = [key for key in both if repr(old[key]) != repr(new[key])]
    counted = {
        "added": len(new.keys() - old.keys()),
        "removed": len(old.keys() - new.keys()),
        "changed": len(changed),
    }
    for key in changed:
        for column, value in old[key].items():
            if repr(value) != repr(new[key][column]):
                counted[f"column {column}"] = counted.get(f"column {column}", 0) + 1
    return counted
