"""Lines in the model: forked, replayed, swapped in and discarded, one access to the store per step.

What happens inside of a line is what happens in any pipeline, which the model explores as such. So a checkpoint of a
line is one step here. What matters is all that lies between the two logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model import rollback
from tests.model.facts import Content, Fact, LineFact, Log, Made, State, Swap, clock_of
from tests.model.stepper import Step, Stepper, put
from tests.model.world import (
    END,
    PUBLISH,
    ModelWorld,
    Pc,
    ask_cut,
    ask_discard,
    ask_hold,
    ask_replay,
    ask_swap,
    ask_swap_clock,
    held_live,
)
from tidegate.protocol import rules
from tidegate.protocol.backfill import (
    BackfillProgress,
    ChangedByHand,
    FillGap,
    Refuse,
    RemoveBackfill,
    Replay,
    ReplayCut,
    Swapped,
)
from tidegate.protocol.view import rollback_of


def run_of(line: int) -> str:
    """The run of its swap."""
    return f"line{line}"


def changed(at: Stepper, line: int, **made: object) -> tuple[LineFact, ...]:
    """All lines, with a record of one made or gone."""
    lines = at.state.lines
    return (*lines[:line], lines[line]._replace(**made), *lines[line + 1 :])


def progress(world: ModelWorld, fact: LineFact, line: int) -> BackfillProgress:
    """What the protocol asks a line."""
    assert fact.origin is not None
    head = fact.checkpoints[-1][0] if fact.checkpoints else fact.origin
    return BackfillProgress(run_of(line), fact.origin, head, fact.replayed, fact.lowest)


def rollbacks(log: Log) -> tuple[tuple[int, int], ...]:
    """All completed ones, found by their pins."""
    found = ((id, fact) for id, fact in enumerate(log, 1) if fact.made is not None and not fact.gone)
    return tuple((id, fact.rollback) for id, fact in found if fact.rollback is not None)


def swaps(log: Log) -> tuple[int, ...]:
    """Those that are swaps."""
    return tuple(id for id, _ in rollbacks(log) if log[id - 1].swap is not None)


def undoing_input(log: Log) -> tuple[tuple[int, int], ...]:
    """Those that are none: input that was read is read again after them."""
    return tuple((id, target) for id, target in rollbacks(log) if log[id - 1].swap is None)


def _window(at: Stepper, log: Log, reached: int) -> tuple[Log, int]:
    """The log as far down as the line has replayed."""
    first = max(min(at.state.hint, reached), 1)
    return log[first - 1 :], first


# -- the beginning (L1) ------------------------------------------------------------------------------------


def begin(at: Stepper, line: int) -> Iterator[Step]:
    """Choose a checkpoint; or continue with a line that is there."""
    fact = at.state.lines[line]
    if fact.tombstone or not fact.records:
        yield f"finds line {line} discarded", at.go(END)
    elif fact.origin is not None:
        yield f"goes on with line {line}", at.go(("LR", line))
    else:
        lowest = 1 + max((id for id, each in enumerate(at.log, 1) if each.retired), default=0)
        possible = {0: lowest} | {id: id for id in rollback.targets(at)}
        for origin in at.world.origins:
            first = "LC" if at.broken("check the line's origin, then pin it") else "LP"
            if origin in possible:
                yield f"will fork line {line} from {origin}", at.go((first, line, origin, possible[origin]))


def pin_origin(at: Stepper, line: int, origin: int, lowest: int) -> Iterator[Step]:
    """The pin before the check. If the line begins with nothing: on the lowest entry above what is retired."""
    then = "LF" if at.broken("check the line's origin, then pin it") else "LC"
    lowest = next((entry for owner, entry in at.state.pins if owner == ("line", line)), lowest)  # the first one counts
    pins = at.state.pins | {(("line", line), lowest)}
    yield f"pins {lowest} for line {line}", at.go((then, line, origin and lowest, lowest), pins=pins)


def check_origin(at: Stepper, line: int, origin: int, lowest: int) -> Iterator[Step]:
    """Was retention faster? Then the pin stays: another process may have begun the line by it."""
    looked_at = at.log[lowest - 1 : lowest] if at.broken("look at the origin alone") else at.log[lowest - 1 :]
    if any(fact.retired for fact in looked_at):
        pins = at.state.pins
        if at.broken("unpin an origin that is found retired"):
            pins = frozenset(pin for pin in pins if pin[0] != ("line", line))
        yield f"finds that {lowest} or what lies above is retired", at.go(END, pins=pins)
    else:
        then = "LP" if at.broken("check the line's origin, then pin it") else "LF"
        yield f"finds {lowest} retained, and what lies above", at.go((then, line, origin, lowest))


def fork(at: Stepper, line: int, origin: int, lowest: int) -> Iterator[Step]:
    """The line's own first record. The first one to begin it determines the origin."""
    fact = at.state.lines[line]
    if fact.tombstone and (fact.origin is None or not fact.records) and not at.broken("leave a pin behind"):
        pins = frozenset(pin for pin in at.state.pins if pin[0] != ("line", line))
        yield f"finds line {line} discarded, and unpins {lowest}", at.go(END, pins=pins)
    elif fact.tombstone or fact.origin is not None:
        yield f"finds line {line} begun or discarded", at.go(("LB", line))
    else:
        lines = changed(at, line, origin=origin, lowest=lowest)
        yield f"forks line {line} from {origin}", at.go(("LR", line), lines=lines)


