"""`tidegate explain`: what happened in a checkpoint and why, what it waits for, and what had changed, in prose."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tidegate.checkpoint import approvals as holding
from tidegate.cli.inspect.documents import clock, examples, rows_text, seconds_between, size_text, state_of
from tidegate.cli.inspect.health_text import standing, standing_document, tell_standing
from tidegate.cli.inspect.show import checkpoint_id, past_row, row_of_entry
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, find
from tidegate.config import duration_text
from tidegate.config.settings import masked
from tidegate.errors import TidegateError
from tidegate.execution.runs import abandoned_reason
from tidegate.gates.examples import examples_text
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.history.health import REASONS
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.progress import behind
from tidegate.protocol.rules import ENVIRONMENT_FAILED
from tidegate.protocol.view import Entry, View, rolled_back_by
from tidegate.records.names import entry_name
from tidegate.records.records import Ack, Control, Plan, Published, Restart
from tidegate.state.table import STATE

__all__ = ["add_parser", "measured", "past_events", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "explain",
        help="how a pipeline is and what to do; or what happened in a checkpoint",
        description="Without a number: how the pipeline is, what caused that and what to do about it, then what "
        "happened in the checkpoint that it is about. With one: what happened in that checkpoint, its input, attempts, "
        "decision, what it still waits for, and what had changed in settings and code since the one before it.",
        epilog="examples:\n  tidegate explain orders\n  tidegate explain orders 5\n"
        "  tidegate explain jobs.orders:pipeline 5 --json",
    )
    parser.add_argument(
        "pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline (then losing attempts are listed)"
    )
    parser.add_argument("id", nargs="?", type=checkpoint_id, metavar="ID", help="the checkpoint's number")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    if args.id is not None:
        entry = target.ledger.entry(args.id)
        story = tell(target, entry) if entry is not None else _retired(target, args.id)
        out.document(story.document())
        _print(story, out)
        return 0
    found = standing(target)
    entry = target.ledger.entry(found.entry) if found.entry is not None else None
    about = tell(target, entry) if entry is not None else None
    document = {"pipeline": target.name, **standing_document(found)}
    out.document(document | {"checkpoint": about.document() if about is not None else None})
    tell_standing(found, out)
    if about is not None:
        out.line()
        _print(replace(about, next_step=""), out)
    return 0


def _print(story: Story, out: Output) -> None:
    out.line(f"Checkpoint {story.id} of {story.pipeline}: {story.state}", "bold")
    for text in (*story.events, *story.waits_for, *story.changes):
        out.line(f"- {text}")
    if story.next_step:
        out.line(f"Next: {story.next_step}", "bold")


@dataclass(frozen=True)
class Story:
    """What there is to say about one checkpoint."""

    pipeline: str
    id: int
    state: str
    events: list[str]
    waits_for: list[str]
    changes: list[str]
    next_step: str

    def document(self) -> dict[str, Any]:
        """For scripts. `waits_for` is empty once nothing is open."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _retired(target: Target, id: int) -> Story:
    """Of one whose records are gone."""
    row = past_row(target, id)
    return Story(target.name, id, row["state"], list(past_events(row)), [], [], "")


def tell(target: Target, entry: Entry) -> Story:
    """The whole story."""
    if entry.control is not None:
        return _act(target, entry, entry.control)
    ledger = target.ledger
    published = ledger.published(entry.id)
    if entry.restart is not None:
        return _back(target, entry, entry.restart, published)
    base = ledger.entry(entry.plan.base) if entry.plan.base is not None else None
    waits = list(_waits_for(ledger, entry, base, published))
    return Story(
        pipeline=target.name,
        id=entry.id,
        state=state_of(entry, published),
        events=[
            *(_forked(ledger, entry) if entry.plan.kind == "fork" else (*_planned(entry), *_acked(ledger, entry))),
            *measured(row_of_entry(ledger, entry)),
            *_losers(target, entry),
            *_decided(ledger, entry),
            *_undone(ledger, entry),
            *_shown(published),
        ],
        waits_for=waits,
        changes=list(_changes(entry, base)),
        next_step=_next_step(target, entry, published, waits),
    )


