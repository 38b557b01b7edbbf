"""Trigger, job and completion of one run, one access to the store per step."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.facts import Content, Fact, Log, Made, staged, table_name
from tests.model.intervals import filed
from tests.model.stepper import Step, Stepper, put
from tests.model.world import BY_HAND, PUBLISH, START, Pc, ask_clock, ask_completion, ask_job, ask_trigger, entry
from tidegate.protocol import rules

# -- trigger ---------------------------------------------------------------------------------------------


def trigger(at: Stepper) -> Iterator[Step]:
    """T1 to T5 in one read of the log."""
    facts, first = at.window()
    if at.actor.careful:
        yield f"lists entries {first} to {first + len(facts) - 1}", at.go(("TR", first, len(facts), ()))
    else:
        yield from _asked(at, facts, first)


def trigger_reads(at: Stepper, first: int, count: int, seen: Log) -> Iterator[Step]:
    """T1 entry by entry, as the ledger does it: highest first, then the run's index."""
    if len(seen) < count:
        id = first + count - 1 - len(seen)
        yield f"reads entry {id}", at.go(("TR", first, count, (at.log[id - 1], *seen)))
    else:
        yield from _asked(at, seen, first)


def _asked(at: Stepper, facts: Log, first: int) -> Iterator[Step]:
    """What the protocol answers, for each open entry that this process might have reason to give up."""
    run, own = at.actor.run, at.elsewhere()
    others = [first + n for n, fact in enumerate(facts) if fact.open and fact.run != run]
    answers: list[object] = []
    for doomed in [None, *(others if at.world.give_up else [])]:
        below = (filed(at),) if at.world.shape.intervals else ()
        answer = at.world.remembered(ask_trigger, facts, first, own, run, doomed, *below)
        if answer in answers:
            continue
        answers.append(answer)
        if isinstance(answer, rules.Adopt):
            yield f"adopts checkpoint {answer.id}", at.go(("J", answer.id, 0))
        elif isinstance(answer, rules.Abort):
            ahead = _planned_blindly(at, facts, first, answer.id)
            yield f"wants to abort {answer.id} ({answer.reason})", at.go(("TA", answer.id, ahead))
        elif isinstance(answer, rules.CreateEntry) and answer.id <= at.world.max_ids:
            yield f"plans {answer.id} on top of {answer.base}", at.go(_create(at, facts, first, answer))


def _create(at: Stepper, facts: Log, first: int, answer: rules.CreateEntry) -> Pc:
    """The next step: create the entry, from where its base ends; W2 for all that this rests on."""
    base = facts[answer.base - first] if answer.base is not None else None
    pc: Pc = ("TC", answer.id, answer.base, base.end if base else 0)
    if at.broken("plan on what is not durable"):
        return pc
    return at.settled(tuple(range(answer.base or 1, answer.id)), pc)


def _planned_blindly(at: Stepper, facts: Log, first: int, doomed: int) -> Pc | None:
    """Broken on purpose: what would be planned if the abort that has yet to be made had won."""
    if not at.broken("plan after aborts without re-reading"):
        return None
    stale = put(facts, doomed - first + 1, facts[doomed - first]._replace(aborted=True))
    answer = at.world.remembered(ask_trigger, stale, first, at.elsewhere(), at.actor.run, None)
    if isinstance(answer, rules.CreateEntry) and answer.id <= at.world.max_ids:
        return _create(at, stale, first, answer)
    return None


def trigger_abort(at: Stepper, id: int, ahead: Pc | None) -> Iterator[Step]:
    """T3: whether the abort won is not asked; the log is read again."""
    yield at.abort(id, START if ahead is None else ahead)


def trigger_create(at: Stepper, id: int, base: int | None, start: int) -> Iterator[Step]:
    """T6: the create settles it."""
    nobody = tuple((None,) * len(tables) for tables in at.world.shape.jobs)
    by_hand = at.actor.run == BY_HAND
    clock = at.world.remembered(ask_clock, id, at.fact(base), by_hand)
    assert isinstance(clock, int)
    end = start if by_hand else start + 1
    fact = Fact(at.actor.run, base, start, end, nobody, clock=clock, by_hand=by_hand)
    if id == len(at.log) + 1:
        text = f"creates entry {id}: offsets ({start}, {end}] on top of {base}"
        yield text, at.create(("TI", id), (*at.log, fact), "plan", id)
    elif at.broken("overwrite plan"):
        yield f"overwrites plan {id}", at.go(("TI", id), log=put(at.log, id, fact))
    elif at.broken("take the next free id"):
        if id < at.world.max_ids:
            yield f"finds {id} taken, tries {id + 1}", at.go(("TC", id + 1, base, start))
    else:
        yield f"finds {id} taken", at.go(START)


def trigger_index(at: Stepper, id: int) -> Iterator[Step]:
    """T6."""
    yield f"creates runs/ for {id}", at.go(("J", id, 0), log=at.index(id))


# -- job -------------------------------------------------------------------------------------------------