# -- replay (L2) -------------------------------------------------------------------------------------------


def replay(at: Stepper, line: int) -> Iterator[Step]:
    """How far is the line? That is read before the log, which must not be older."""
    fact = at.state.lines[line]
    if not fact.records:
        yield f"finds line {line} gone", at.go(END)
    elif not at.actor.careful:
        yield from _next_replay(at, line, fact, at.log)
    elif at.broken("read the log before the line"):
        yield "reads the log", at.go(("LRL", line, at.log))
    else:
        yield f"reads how far line {line} is", at.go(("LRV", line, fact))


def replay_log(at: Stepper, line: int, fact: LineFact) -> Iterator[Step]:
    """Then the log."""
    yield from _next_replay(at, line, fact, at.log)


def replay_line(at: Stepper, line: int, log: Log) -> Iterator[Step]:
    """Broken on purpose: the line after the log."""
    yield from _next_replay(at, line, at.state.lines[line], log)


def _next_replay(at: Stepper, line: int, fact: LineFact, log: Log) -> Iterator[Step]:
    """Ask what there is to replay: one entry, or all as one."""
    known = progress(at.world, fact, line)
    facts, first = _window(at, log, known.reached)
    undoing = (rollbacks(log), swaps(log))
    answer = at.world.remembered(ask_replay, facts, first, _elsewhere(at, line, first), known, undoing)
    if isinstance(answer, Replay):
        yield from _next_cut(at, line, fact, facts, first, answer)
    elif isinstance(answer, Swapped):
        yield f"finds line {line} swapped in by {answer.id}", at.go(PUBLISH)
    elif isinstance(answer, Refuse):
        yield f"says that line {line} cannot go on: {answer.why}", at.go(("NO", line))
    else:
        yield f"finds that line {line} has caught up", at.go(("LS", line))


def _next_cut(at: Stepper, line: int, fact: LineFact, facts: Log, first: int, answer: Replay) -> Iterator[Step]:
    """Which of them the next checkpoint covers. If a person has changed something by hand, it is said, or dropped."""
    before = fact.clocks[-1] if fact.clocks else at.log[fact.origin - 1].clock if fact.origin else None
    for drops in (False, True):
        cut = _cut(at, facts, first, answer.ids, before, drops=drops)
        if isinstance(cut, ChangedByHand):
            yield f"says that line {line} meets changes by hand: {cut.ids}", at.go(("NO", line))
            continue
        assert isinstance(cut, ReplayCut)
        for ids in dict.fromkeys((cut.ids[:1], cut.ids)) if not at.world.recorded else (cut.ids,):
            part = cut if ids == cut.ids else _cut(at, facts, first, ids, before, drops=drops)
            assert isinstance(part, ReplayCut)
            clock = clock_of(part.clock)
            pc: Pc = ("LA", line, fact.checkpoints, ids, clock, drops)
            if not at.broken("replay what is not durable"):
                pc = at.settled(ids, pc)
            yield f"will replay {ids} in line {line}, at {clock}", at.go(pc)
        if not any(at.log[id - 1].by_hand for id in answer.ids):
            break