def _act(target: Target, entry: Entry, control: Control) -> Story:
    """An entry that is no checkpoint."""
    told = {"suspend": "let no checkpoint be planned from here on", "resume": "let checkpoints be planned again"}
    told |= {"stop": "stopped the pipeline", "cancel": "cancelled the pipeline, and what was open"}
    if control.final:
        told["cancel"] = "cancelled the pipeline for good, and what was open"
    why = f", because: {control.reason}" if control.reason else ""
    why += "; what a gate would hold again is to be set aside" if control.set_aside else ""
    event = f"At {clock(entry.plan.created)} UTC {control.by} {told[control.action]}{why}."
    return Story(target.name, entry.id, state_of(entry, None), [event], [], [], "")


def _back(target: Target, entry: Entry, restart: Restart, published: Published | None) -> Story:
    """A rollback."""
    why = f", because: {restart.reason}" if restart.reason else ""
    events = [f"At {clock(entry.plan.created)} UTC {restart.by} went back to checkpoint {restart.target}{why}."]
    if entry.decision is not None and not entry.completed:
        events.append(f"It was ended before it was decided ({entry.decision.reason}): nothing was changed.")
    elif entry.completed:
        events.append(f"What was completed after {restart.target} no longer counts; its input is read again.")
        told = {"discard": "what others had committed since is lost", "keep": "its rows were left as they were"}
        told["retract"] = "only this pipeline's own rows were put back"
        events += [f"Table {name}: {told[done.how]}." for name, done in restart.tables.items() if done.how in told]
        events += [f"Table {name} was let go of: what was owed to it never comes there." for name in restart.left]
    if restart.suspended is not None and not entry.aborted:
        events.append(f"The pipeline stays suspended, by {restart.suspended.by}: {restart.suspended.reason}.")
    waits = ["It waits to be published on its tables. The next run does that first."]
    owed = waits if entry.completed and published is None else []
    open_yet = ["Whoever makes it is to decide it; if nobody does, the next run ends it."] if entry.open else []
    state = state_of(entry, published)
    return Story(target.name, entry.id, state, [*events, *_shown(published)], [*owed, *open_yet], [], "")


# -- what happened -------------------------------------------------------------------------------------


def _forked(ledger: Ledger, entry: Entry) -> Iterator[str]:
    """The first entry of a pipeline that was forked."""
    identity = ledger.identity()
    origin = identity.origin if identity is not None else None
    if origin is not None:
        note = f", because: {origin.note}" if origin.note else ""
        yield (
            f"At {clock(entry.plan.created)} UTC {origin.by} forked this pipeline from checkpoint {origin.entry} of"
            f" {origin.pipeline}{note}. Positions and states were copied; nothing was read."
        )


def _planned(entry: Entry) -> Iterator[str]:
    plan = entry.plan
    if plan.drain is not None:
        why = f", because: {plan.drain.reason}" if plan.drain.reason else ""
        yield f"{plan.drain.by} finished the pipeline with it{why}: event time comes to its end."
    if plan.draining is not None:
        yield (
            f"{plan.draining.by} asked for the end; more input waits than it takes, so those behind it read on, and the"
            " one that leaves nothing is the last."
        )
    on = f"on top of checkpoint {plan.base}" if plan.base is not None else "as the pipeline's first"
    if plan.by_interval:
        on = "on its own, as each interval is"
    yield f"It was planned at {clock(plan.created)} UTC ({plan.kind}), {on}, by {_runner(plan)}."
    if entry.interval is not None:
        yield f"Its run's data interval is {entry.interval} UTC.{_replaces(plan)}"
    if plan.through is not None:
        yield f"At least once: jobs write to {', '.join(plan.through) or 'no table'} at once, before it is decided."
    if plan.set_aside:
        yield "What a gate would hold in it goes to quarantine: somebody chose so after a rejection."
    for name, part in plan.sources.items():
        if name.startswith(QUARANTINE):
            yield from [f"It takes up {part.summary} of gate {name.removeprefix(QUARANTINE)}."] * (not part.empty)
        elif part.empty:
            yield f"Source {name} had nothing new."
        else:
            more = " More was waiting already, for a bound of the source or its min_age." if part.more else ""
            yield f"Source {name} reads {part.summary or 'a range'}, exactly that, however often it is tried.{more}"


def _replaces(plan: Plan) -> str:
    return " Its rows take the place of all that the interval had in the tables before." if plan.by_interval else ""


def _runner(plan: Plan) -> str:
    parts = plan.run.split(":")
    return f"process {parts[2]} on {parts[1]}" if parts[0] == "process" and len(parts) == 5 else f"run {plan.run!r}"