def job(at: Stepper, id: int, number: int) -> Iterator[Step]:
    """J1: may this job still do its work?"""
    fact = at.log[id - 1]
    answer = at.world.remembered(ask_job, id, fact, at.fact(fact.base), number)
    done: Pc = ("J", id, number + 1) if number + 1 < len(fact.acks) else ("C", id)
    if isinstance(answer, rules.RunJob):
        yield f"stages job {number} of {id}", at.go(("JA", id, number, 0))
    elif isinstance(answer, rules.DoneAlready):
        yield f"finds the ack of job {number} of {id}", at.go(done)
    elif isinstance(answer, rules.Stop):
        # A run that lost its entry asks for another one; a base that is gone is the completion's business.
        yield f"stops job {number} of {id}: {answer.why}", at.go(START if fact.aborted else done)


def job_ack(at: Stepper, id: int, number: int, part: int) -> Iterator[Step]:
    """J5: the first ack counts, whole."""
    fact, after = at.log[id - 1], ("J", id, number)
    ack = fact.acks[number]
    if at.broken("content beside the ack") and part == 0:
        log = put(at.log, id, fact._replace(beside=at.attempt))
        yield f"writes its content for {id} beside the ack", at.go(("JA", id, number, 1), log=log)
        return
    if at.broken("ack per table"):
        if ack[part] is None:
            ack = (*ack[:part], at.attempt, *ack[part + 1 :])
        if part + 1 < len(ack):
            after = ("JA", id, number, part + 1)  # type: ignore[assignment]
    elif not fact.acked(number) or at.broken("overwrite ack"):
        ack = (at.attempt,) * len(ack)
    if ack == fact.acks[number]:
        yield f"finds the ack of job {number} of {id} by another attempt", at.go(after)
        return
    log = put(at.log, id, fact._replace(acks=(*fact.acks[:number], ack, *fact.acks[number + 1 :])))
    yield f"acks job {number} of {id}", at.create(after, log, "ack", id, number)


# -- completion ------------------------------------------------------------------------------------------


def completion(at: Stepper, id: int) -> Iterator[Step]:
    """D1, D2."""
    fact = at.log[id - 1]
    answer = at.world.remembered(ask_completion, id, fact, at.fact(fact.base))
    if isinstance(answer, rules.Abort):
        yield f"wants to abort {id} ({answer.reason})", at.go(("CA", id))
    elif isinstance(answer, rules.Complete):
        pc: Pc = ("CD" if at.broken("run index after the decision") else "CI", id, manifest(at, id, fact))
        if not at.broken("complete on what is not durable"):
            pc = at.settled((id, fact.base), pc)
        yield f"writes a manifest for {id}", at.go(pc)
    elif isinstance(answer, rules.Undecided):
        yield f"says no to {id}", at.go(("CH", id, False))
        yield f"says yes to {id}", at.go(("CH", id, True))
    elif isinstance(answer, rules.DoneAlready):
        yield f"finds {id} decided", at.go(START if fact.aborted else PUBLISH)


def manifest(at: Stepper, id: int, fact: Fact) -> Made:
    """D3, as Coordinator._manifest makes it."""
    shape = at.world.shape
    before = entry(at.world, fact.base, at.fact(fact.base))
    after: list[int | None] = []
    content: list[Content | None] = []
    for table in range(shape.tables):
        if before is None:
            after.append(None)
        elif before.manifest is None:
            after.append(fact.base)  # only a broken protocol builds on what is not completed
        else:
            after.append(rules.after_publish([before.manifest], table_name(table)))
        content.append(None if fact.by_hand or shape.empty(table, fact.end) else staged(shape, fact, table))
    return Made(fact.acks, tuple(after), tuple(content))


def complete_abort(at: Stepper, id: int) -> Iterator[Step]:
    """D1; then look at what holds."""
    yield at.abort(id, ("C", id))


def complete_answer(at: Stepper, id: int, approve: bool) -> Iterator[Step]:
    """D5: the first answer counts, a person's or the time limit's."""
    fact = at.log[id - 1]
    if fact.answer is None or at.broken("overwrite answer"):
        log = put(at.log, id, fact._replace(answer=approve))
        yield f"the answer to {id} is {'yes' if approve else 'no'}", at.create(("C", id), log, "answer", id)
    else:
        yield f"finds an answer to {id}", at.go(("C", id))


def complete_index(at: Stepper, id: int, made: Made) -> Iterator[Step]:
    """D3: before the decision, for a run that is triggered again must find what it did."""
    late = at.broken("run index after the decision")
    yield f"creates runs/ for {id}", at.go(("C", id) if late else ("CD", id, made), log=at.index(id))


def complete_decide(at: Stepper, id: int, made: Made) -> Iterator[Step]:
    """THE commit point: one winner."""
    fact = at.log[id - 1]
    pc: Pc = ("CI", id, made) if at.broken("run index after the decision") else ("C", id)
    if fact.open:
        yield f"decides: {id} is completed", at.create(pc, put(at.log, id, fact._replace(made=made)), "decision", id)
    elif at.broken("overwrite decision"):
        log = put(at.log, id, fact._replace(made=made, aborted=False))
        yield f"overwrites the decision: {id} is completed", at.go(pc, log=log)
    elif at.broken("decision not read back") and made.content[0] is not None:
        yield f"believes that {id} is completed", at.go(("PC", 0, at.head(0), id, made.content[0], None))
    else:
        yield f"finds {id} decided", at.go(pc)