def _cut(at: Stepper, facts: Log, first: int, ids: tuple[int, ...], before: int | None, *, drops: bool) -> object:
    return at.world.remembered(ask_cut, facts, first, ids, before, at.world.recorded, drops)


def replayed(
    at: Stepper,
    line: int,
    before: tuple[tuple[int, tuple[int, ...]], ...],
    ids: tuple[int, ...],
    clock: int,
    drops: bool,
) -> Iterator[Step]:
    """A checkpoint of the line is completed; its own log admits one after each."""
    fact = at.state.lines[line]
    if fact.checkpoints != before or not fact.records:
        yield f"finds that line {line} is elsewhere", at.go(("LR", line))
        return
    assert fact.origin is not None
    number = (before[-1][0] if before else fact.origin + at.world.ahead) + 1
    told = drops and not at.broken("lose a change by hand without a word")
    dropped = fact.dropped | {id for id in ids if told and at.log[id - 1].by_hand}
    clocks = (*fact.clocks, clock)
    files = fact.files | {number}
    for approved in _approvals(at, ids):
        if approved is None:
            yield f"waits for a person at checkpoint {number} of line {line}, in vain", at.go(END)
            continue
        lines = changed(
            at,
            line,
            checkpoints=(*before, (number, ids)),
            files=files,
            clocks=clocks,
            approved=(*fact.approved, approved),
            dropped=dropped,
        )
        by = f", approved by {approved}" if approved else ""
        yield f"completes checkpoint {number} of line {line}, of {ids}{by}", at.go(("LR", line), lines=lines)


def _approvals(at: Stepper, ids: tuple[int, ...]) -> list[str | None]:
    """Who may approve what a gate holds; None: nobody does."""
    if not any(held_live(at.world, id) for id in ids):
        return [""]
    carried = at.world.remembered(ask_hold, ids)
    return [None, "a person"] if carried is None else [str(carried)]


# -- swap (L4, L5) -----------------------------------------------------------------------------------------


def swap_read(at: Stepper, line: int) -> Iterator[Step]:
    """How far is the line? Again before the log."""
    fact = at.state.lines[line]
    if fact.tombstone or not fact.records:
        yield f"finds line {line} discarded", at.go(END)
    elif at.actor.careful:
        yield f"reads how far line {line} is", at.go(("LSV", line, fact))
    else:
        yield from swap_log(at, line, fact)


def swap_log(at: Stepper, line: int, fact: LineFact) -> Iterator[Step]:
    """Then the log: may it be swapped in?"""
    known = progress(at.world, fact, line)
    facts, first = _window(at, at.log, known.reached)
    elsewhere = _elsewhere(at, line, first)
    undoing = (rollbacks(at.log), swaps(at.log))
    others = [first + n for n, other in enumerate(facts) if other.open and other.run != run_of(line)]
    answers: list[object] = []
    for doomed in [None, *(others if at.world.give_up else [])]:
        answer = at.world.remembered(ask_swap, facts, first, elsewhere, known, undoing, doomed)
        if answer not in answers:
            answers.append(answer)
            yield from _obeyed(at, line, fact, answer)


def _elsewhere(at: Stepper, line: int, first: int) -> tuple[tuple[int, Fact], ...]:
    below = enumerate(at.log[: first - 1], 1)
    return tuple((id, fact) for id, fact in below if fact.run == run_of(line) and fact.indexed)