def _acked(ledger: Ledger, entry: Entry) -> Iterator[str]:
    for job, acked in sorted(entry.acks.items()):
        ack = acked.ack
        after = seconds_between(entry.plan.created, ack.created)
        when = f"{after:.1f} s after the plan" if after is not None else f"at {clock(ack.created)} UTC"
        begun = seconds_between(entry.plan.created, ack.stats.started) if ack.stats.started else None
        when += f" (begun {begun:.1f} s after it)" if begun is not None else ""
        yield (
            f"Job {job} was acknowledged by attempt {ack.attempt} {when}: it had staged"
            f" {rows_text(ack.stats.rows) or 'nothing'}{_slowest(ack)}."
        )
        yield from _judged(ledger, ack)
        yield from _event_time(ack)
    for job, past in behind(entry).items():
        at = f"stands as of checkpoint {past['at']}" if past["at"] else "has taken nothing yet"
        ids = ", ".join(map(str, past["in_flight"]))
        yield f"It did not wait for job {job}, which {at}: what it had yet to take of {ids} is in flight."
    for gate, said in entry.answers.items():
        what = f"{'approved' if said.approve else 'rejected'} it at gate {gate}{f': {said.note}' if said.note else ''}"
        yield f"At {clock(said.created)} UTC {said.by} {what}."


def _judged(ledger: Ledger, ack: Ack) -> Iterator[str]:
    """What gates found."""
    for gate, said in ack.gates.items():
        kept = "" if said.outcome == "abort" else f", set {said.quarantined:,} aside"
        aside = kept if said.quarantined else ""
        back = f", let {said.released:,} back in from quarantine" if said.released else ""
        why = f" ({said.why})" if said.why else ""
        yield f"Gate {gate} judged {said.rows:,} rows{aside}{back}; its verdict is {said.outcome}{why}."
        found = examples(ledger, said)
        for each in said.broken:
            values = examples_text(found.get(each.rule, []))
            yield f"Gate {gate}: rule {each.rule}: {each.why}{values}; what follows is {each.policy}."


def _event_time(ack: Ack) -> Iterator[str]:
    """How far event time had come, which sources it did not wait for, and what operators counted."""
    stats = ack.stats
    if stats.watermarks:
        marks = ", ".join(f"{name} {clock(at)}" for name, at in stats.watermarks.items())
        yield f"Event time had come, in UTC, to: {marks}."
    if stats.idle:
        yield f"Event time did not wait for {', '.join(stats.idle)}: nothing new for longer than idle_timeout."
    for name, counted in stats.counts.items():
        yield f"Operator {name} counted {rows_text(counted)}."


def _slowest(ack: Ack) -> str:
    if not ack.stats.seconds:
        return ""
    step, seconds = max(ack.stats.seconds.items(), key=lambda pair: pair[1])
    return f"; it spent the most time on {step!r}, {seconds:.1f} s"


def _losers(target: Target, entry: Entry) -> Iterator[str]:
    """Attempts that staged files and never counted: crashed, fenced, or slower. Needs the pipeline's code."""
    if target.pipeline is None:
        return
    from tidegate.cli.doctor.tables import contexts

    winners = {acked.ack.attempt for acked in entry.acks.values()}
    for sinking, context in contexts(target):
        try:
            attempts = filter(entry.owns, sinking.sink.attempts(entry.id, context))
            found = [attempt for attempt in attempts if attempt not in winners]
        except TidegateError:
            continue
        if found:
            names = ", ".join(found)
            yield f"Sink {sinking.name} also holds files of {len(found)} attempts that do not count: {names}."


def _decided(ledger: Ledger, entry: Entry) -> Iterator[str]:
    decision = entry.decision
    if decision is None:
        seen = (
            "nothing of it is visible anywhere" if entry.plan.through is None else "its rows are visible as they come"
        )
        yield f"It is not decided yet: {seen}."
    elif entry.completed:
        yield f"It was completed at {clock(decision.created)} UTC: from then on it counts, whatever crashes."
    else:
        why = f", {REASONS[decision.reason]}" if decision.reason in REASONS else ""
        counted = "It counts as a failure." if decision.counts else "It does not count as a failure."
        yield f"It was aborted at {clock(decision.created)} UTC: {decision.reason}{why}. {counted}"
        if decision.detail:
            yield f"In its own words: {decision.detail}"
        if entry.plan.by_interval:
            yield "Nothing of it became visible; the interval is made by the next run that asks for it."
            return
        retaken = _retaken(ledger, entry)
        where = f"checkpoint {retaken} took" if retaken else "the next checkpoint takes"
        stays = "What its jobs had written to tables stays there, and comes again"
        told = "Nothing of it became visible" if entry.plan.through is None else stays
        yield f"{told}; {where} the same input."


