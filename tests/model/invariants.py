"""What must hold in every state, and on the way from one state to the next (docs/reliability.md, I1 to I8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.model import diverts, intervals, lines, rollback
from tests.model.facts import Content, Fact, LineFact, Log, State, last
from tests.model.process import steps
from tests.model.world import START, Actor, ModelWorld

PATIENCE = 400
"""A lone process that needs more steps than this is taken to be stuck."""


def broken_by(world: ModelWorld, before: State, after: State) -> str | None:
    """The first thing that is wrong with `after`, or with having come there from `before`."""
    shown_before, shown_after = (before.tables, before.begun), (after.tables, after.begun)
    if before.log is not after.log or shown_before != shown_after or before.hint != after.hint:
        by_interval = (_rewritten, intervals.broken_log, intervals.broken_tables)
        ordinary = (_rewritten, _log, _diverted if world.shape.quarantine else _tables)
        for check in by_interval if world.shape.intervals else ordinary:
            if (problem := next(check(world, before, after), None)) is not None:
                return problem
    if world.line_count and (problem := next(lines.broken(world, before, after), None)) is not None:
        return problem
    for pc in after.pcs:
        if pc[0] == "CORRUPT":
            return f"a false alarm: {pc[1]}"
    facts = (after.log, after.tables, after.hint)
    problem = None
    if (before.log, before.tables, before.hint, before.begun) != (*facts, after.begun):
        problem = world.remembered(alone, *facts, after.begun)
    if (
        problem is None
        and world.line_count
        and (before.log, before.tables, before.hint, before.lines)
        != (
            *facts,
            after.lines,
        )
    ):
        problem = world.remembered(line_alone, *facts, after.lines)
    return problem  # type: ignore[return-value]


def _rewritten(world: ModelWorld, before: State, after: State) -> Iterator[str]:
    """Records are written once. A power loss may take back what nobody may rely on yet."""
    if after.losses < before.losses:
        return
    for id, (old, new) in enumerate(zip(before.log, after.log, strict=False), 1):
        if (old.run, old.base, old.start, old.end) != (new.run, new.base, new.start, new.end):
            yield f"I3: plan {id} was rewritten"
        if not old.open and (old.aborted, old.made) != (new.aborted, new.made):
            yield f"I3: the decision of {id} was rewritten"
        if (old.rollback, old.swap) != (new.rollback, new.swap):
            yield f"I3: plan {id} was rewritten"
        if old.answer is not None and old.answer != new.answer:
            yield f"I3: the answer to {id} was rewritten"


def _log(world: ModelWorld, before: State, after: State) -> Iterator[str]:
    """I1, I3: completed entries tile the input, each run has at most one, each rests on a completed one."""
    reached, runs = 0, {}
    for id, fact in enumerate(after.log, 1):
        if fact is None:
            yield f"entry {id} is gone, entry {id + 1} is not: the ledger is damaged for ever"
            return
        if fact.aborted:
            continue
        if (other := runs.setdefault(fact.run, id)) != id:
            yield f"run {fact.run} has checkpoint {other} and checkpoint {id}"
        if fact.made is None:
            continue
        if fact.rollback is not None:
            yield from rollback.broken_log(id, fact, after.log)
            reached = fact.end
            continue
        yield from _completed(id, fact, after.log, reached)
        if world.shape.held and not fact.answer:
            yield f"checkpoint {id} is completed, though nobody has approved it"
        reached = fact.end


def _completed(id: int, fact: Fact, log: Log, reached: int) -> Iterator[str]:
    if fact.start != reached:
        what = "again" if fact.start < reached else "and skips some"
        yield f"I1: completed checkpoint {id} reads ({fact.start}, {fact.end}] {what}; {reached} were read before"
    if fact.base is not None and log[fact.base - 1].made is None:
        yield f"I3: checkpoint {id} is completed, its base {fact.base} is not"
    assert fact.made is not None
    for job, attempts in enumerate(fact.made.acks):
        if len(set(attempts)) > 1:
            yield f"checkpoint {id} mixes attempts {attempts} of job {job}"
        if attempts != fact.acks[job]:
            yield f"I6: the manifest of {id} names an ack of job {job} by {attempts}, the ack is by {fact.acks[job]}"


def _diverted(world: ModelWorld, before: State, after: State) -> Iterator[str]:
    yield from diverts.broken(before, after)


def _tables(world: ModelWorld, before: State, after: State) -> Iterator[str]:
    """I1, I4: a table shows the contents of a prefix of the completed entries: none twice, no hole, none beyond."""
    rollbacks = any(fact is not None and fact.rollback is not None for fact in after.log)
    for table, commits in enumerate(after.tables):
        if rollbacks:
            yield from rollback.broken_tables(after.log, table, commits, after.hint)
            continue
        owed = [
            (id, fact.made.content[table])
            for id, fact in enumerate(after.log, 1)
            if fact.made is not None and fact.made.content[table] is not None
        ]
        shown = [(commit.id, commit.content) for commit in commits]
        if shown == owed[: len(shown)]:
            continue
        for id, content in shown:
            if not 1 <= id <= len(after.log) or after.log[id - 1].made is None:
                yield f"I4: table {table} shows checkpoint {id}, which is not completed"
            elif (id, content) not in owed:
                yield f"I4: table {table} shows {content} for checkpoint {id}, decided was something else"
        yield f"I1: table {table} shows checkpoints {[id for id, _ in shown]}, completed are {[id for id, _ in owed]}"


# -- I8 ------------------------------------------------------------------------------------------------


def alone(
    world: ModelWorld, log: Log, tables: tuple[object, ...], hint: int, part: tuple[int, Content] | None
) -> str | None:
    """I8: from here, one new run alone ends what is open, completes its own, and publishes all that is owed."""
    patient = world.remembered(_patient)
    assert isinstance(patient, ModelWorld)
    state = State(log=log, tables=tables, hint=hint, pcs=(START,), begun=part)  # type: ignore[arg-type]
    for _ in range(PATIENCE):
        if state.pcs[0][0] == "END":
            by_interval = bool(world.shape.intervals)
            if world.shape.quarantine:
                return diverts.owed(state) or _completed_one(state)
            return _owed(state, by_interval) or (intervals.owed(world, state) if by_interval else None)
        choices = list(steps(patient, state, 0))
        if not choices:
            return f"I8: a lone process is stuck at {state.pcs[0]}"
        before, state = state, choices[-1][1]  # the last alternative is the one that gives others up
        check = intervals.broken_tables if world.shape.intervals else _tables
        check = _diverted if world.shape.quarantine else check
        if state.tables is not before.tables and (problem := next(check(patient, before, state), None)):
            return problem
        if state.pcs[0][0] == "CORRUPT":
            return f"I8: a lone process is told: {state.pcs[0][1]}"
    return f"I8: a lone process is not done after {PATIENCE} steps"


def line_alone(
    world: ModelWorld, log: Log, tables: tuple[object, ...], hint: int, lines_before: tuple[LineFact, ...]
) -> str | None:
    """I8 for lines: once a run has ended what was open, the same command swaps a line in, or says why it never can."""
    patient = world.remembered(_patient)
    assert isinstance(patient, ModelWorld)
    state = State(log=log, tables=tables, hint=hint, pcs=(START,), lines=lines_before)  # type: ignore[arg-type]
    starts = [START, *(("LB", number) for number, line in enumerate(lines_before) if line.origin is not None)]
    for start in starts:
        world_of_one = patient if start == START else world.remembered(_line_process, start[1])
        assert isinstance(world_of_one, ModelWorld)
        state = state._replace(pcs=(start,))
        for _ in range(PATIENCE):
            if state.pcs[0][0] in ("END", "NO", "CORRUPT"):
                break
            choices = list(steps(world_of_one, state, 0))
            if not choices:
                return f"I8: a lone process of a line is stuck at {state.pcs[0]}"
            before, (text, state) = state, choices[-1]
            if problem := next(lines.broken(world, before, state), None):
                return f"alone: {problem}"
        else:
            return f"I8: a lone process of a line is not done after {PATIENCE} steps, of which the last {text}"
        if state.pcs[0][0] == "CORRUPT":
            return f"I8: a lone process of a line is told: {state.pcs[0][1]}"
        if start != START and (problem := lines.unfinished(state, start[1])):
            return problem
    return None


def _line_process(world: ModelWorld, line: int) -> ModelWorld:
    """The same rules with one process of a line."""
    actor = Actor("lone line", lines.run_of(line), ("LB", line))
    return replace(world, actors=(actor,), max_ids=1000, give_up=True)


def _patient(world: ModelWorld) -> ModelWorld:
    """The same rules with one process, and as many ids as it likes."""
    return replace(world, actors=(Actor("lone", run="lone"),), max_open=1, max_ids=1000, give_up=True)


def _owed(state: State, by_interval: bool) -> str | None:
    for table, commits in enumerate(state.tables if not by_interval else ()):
        completed = [
            id for id, f in enumerate(state.log, 1) if f.made is not None and f.made.content[table] is not None
        ]
        if any(fact.rollback is not None for fact in state.log):
            if rollback.shown(commits) != rollback.wanted(state.log, table, len(state.log)):
                return f"I8: after a lone process was done, table {table} does not show what is completed"
        elif completed and last(commits) != completed[-1]:
            return f"I8: after a lone process was done, checkpoint {completed[-1]} is still not on table {table}"
    return _completed_one(state)


def _completed_one(state: State) -> str | None:
    mine = [fact for fact in state.log if fact.run == "lone" and fact.made is not None]
    return None if mine else "I8: a lone process completed nothing"