def _obeyed(at: Stepper, line: int, fact: LineFact, answer: object) -> Iterator[Step]:
    if isinstance(answer, Replay):
        yield f"finds that line {line} has to replay {answer.ids}", at.go(("LR", line))
    elif isinstance(answer, Refuse):
        yield f"says that line {line} cannot be swapped in: {answer.why}", at.go(("NO", line))
    elif isinstance(answer, Swapped):
        yield f"finds line {line} swapped in by {answer.id}", at.go(PUBLISH)
    elif isinstance(answer, rules.Abort):
        adopt = at.log[answer.id - 1].run == run_of(line) and at.broken("decide a swap that another process began")
        text = f"wants to abort {answer.id} ({answer.reason})"
        yield text, at.go(("LI" if adopt else "LX", line, answer.id))
    elif isinstance(answer, FillGap) and answer.id <= at.world.max_ids:
        yield f"will fill up {answer.id}", at.go(("LN", line, answer.id))
    elif isinstance(answer, rules.CreateEntry) and answer.id <= at.world.max_ids:
        base = answer.base or 0
        if base and not at.broken("swap before its base is everywhere") and not rollback.is_published(at, base):
            return  # whoever publishes comes first
        pc: Pc = ("LQ", line, answer.id, base, fact.checkpoints)
        yield f"will swap line {line} in on top of {base}", at.go(at.settled(tuple(range(1, answer.id)), pc))


def swap_abort(at: Stepper, line: int, id: int) -> Iterator[Step]:
    """Whether the abort won is read."""
    yield at.abort(id, ("LS", line))


def fill_up(at: Stepper, line: int, id: int) -> Iterator[Step]:
    """A control entry, which never counts."""
    if id == len(at.log) + 1:
        base = at.log[id - 2]
        nobody = tuple((None,) * len(tables) for tables in at.world.shape.jobs)
        fact = Fact(f"F{id}", id - 1, base.end, base.end, nobody, aborted=True)
        yield f"fills up {id}", at.create(("LS", line), (*at.log, fact), "plan", id)
    else:
        yield f"finds {id} taken", at.go(("LS", line))


Checkpoints = tuple[tuple[int, tuple[int, ...]], ...]


def swap_pin(at: Stepper, line: int, id: int, base: int, checkpoints: Checkpoints) -> Iterator[Step]:
    """Pin the two ways back while the line's own pin still spares them."""
    late = at.broken("pin the ways back after the decision")
    pins = at.state.pins | (frozenset() if late else _ways_back(at, line, id, base))
    yield f"pins what {id} goes back to, and {base}", at.go(("LE", line, id, base, checkpoints), pins=pins)


def _ways_back(at: Stepper, line: int, id: int, base: int) -> frozenset[tuple[tuple[object, ...], int]]:
    owner = ("swap", id, at.attempt)
    return frozenset((owner, entry) for entry in (at.state.lines[line].origin, base) if entry)


def swap_create(at: Stepper, line: int, id: int, base: int, checkpoints: Checkpoints) -> Iterator[Step]:
    """The entry at the end of the log: nothing below it can change any more."""
    if id != len(at.log) + 1:
        if at.broken("take the next free id for the swap"):
            if id < at.world.max_ids:
                yield f"finds {id} taken, tries {id + 1}", at.go(("LE", line, id + 1, base, checkpoints))
            return
        pins = at.state.pins - _ways_back(at, line, id, base)
        yield f"finds {id} taken", at.go(("LS", line), pins=pins)
        return
    origin = at.state.lines[line].origin
    assert origin is not None
    shape = at.world.shape
    end = at.log[base - 1].end if base else 0
    nobody = tuple((None,) * len(tables) for tables in shape.jobs)
    rows = tuple(_rows(at, line, checkpoints, table) for table in range(shape.tables))
    of_line = at.state.lines[line]
    head = of_line.clocks[len(checkpoints) - 1] if checkpoints else at.log[origin - 1].clock if origin else 0
    clock = at.world.remembered(ask_swap_clock, head, at.fact(base or None))
    assert isinstance(clock, int)
    swap = Swap(line, checkpoints, rows, head, of_line.dropped)
    fact = Fact(run_of(line), base or None, end, end, nobody, rollback=origin, swap=swap, clock=clock)
    text = f"creates entry {id}: line {line} on top of {base}"
    then: Pc = ("LK" if at.broken("look for the tombstone before the swap's entry") else "LT", line, id)
    yield text, at.create(then, (*at.log, fact), "plan", id)