def _retaken(ledger: Ledger, entry: Entry) -> int | None:
    """The next entry that starts where this one did."""
    for id in ledger.ids(after=entry.id):
        later = ledger.entry(id)
        if later is not None and later.plan.base == entry.plan.base:
            return id
    return None


def _undone(ledger: Ledger, entry: Entry) -> Iterator[str]:
    undone = rolled_back_by(entry.id, ledger.rollbacks()) if entry.completed else None
    if undone is not None:
        yield f"It no longer counts: rollback {undone} went back behind it. Its input is read again."


def _shown(published: Published | None) -> Iterator[str]:
    if published is not None and published.tables:
        tables = ", ".join(f"{name} at version {table.version}" for name, table in published.tables.items())
        yield f"With it the tables stand at: {tables}."


# -- what it waits for ---------------------------------------------------------------------------------


def _waits_for(ledger: Ledger, entry: Entry, base: Entry | None, published: Published | None) -> Iterator[str]:
    if entry.completed and published is None:
        yield "It waits to be published on its tables. The next run does that first."
    if not entry.open:
        return
    if base is not None and base.open:
        yield f"It waits for checkpoint {base.id}, its base, to be decided."
    missing = [job for job in entry.plan.acks if job not in entry.acks and job not in entry.overtaken]
    if missing:
        yield f"It waits for the ack of job {', '.join(missing)}.{_time_left(ledger, entry.plan)}"
        if abandoned_reason(entry.plan):
            yield "The process that made it is gone: the next run ends it and takes its input again."
    elif held := holding.pending_approvals_text(View((entry,)), [entry.id]):
        yield f"All jobs have acknowledged it, but {held}."
    elif base is None or not base.open:
        yield "All jobs have acknowledged it: it waits to be decided, which the next run does."


def _time_left(ledger: Ledger, plan: Plan) -> str:
    age = ledger.store.age(f"checkpoints/{entry_name(plan.id)}/plan.json")
    if age is None:
        return ""
    left = plan.timeout_s - age
    return (
        f" It expires in {duration_text(round(left))}." if left > 0 else " Its timeout is over: the next run ends it."
    )


def _next_step(target: Target, entry: Entry, published: Published | None, waits: list[str]) -> str:
    if holding.pending_approvals_text(View((entry,)), [entry.id]):
        return f"{target.command('approve', entry.id)}  or  {target.command('reject', entry.id)}"
    if entry.aborted and entry.decision is not None and entry.decision.reason in ("JOB_FAILED", ENVIRONMENT_FAILED):
        return "mend what the detail says, then run the pipeline again: the same input is planned once more"
    if entry.completed and published is None:
        return "run the pipeline again; `tidegate doctor` tells whether a table is in the way"
    return "run the pipeline again" if waits and entry.open and abandoned_reason(entry.plan) else ""


# -- what had changed ----------------------------------------------------------------------------------


def _changes(entry: Entry, base: Entry | None) -> Iterator[str]:
    """Settings, code, sources and sinks against the checkpoint below."""
    if base is None:
        return
    now, then = entry.plan, base.plan
    changed = False
    settings, others = masked(now.config), masked(then.config)
    for key in sorted(set(settings) | set(others)):
        before, after = others.get(key), settings.get(key)
        if before != after:
            changed = True
            yield f"Setting {key} was {before!r} in checkpoint {base.id} and is {after!r} here."
    for what, ours, theirs in (
        ("source", set(now.sources), set(then.sources)),
        ("sink", set(now.commits), set(then.commits)),
    ):
        for name in sorted(name for name in ours ^ theirs if what == "sink" or not name.startswith(QUARANTINE)):
            changed = True
            state = what == "sink" and name.startswith(STATE)
            told = f"state {name.removeprefix(STATE)}" if state else f"{what} {name}"
            lost = "was left behind, as it was" if state else "is gone"
            yield f"The {told} {'is new' if name in ours else lost} since checkpoint {base.id}."
    if now.code_fingerprint != then.code_fingerprint:
        changed = True
        prints = f"{then.code_fingerprint} → {now.code_fingerprint}"
        yield f"The pipeline's code changed since checkpoint {base.id} ({prints})."
    if not changed:
        yield f"Settings and code are those of checkpoint {base.id}."


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
