"""A backfill of unchanged code, and what it may change: nothing, or only what its dry run has named.

With recorded cuts the line must hold what the pipeline holds, before the swap, after it, and after the swap is taken
back. What the swap is to leave alone is looked at as well: hooks, the memory of gates, names of quarantined rows,
approvals, the name of the way back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from tests.replay.reading import Held, contents, held_by_line, held_by_pipeline, quarantine_rows
from tests.replay.world import Clock, Clocked
from tests.spark.mended_shop import OneSession, never
from tidegate.backfill import OpenBackfill, begin, discard, replay, swap
from tidegate.backfill.choosing import outlook
from tidegate.backfill.recorded import RecordedPlans
from tidegate.checkpoint import approvals
from tidegate.errors import Rejected
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates.quarantine import columns as q
from tidegate.lifecycle import savepoint
from tidegate.pipeline.graph.graph import OperatorNode
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.protocol.verdicts import unanswered

__all__ = ["ReplayReport", "Trial"]

A_YEAR = timedelta(days=365)
Cuts = Literal["own", "recorded"]


@dataclass
class ReplayReport:
    """What was tried, and what was found."""

    checkpoints: int = 0
    backfills: int = 0
    refused: int = 0
    tables: int = 0
    states: int = 0
    quarantines: int = 0
    rows: int = 0
    story: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        self.story.append(what)

    def finds(self, what: str) -> None:
        """Note what is not as it must be."""
        self.wrong.append(f"after {len(self.story)} acts: {what}")

    def compare(self, when: str, wanted: Held, found: Held, but: Iterable[str] = ()) -> None:
        """Compare all that is wanted with what is found. but: what may differ."""
        tables, states, quarantines, rows = wanted.sizes()
        self.tables += tables
        self.states += states
        self.quarantines += quarantines
        self.rows += rows
        ours, theirs = wanted.named(), found.named()
        for name in sorted(ours.keys() | theirs.keys()):
            mine, other = ours.get(name) or None, theirs.get(name) or None
            if mine != other and name not in but:
                self.finds(f"{when}, {name} differs: {difference(mine, other)}")

    def __str__(self) -> str:
        return (
            f"{self.checkpoints} checkpoints, {self.backfills} backfills, {self.refused} refused as they must be; "
            f"compared {self.tables} tables, {self.states} states, {self.quarantines} quarantines, {self.rows} rows: "
            f"{len(self.wrong)} wrong"
        )


class Answering(Observer):
    """Approves what gates hold of a line, and remembers that it was asked."""

    def __init__(self, line: OpenBackfill) -> None:
        self.line, self.asked = line, dict[int, None]()

    def waiting(self, why: str) -> None:
        for entry in self.line.backfill.ledger.view().still_open():
            if unanswered(entry):
                self.asked[entry.id] = None
                approvals.answer(self.line.backfill.ledger, entry.id, None, approve=True, by="ann")


@dataclass
class Trial:
    """Backfills of one pipeline, a year later."""

    play: Clocked
    clock: Clock
    dice: random.Random
    told: ReplayReport
    complete: bool = True
    """Whether all that it has ever read can be repeated: else a backfill may be refused, if the dry run says so."""

    @contextmanager
    def later(self) -> Iterator[None]:
        with self.clock.shown(later=A_YEAR):
            yield

    def line(self, origin: int, cuts: Cuts) -> OpenBackfill | None:
        """Begin a line and let it replay, by other bounds. None: it was refused, or could not come to its end."""
        bounds, self.play.files_at_once = self.play.files_at_once, self.dice.choice([1, 2, 1000])
        try:
            return self._line(origin, cuts)
        finally:
            self.play.files_at_once = bounds

    def _line(self, origin: int, cuts: Cuts) -> OpenBackfill | None:
        name = f"again-{len(self.told.story)}" if self.told.backfills else "again"
        subject = f"backfill {name!r} from {origin} with {cuts} cuts"
        with self.later():
            live = self.play.coordinator()
            problems = outlook(live, origin, cuts)["problems"]
            try:
                line = begin(live, name, origin, by="ann", cuts=cuts)
            except Rejected as error:
                self.told.refused += 1
                self.told.note(f"{subject} is refused")
                if not problems or (self.complete and self.play.can_begin_at(origin)):
                    self.told.finds(f"{subject} is refused, and the dry run says {problems}: {error}")
                return None
            if problems:
                self.told.finds(f"{subject} begins, though the dry run says {problems}")
            line.backfill.larger = self.dice.choice([1, 1, 2, 100]) if cuts == "own" else 1
            self.told.backfills += 1
            self.told.note(f"{subject}, {line.backfill.larger} times as large")
            observer = Answering(line)
            try:
                replay(line, OneSession(self.play.spark), Schedule(), observer)
            except Rejected as error:
                self.told.note(f"it ends: {error.what}")
                if cuts == "recorded":
                    self.told.finds(f"{subject} does not come to its end: {error}")
                discard(line, "ann")
                return None
        if cuts == "recorded":
            self._asks_no_more_than_it_must(line, observer.asked)
        return line

    def _asks_no_more_than_it_must(self, line: OpenBackfill, asked: Iterable[int]) -> None:
        """What a person has approved of the very same rows is not asked again; what a time limit has, is."""
        for id in asked:
            plan = line.backfill.ledger.plan(id)
            replayed = [line.live.ledger.entry(each) for each in (plan.replays if plan is not None else ())]
            by = {answer.by for entry in replayed if entry is not None for answer in entry.answers.values()}
            if approvals.TIME_LIMIT not in by:
                self.told.finds(f"the line asks about its checkpoint {id} again, which {by or 'nobody'} has approved")

    # -- recorded cuts -----------------------------------------------------------------------------------------

    def changes_nothing(self, line: OpenBackfill, *, takes_back: bool) -> bool:
        """Compare a line with recorded cuts with the pipeline: before its swap, after it, and after that is undone.
        Return whether life can continue as if nothing had been."""
        play, origin, found = self.play, line.record.origin, len(self.told.wrong)
        before, by_name = self.held(), self._by_name()
        base = play.last_completed()
        named = [each for each in outlook(line.live, origin, "recorded")["may_differ"] if "of quarantine" not in each]
        excepted = set_aside_before(play, origin) | that_may_differ(play, named)
        self.told.compare("before the swap", self._since(before, line), held_by_line(line), excepted)
        asked = {gate for gate in before.quarantines if _was_asked_since(play, origin, gate)}
        swapped = self._swap(line, base)
        self.told.compare("after the swap", before, self.held(), excepted)
        discards_at_once = self.dice.random() < 0.6
        if discards_at_once:
            self._discard(line)
        if not excepted:
            names = {gate: rows for gate, rows in by_name.items() if gate in asked}
            after = {gate: rows for gate, rows in self._by_name().items() if gate in asked}
            self.told.compare("after the swap, by their names", Held(quarantines=names), Held(quarantines=after))
        if takes_back and not excepted:
            self._takes_back(swapped, base, before, by_name)
        if not discards_at_once:
            self._discard(line)
        return len(self.told.wrong) == found and not excepted

    def held(self) -> Held:
        """Return what the pipeline holds."""
        return held_by_pipeline(self.play.coordinator())

    def _by_name(self) -> dict[str, Counter[Any]]:
        return held_by_pipeline(self.play.coordinator(), by_name=True).quarantines

    def _since(self, before: Held, line: OpenBackfill) -> Held:
        """Return what a line must hold: tables that have a shadow, and of quarantines what was set aside since."""
        tables = {name: rows for name, rows in before.tables.items() if name in line.backfill.graph.sinks}
        rows = {gate: quarantine_rows(self.play.ledger, gate) for gate in before.quarantines}
        origin = line.record.origin
        since = {gate: contents(row for row in found if row[q.CHECKPOINT] > origin) for gate, found in rows.items()}
        return Held(tables, before.states, since, before.memory)

    def _swap(self, line: OpenBackfill, base: int) -> str | None:
        """Swap in; return the name of the way back. Hooks continue where they were."""
        with self.later():
            swapped = swap(line, by="ann", choices={}, wait=never)
        self.told.note(f"swapped in by {swapped.id}, the way back is {swapped.savepoint}")
        if swapped.error is not None or swapped.report is None or swapped.report.stuck:
            self.told.finds(f"the swap is not on all tables: {swapped.error or swapped.report}")
        wanted, found = self.play.cursor_of(base), self.play.cursor_of(swapped.id)
        if wanted != found:
            self.told.finds(f"hooks get back {found} with the swap: the pipeline stood at {wanted}")
        return swapped.savepoint

    def _takes_back(self, name: str | None, base: int, before: Held, by_name: dict[str, Counter[Any]]) -> None:
        """Go back to what the swap has named, and find all as it was."""
        way = next((each.entry for each in savepoint.savepoints(self.play.ledger) if each.name == name), None)
        if way != base:
            self.told.finds(f"the way back is {name!r}, which is checkpoint {way}, not {base}")
            return
        with self.later():
            self.play.goes_back(base, f"undone {len(self.told.story)}")
        self.told.note("the swap is taken back")
        self.told.compare("after the swap is taken back", before, self.held())
        found = Held(quarantines=self._by_name())
        self.told.compare("after the swap is taken back, by their names", Held(quarantines=by_name), found)

    def _discard(self, line: OpenBackfill) -> None:
        with self.later():
            discard(line, "ann")

    # -- cuts of its own ---------------------------------------------------------------------------------------

    def differs_only_as_named(self, line: OpenBackfill) -> None:
        """Compare a line with --cuts own with the pipeline."""
        plans = RecordedPlans(self.play.ledger, line.record.origin).counting()
        if any(plan.quarantine_all or plan.quarantine_held for plan in plans):
            return  # a person has chosen that, and has approved the same of the line
        named = outlook(self.play.coordinator(), line.record.origin)["may_differ"]
        wanted, found = self._since(self.held(), line), held_by_line(line)
        wanted.memory = found.memory = {}
        self.told.compare("with --cuts own", wanted, found, that_may_differ(self.play, named))

    def is_swapped_in(self, line: OpenBackfill) -> None:
        """Swap in what has other rows than the pipeline: it has these then, and gates remember what they did."""
        before, by_name, expected = self.held(), self._by_name(), held_by_line(line)
        base = self.play.last_completed()
        swapped = self._swap(line, base)
        after = self.held()
        left_alone = {name: rows for name, rows in before.tables.items() if name not in expected.tables}
        self.told.compare("after the swap of other rows", Held(expected.tables | left_alone), Held(after.tables))
        remembered = {name: value for name, value in before.memory.items() if name.startswith("gate.")}
        memory = {name: value for name, value in after.memory.items() if name.startswith("gate.")}
        self.told.compare("after the swap of other rows", Held(memory=remembered), Held(memory=memory))
        self._discard(line)
        self._takes_back(swapped, base, before, by_name)


def difference(mine: Any, other: Any) -> str:
    """Describe how two multisets, or values, differ."""
    if isinstance(mine, Counter) or isinstance(other, Counter):
        ours, theirs = mine or Counter(), other or Counter()
        missing, more = list((ours - theirs).elements()), list((theirs - ours).elements())
        return f"{len(missing)} rows are missing {missing[:3]}, {len(more)} are too many {more[:3]}"
    return f"{mine!r} is wanted, {other!r} is there"


def that_may_differ(play: Clocked, named: list[str]) -> set[str]:
    """Return what may differ by what a dry run names: what it names, and whatever reads that."""
    graph, found = play.graph(), set[str]()
    for stage in graph.stages:
        if isinstance(stage, OperatorNode):
            title = stage.title
        else:
            title = f"{'gate' if isinstance(stage, GateNode) else 'stage'} {stage.name!r}"
        if any(each.startswith(title) for each in named):
            found.add(stage.name)
    if any("out of quarantine" in each for each in named):
        found |= {gated.name for gated in graph.gates}
    return given_by(play, found)


def set_aside_before(play: Clocked, origin: int) -> set[str]:
    """Return what may differ because rows were let out, or discarded, that were set aside before a line's origin: they
    wait there again until the first checkpoint after the swap."""
    found = set[str]()
    for gated in play.graph().gates if origin else ():
        rows = quarantine_rows(play.ledger, gated.name) if gated.quarantine else []
        early = [row for row in rows if row[q.CHECKPOINT] <= origin]
        if any((row[q.SETTLED_IN] or 0) > origin or row.get(q.STAYS) for row in early):
            found |= given_by(play, {gated.name})
    return found


def given_by(play: Clocked, stages: set[str]) -> set[str]:
    """Return the names of all that some stages give, and whatever reads that: tables, states, quarantines, memory."""
    graph, reached, streams = play.graph(), set(stages), set[str]()
    for _ in graph.stages:
        for stage in graph.stages:
            if stage.name in reached or any(name in streams for name in stage.inputs):
                reached.add(stage.name)
                streams |= set(stage.produces)
    found = {name for name, sinking in graph.sinks.items() if sinking.input in streams}
    for stage in graph.stages:
        if stage.name in reached:
            found |= {f"quarantine.{stage.name}", f"memory.gate.{stage.name}"}
            found |= set(stage.states) if isinstance(stage, OperatorNode) else set()
            found |= {f"memory.{stage.name}{end}" for end in ("", ".watermark", ".expired")}
    return found


def _was_asked_since(play: Clocked, origin: int, gate: str) -> bool:
    plan = play.ledger.plan(origin) if origin else None
    part = plan.sources.get(f"quarantine.{gate}") if plan is not None else None
    return bool(play.ledger.requests(gate, part.end["request"] if part is not None and part.end is not None else 0))