def _rows(at: Stepper, line: int, checkpoints: Checkpoints, table: int) -> tuple[tuple[int, Content], ...]:
    """What the line has made for a table, by number of its own."""
    shape, line_begins = at.world.shape, at.state.lines[line].origin == 0
    found = []
    for position, (number, ids) in enumerate(checkpoints):
        ends = [at.log[id - 1].end for id in ids if not at.log[id - 1].by_hand]
        if line_begins and position == 0 and ends:  # it has read all from the beginning on
            ends = [*range(1, ends[0]), *ends]
        ends = [end for end in ends if not shape.empty(table, end)]
        jobs = sum(table in tables for tables in shape.jobs)
        if ends:
            found.append((number, tuple(f"{end}:line" for end in ends for _ in range(jobs))))
    return tuple(found)


def swap_tombstone(at: Stepper, line: int, id: int) -> Iterator[Step]:
    """L8 does it the other way round: the tombstone, then the log."""
    if at.state.lines[line].tombstone:
        yield f"finds line {line} discarded", at.go(("LX", line, id))
    else:
        yield f"finds line {line} alive", at.go(("LK", line, id))


def swap_copies(at: Stepper, line: int, id: int) -> Iterator[Step]:
    """The acks of the line's head, in the swap's own folder."""
    fact = at.log[id - 1]
    job = next((number for number in range(len(fact.acks)) if not fact.acked(number)), None)
    if not at.state.lines[line].records:
        yield f"finds line {line} gone", at.go(END)
    elif job is None or at.broken("name the line's acks"):
        yield f"copies nothing more for {id}", at.go(("LI", line, id))
    else:
        acks = (*fact.acks[:job], ("line",) * len(fact.acks[job]), *fact.acks[job + 1 :])
        log = put(at.log, id, fact._replace(acks=acks))
        yield f"copies the ack of job {job} to {id}", at.create(("LK", line, id), log, "ack", id, job)


def swap_index(at: Stepper, line: int, id: int) -> Iterator[Step]:
    """D3."""
    yield f"creates runs/ for {id}", at.go(("LD", line, id), log=at.index(id))


def swap_decide(at: Stepper, line: int, id: int) -> Iterator[Step]:
    """THE commit point."""
    fact, shape = at.log[id - 1], at.world.shape
    if not fact.open:
        yield f"finds {id} decided", at.go(("LS", line))
        return
    acks = tuple(("line",) * len(tables) for tables in shape.jobs)
    made = Made(acks, (None,) * shape.tables, (("the line's",),) * shape.tables)
    log = put(at.log, id, fact._replace(made=made))
    then: Pc = PUBLISH
    if at.broken("pin the ways back after the decision"):
        then = ("LW", line, id)
    yield f"decides: line {line} is swapped in", at.create(then, log, "decision", id)


def swap_pin_late(at: Stepper, line: int, id: int) -> Iterator[Step]:
    """Broken on purpose."""
    pins = at.state.pins | _ways_back(at, line, id, at.log[id - 1].base or 0)
    yield "pins the ways back", at.go(PUBLISH, pins=pins)


# -- discard (L8) ------------------------------------------------------------------------------------------


def discard(at: Stepper, line: int) -> Iterator[Step]:
    """The tombstone first, and durable."""
    if at.broken("the line's pin before its files") and (pin := next(discard_pin(at, line))):
        at = Stepper(at.world, pin[1], at.number)
    if at.broken("look for the swap, then create the tombstone"):
        yield from _looked(at, line, lambda named_by: ("DE", line, named_by))
    else:
        yield from _entombed(at, line, ("DR", line))


def discard_entomb(at: Stepper, line: int, named_by: int | None) -> Iterator[Step]:
    """Broken on purpose: the tombstone after the look."""
    yield from _entombed(at, line, ("DF", line, named_by))


def _entombed(at: Stepper, line: int, then: Pc) -> Iterator[Step]:
    made, unsynced = ("tombstone", line), at.state.unsynced
    if at.state.losses and not at.state.lines[line].tombstone:
        unsynced |= {made}
    if made in unsynced and not at.broken("discard before the tombstone is durable"):
        then = ("SYNC", made, then)
    text = f"creates the tombstone of line {line}"
    yield text, at.go(then, lines=changed(at, line, tombstone=True), unsynced=unsynced)


def discard_look(at: Stepper, line: int) -> Iterator[Step]:
    """Then the log."""
    yield from _looked(at, line, lambda named_by: ("DF", line, named_by))


def _looked(at: Stepper, line: int, then: Callable[[int | None], Pc]) -> Iterator[Step]:
    facts, first = at.window()
    answer = at.world.remembered(ask_discard, facts, first, _elsewhere(at, line, first), run_of(line))
    if isinstance(answer, rules.Abort):
        yield f"wants to abort {answer.id} ({answer.reason})", at.go(("DA", line, answer.id))
    elif isinstance(answer, RemoveBackfill):
        pc = at.settled(tuple(range(1, len(at.log) + 1)), then(answer.named_by))
        yield f"finds that {answer.named_by} names the line's files", at.go(pc)


def discard_abort(at: Stepper, line: int, id: int) -> Iterator[Step]:
    """Whether the abort won is read."""
    early = at.broken("look for the swap, then create the tombstone")
    yield at.abort(id, ("DB" if early else "DR", line))


def discard_files(at: Stepper, line: int, named_by: int | None) -> Iterator[Step]:
    """By reference."""
    fact = at.state.lines[line]
    by = at.log[named_by - 1] if named_by is not None else None
    swap = by.swap if by is not None and not by.gone else None
    named = frozenset(number for number, _ in swap.checkpoints) if swap is not None else frozenset()
    if at.broken("discard by folder"):
        named = frozenset()
    if at.broken("discard what no counting swap names") and named_by is not None:
        named = named if rollback_of(named_by, rollbacks(at.log)) is None else frozenset()
    lines = changed(at, line, files=fact.files & named)
    yield f"deletes what is left of line {line} but {sorted(named)}", at.go(("DX", line), lines=lines)


def discard_records(at: Stepper, line: int) -> Iterator[Step]:
    """Its ledger, but for the tombstone."""
    yield f"deletes the ledger of line {line}", at.go(("DP", line), lines=changed(at, line, records=False))


def discard_pin(at: Stepper, line: int) -> Iterator[Step]:
    """Last of all."""
    pins = frozenset(pin for pin in at.state.pins if pin[0] != ("line", line))
    yield f"unpins the origin of line {line}", at.go(END, pins=pins)


# -- what must hold ----------------------------------------------------------------------------------------


def broken(world: ModelWorld, before: State, after: State) -> Iterator[str]:
    """What must hold where there are lines."""
    for was, now in zip(before.pcs, after.pcs, strict=True):
        if now[0] == "NO" and was != now and not _is_refused(after.lines[int(str(now[1]))], after.log):
            yield f"a false alarm: line {now[1]} is refused, and there is no reason against it"
    if all(pc == END for pc in after.pcs):
        pinned = {owner for owner, _ in after.pins}
        for number, line in enumerate(after.lines):
            if line.tombstone and ("line", number) in pinned:
                yield f"line {number} is discarded, and its pin is left: nothing will ever be retired"
    if (before.log, before.tables, before.lines) == (after.log, after.tables, after.lines):
        return
    log = after.log
    if any(fact is None for fact in log):
        return
    swapped = [(id, fact) for id, fact in enumerate(log, 1) if fact.swap is not None and fact.made is not None]
    yield from _clocks(log, after.lines)
    for number, line in enumerate(after.lines):
        yield from _approved_by_somebody(world, number, line)
    for id, fact in swapped:
        yield from _nothing_by_hand_is_lost(id, fact, log)
        if world.recorded:
            yield from _cut_as_recorded(id, fact, log)
    for id, fact in enumerate(log, 1):
        if fact.made is not None:
            yield from _as_of(world, id, log)
        if fact.made is not None and fact.rollback is not None:
            for entry in (fact.rollback, fact.base if fact.swap is not None else 0):
                if entry and log[entry - 1].gone:
                    yield f"I6: {id} is completed, and there is no way back to {entry}: it was retired"
    for id, fact in swapped:
        yield from _swap_holds(after, id, fact)
    for number, line in enumerate(after.lines):
        if len([id for id, fact in swapped if fact.swap.line == number]) > 1:  # type: ignore[union-attr]
            yield f"line {number} was swapped in twice"
        alive = line.origin is not None and not line.tombstone
        if alive and not any(fact.swap.line == number for _, fact in swapped):  # type: ignore[union-attr]
            yield from _can_continue(number, line, log)


def _approved_by_somebody(world: ModelWorld, number: int, line: LineFact) -> Iterator[str]:
    """I10: whatever a gate holds in a line was approved by a person who has looked at the very same rows."""
    for (_, ids), by in zip(line.checkpoints, line.approved, strict=True):
        if not any(held_live(world, id) for id in ids) or by == "a person":
            continue
        if not by:
            yield f"I10: nobody has approved {ids} of line {number}"
        elif ids != (int(by),) or held_live(world, int(by)) != "a person":
            yield f"I10: nobody has looked at {ids} of line {number}, which has the approval of {by}"


def _clocks(log: Log, lines: tuple[LineFact, ...]) -> Iterator[str]:
    """I9: no clock goes back, and a line's checkpoint has that of the last live one that it replays."""
    for id, fact in enumerate(log, 1):
        if fact.aborted:
            continue
        below = [fact.base] if fact.rollback is None or fact.swap is not None else [fact.rollback]
        before = max([log[entry - 1].clock for entry in below if entry], default=0)
        if fact.swap is not None:
            before = max(before, fact.swap.clock)
        if fact.clock < before:
            yield f"I9: the clock of {id} is {fact.clock}, and {before} was before it"
    for number, line in enumerate(lines):
        clocks = [log[line.origin - 1].clock if line.origin else 0, *line.clocks]
        if clocks != sorted(clocks):
            yield f"I9: the clocks of line {number} are {clocks}"
        due = [log[ids[-1] - 1].clock for _, ids in line.checkpoints]
        if list(line.clocks) != due:
            yield f"I9: the clocks of line {number} are {line.clocks}, those of what it replays are {due}"


def _replaced(id: int, fact: Fact, log: Log) -> list[int]:
    """The live checkpoints in whose place a swap comes, as far as their input counts."""
    assert fact.rollback is not None
    undoing = undoing_input(log[: id - 1])
    above = [each for each in range(fact.rollback + 1, id) if log[each - 1].made is not None]
    counting = [each for each in above if rollback_of(each, undoing) is None]
    return [each for each in counting if log[each - 1].rollback is None]


def _nothing_by_hand_is_lost(id: int, fact: Fact, log: Log) -> Iterator[str]:
    """What a person has changed by hand is there after a swap, or a person has chosen to lose it."""
    assert fact.swap is not None
    lost = {each for each in _replaced(id, fact, log) if log[each - 1].by_hand} - fact.swap.dropped
    if lost:
        yield f"{id} is completed, and loses what was changed by hand in {sorted(lost)}"


def _cut_as_recorded(id: int, fact: Fact, log: Log) -> Iterator[str]:
    """I9: with recorded cuts, a line has one checkpoint for each that it stands for."""
    assert fact.swap is not None
    found = [[each for each in ids if not log[each - 1].by_hand] for _, ids in fact.swap.checkpoints]
    due = [[each] for each in _replaced(id, fact, log) if not log[each - 1].by_hand]
    if [ids for ids in found if ids] != due:
        yield f"I9: {id} brings {found}, recorded are {due}"


def _as_of(world: ModelWorld, id: int, log: Log) -> Iterator[str]:
    """I1 and I2: as of each completed entry, each table shows each offset once, and later rows have higher numbers."""
    shape = world.shape
    for table in range(shape.tables):
        rows = rollback.wanted(log, table, id)
        jobs = sum(table in tables for tables in shape.jobs)
        found = [int(text.partition(":")[0]) for _, content in rows for text in content]
        due = [end for end in range(1, log[id - 1].end + 1) if not shape.empty(table, end) for _ in range(jobs)]
        if found != due:
            yield f"I1: as of {id} table {table} shows offsets {found}, it should be {due}"
        numbers = [number for number, _ in rows]
        if numbers != sorted(set(numbers)) or (numbers and numbers[-1] > id):
            yield f"I2: as of {id} the rows of table {table} carry the numbers {numbers}: older ones win"


def _swap_holds(state: State, id: int, fact: Fact) -> Iterator[str]:
    assert fact.swap is not None
    line = state.lines[fact.swap.line]
    lost = {number for number, _ in fact.swap.checkpoints} - line.files
    if lost:
        yield f"I6: {id} names files of checkpoint {sorted(lost)} of line {fact.swap.line}, which are deleted"
    if not line.records and not all(fact.acked(job) for job in range(len(fact.acks))):
        yield f"I6: {id} names acks of line {fact.swap.line}, which are deleted"
    base = fact.base
    if base:
        for table, commits in enumerate(state.tables):
            owed = state.log[base - 1].made
            assert owed is not None
            last = base if owed.content[table] is not None else owed.after[table]
            if last is not None and all(commit.id != last for commit in commits):
                yield f"{id} is decided, and table {table} never showed {base}: there is no way back to it"


def _can_continue(number: int, line: LineFact, log: Log) -> Iterator[str]:
    """A line that lives has all that it has made, and finds all that it rests on, as long as that counts."""
    if not line.records or {made for made, _ in line.checkpoints} - line.files:
        yield f"I6: line {number} lives, and what it has made is deleted"
    if _is_refused(line, log):
        return
    reached = line.replayed[-1] if line.replayed else line.origin or line.lowest - 1
    above = [id for id, fact in enumerate(log, 1) if id > reached and fact.made is not None]
    for id in [line.origin, *(id for id in above if rollback_of(id, undoing_input(log)) is None)]:
        if id and log[id - 1].gone:
            yield f"I6: line {number} needs {id}, which was retired"


def _is_refused(line: LineFact, log: Log) -> bool:
    """Whether there is a reason against a line: its origin does not count, or the input that it has replayed; or it
    meets a change by hand next."""
    reached = line.replayed[-1] if line.replayed else line.origin or 0
    above = range(reached + 1, len(log) + 1)
    if any(log[id - 1].by_hand and log[id - 1].made is not None for id in above):
        return True
    if line.origin and rollback_of(line.origin, rollbacks(log)) is not None:
        return True
    return any(rollback_of(id, undoing_input(log)) is not None for id in line.replayed)


def unfinished(state: State, number: int) -> str | None:
    """I8, once a lone process of the line has ended: it is swapped in and published, or refused, or discarded."""
    log = state.log
    if state.lines[number].tombstone:
        return None
    if any(fact.swap is not None and fact.swap.line == number and fact.made is not None for fact in log):
        shown = (rollback.shown(commits) for commits in state.tables)
        due = (rollback.wanted(log, table, len(log)) for table in range(len(state.tables)))
        return None if list(shown) == list(due) else f"I8: line {number} is swapped in, and not on every table"
    return None if _is_refused(state.lines[number], log) else f"I8: line {number} is neither swapped in nor refused"
