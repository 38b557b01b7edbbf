"""Trigger, decide, publish: carries out what checkpoint/protocol.py answers, one create at a time.

Holds no state between calls: any process may call any method at any time, twice, or too late. Each
method reads the ledger, asks the protocol, does the one thing that it says, and asks again until the
protocol has nothing more to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tidegate import seams
from tidegate.checkpoint import (
    control,
    discard,
    holding,
    intervals,
    periodic,
    protocol,
    publish,
    retention,
    rollback,
    skipping,
)
from tidegate.checkpoint.intervals import Covered
from tidegate.checkpoint.lines import all_below, lacking, passed_by, settle_acks
from tidegate.checkpoint.manifests import manifest_of
from tidegate.checkpoint.planning import Plans, Special
from tidegate.checkpoint.proposal import How
from tidegate.checkpoint.publish_intervals import refuse_rewritten
from tidegate.errors import ENVIRONMENT, Corrupt, Invalid, Rejected
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.ledger.log import TOO_LATE
from tidegate.model.names import check_run
from tidegate.model.place import Place
from tidegate.model.records import Decision, Drain, Json, Plan
from tidegate.model.view import Entry, View
from tidegate.pipeline.graph import Graph
from tidegate.sinks.base import SinkContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Coordinator", "Covered", "Limits", "Outcome", "Triggered"]


class Limits(Protocol):
    """The settings that the coordinator obeys; `tidegate.config.Settings` has them."""

    @property
    def timeout(self) -> float: ...
    @property
    def max_concurrent_checkpoints(self) -> int: ...
    @property
    def max_unpublished(self) -> int: ...
    @property
    def num_retained(self) -> int: ...
    @property
    def tolerable_failed_checkpoints(self) -> int: ...
    @property
    def min_pause(self) -> float: ...
    def record(self) -> Json: ...


@dataclass(frozen=True)
class Triggered:
    """A run has its checkpoint. `plan` is what its jobs are to do."""

    plan: Plan
    adopted: bool
    """True: the run had it already (a retry, a cleared task); nothing new was planned."""


@dataclass(frozen=True)
class Outcome:
    """What is known about a checkpoint now."""

    id: int
    state: str
    """completed, aborted, open, or retired. Open and HELD: it waits for a person."""
    reason: str = ""
    detail: str = ""
    counts: bool = False
    """Whether an abort counts towards the tolerable failures: not if others ended it, or what it rests on."""


GiveUp = Callable[[Plan], str | None]
"""Asked about each open entry of another run: a reason to end it, or None to leave it alone."""


def _nobody_is_gone(plan: Plan) -> str | None:
    return None


class Coordinator:
    """The control plane of one pipeline."""

    def __init__(self, graph: Graph, ledger: Ledger, limits: Limits, place: Place) -> None:
        self.graph = graph
        self.ledger = ledger
        self.limits = limits
        self.place = place
        self.spark: Callable[[], SparkSession] | None = None
        """For targets that only delta-spark may publish to. Without it they wait for a process that has Spark."""

    # -- trigger -------------------------------------------------------------------------------------

    def trigger(
        self,
        run: str,
        *,
        kind: str = "manual",
        give_up: GiveUp = _nobody_is_gone,
        only_if_new: bool = False,
        interval: tuple[datetime, datetime] | None = None,
        reprocess: bool = False,
        standing: bool = False,
        drain: Drain | None = None,
        aligned: bool = False,
    ) -> Triggered | Covered | None:
        """The run's checkpoint: the one that it has already, or a new one planned on the last.

        interval: the run's data interval, if it has one. Covered: that is done, there is nothing to do.
        reprocess: make it again, as a new checkpoint that replaces what the interval has put into the tables.
        standing, drain, aligned: see planning.Special.
        None: `only_if_new` was asked for and no source has anything new, to read or to tell.
        Rejected: others are at work, or too much is unpublished; try again later.
        """
        check_run(run)
        wanted = intervals.wanted_by(self.graph, interval, reprocess)
        self.ledger.start()
        published: int | None = None
        reach: int | None = None
        while True:
            view = self.ledger.view(run, reach)
            answer = self._ask(view, run, give_up, wanted)
            if isinstance(answer, protocol.Adopt):
                if (adopted := self._adopted(view, answer.id)) is not None:
                    return adopted
            elif isinstance(answer, protocol.Abort):
                self._decide(self._abort(answer))
            elif not isinstance(answer, protocol.CreateEntry):
                return self._no_plan(answer, view, wanted)
            else:
                self._refuse(view, kind)
                completed = view.last_completed.id if view.last_completed else 0
                if published != completed:  # that comes first: a source may read a table that is owed a publish
                    publish.publish_or_wait(self, wanted.interval if wanted is not None else None)
                    published = completed
                    continue
                try:
                    plan = self._plan(answer, view, run, kind, wanted, Special(standing, drain, aligned))
                except Corrupt:
                    if answer.base is None or self.ledger.is_kept(answer.base):
                        raise
                    continue  # others went on meanwhile, and retention took what the base's positions name
                nothing_new = all(part.empty for part in plan.sources.values())
                if only_if_new and nothing_new and plan.drain is None and not skipping.is_news(plan, view):
                    return None
                if self._create(plan, view):
                    return Triggered(plan, adopted=False)
                reach = plan.id  # it exists now, even if listings do not show it yet

    def _ask(self, view: View, run: str, give_up: GiveUp, wanted: protocol.Wanted | None) -> protocol.Triggering:
        intervals.refuse_other_kind(self.graph, view)
        reasons, asked = self._reasons(view, run, give_up), intervals.with_index(wanted, self.ledger)
        return protocol.on_trigger(view, run, self.limits.max_concurrent_checkpoints, reasons, asked)

    def _plan(
        self,
        answer: protocol.CreateEntry,
        view: View,
        run: str,
        kind: str,
        wanted: protocol.Wanted | None,
        special: Special,
    ) -> Plan:
        if wanted is not None and wanted.independent:
            refuse_rewritten(self, view, wanted.interval)
        plans = Plans(self.graph, self.ledger, self.limits, self.place)
        plan = plans.make(answer, view, run, kind, wanted, special)
        intervals.refuse_archived(self.graph, plan, view, self.ledger)
        return plan

    def _refuse(self, view: View, kind: str) -> None:
        """Why nothing may be planned now, if so."""
        discard.go_on(self, view)
        control.refuse(self, view, kind)

    def _create(self, plan: Plan, view: View) -> bool:
        """T6. False: the id was taken; look again."""
        control.settle_below(self.ledger, view, plan.base or 0)
        if not self.ledger.create_entry(plan).mine or not self.counts(plan):
            return False
        self.ledger.index_run(plan)
        return True

    def _no_plan(
        self, answer: protocol.Covered | protocol.Misfit | protocol.Wait, view: View, wanted: protocol.Wanted | None
    ) -> Covered:
        """The run gets nothing now. What is done already is published, all else is refused."""
        if isinstance(answer, protocol.Wait):
            control.refuse_suspended(self, view)
            raise control.busy(answer.ids, holding.told_all(view, answer.ids))
        assert wanted is not None
        if isinstance(answer, protocol.Misfit):
            raise intervals.misfit(answer, wanted, self.graph)
        publish.publish_or_wait(self, wanted.interval)
        return intervals.covered(answer, wanted, self.ledger)

    def _adopted(self, view: View, id: int) -> Triggered | None:
        """The run's own checkpoint. None: it is another's since the view was read, so look again."""
        below = (entry for entry in view.own_elsewhere if isinstance(entry, Entry) and entry.id == id)
        entry = view.get(id) or next(below, None)
        if entry is None:
            raise Rejected(
                f"this run made checkpoint {id}, which is decided and retired since",
                help="nothing to do; trigger a new run for new input",
                reason="RETIRED",
            )
        if entry.open:
            self.ledger.settle_plan(id)  # an index that outlives its entry would look like damage
            again = self.real_entry(id)
            if again is None or again.plan.attempt != entry.plan.attempt or self._retired_before(id):
                return None
        self.ledger.index_run(entry.plan)
        return Triggered(entry.plan, adopted=True)

    def _reasons(self, view: View, run: str, give_up: GiveUp) -> dict[int, str]:
        """Which open entries of others somebody has reason to end. Hints: a wrong one costs time only."""
        reasons = {}
        for entry in view.still_open():
            if entry.plan.run == run:
                continue
            if holding.awaits_person(entry):
                self.complete(entry.id)  # whoever made it need not be there any more
                continue
            reason = self.late(entry)[0] if self.overdue(entry) else give_up(entry.plan)
            if reason:
                reasons[entry.id] = reason
            elif not lacking(self.ledger, entry) and self.ledger.expired(entry.plan):
                self.complete(entry.id)  # nobody came to do it: its process died far from here
        return reasons

    def overdue(self, entry: Entry) -> bool:
        """Past its timeout and still lacking an ack. What a gate holds has the hold's own limit. With all acks in it is
        completed, not given up; a rollback has none, and is for whoever makes it to decide."""
        if holding.awaits_person(entry):
            return False
        waits = entry.restart is not None or bool(lacking(self.ledger, entry))
        return waits and self.ledger.expired(entry.plan)

    def late(self, entry: Entry) -> tuple[str, str]:
        """Why an entry is ended that is past its timeout. If there was no Spark for any of its jobs, as far as they
        have left word, that is not the pipeline's fault."""
        limit = f"{entry.plan.timeout_s:g} s"
        trouble = None if entry.acks else self.ledger.trouble()
        if trouble is not None and trouble.entry == entry.id and trouble.reason in ENVIRONMENT:
            return protocol.ENVIRONMENT_FAILED, f"no job could begin within {limit}: {trouble.what}"
        return "CHECKPOINT_EXPIRED", f"not all jobs acked within {limit}"

    def counts(self, plan: Plan) -> bool:
        """Whether the id was free because nobody had had it, and not because its entry is retired.

        Somebody who slept between planning and creating may find it free again. Then the log begins above it.
        """
        if not self._retired_before(plan.id):
            return True
        entry = self.real_entry(plan.id)
        if entry is not None and entry.open:  # all that is real is decided there
            self._decide(_decision(plan.id, "aborted", reason=TOO_LATE, detail="its id was used and retired"))
        return entry is not None and entry.completed and entry.acks_agree and not self.ledger.retired(plan.id)

    # -- decide --------------------------------------------------------------------------------------

    def complete(self, id: int, failure: tuple[str, str] | None = None) -> Outcome:
        """Decide checkpoint `id` if it can be decided. `failure`: (reason, detail) of a job that gave up."""
        while True:
            entry, base = self.entry_and_base(id)
            if failure is None and entry is not None and entry.open and self.overdue(entry):
                failure = self.late(entry)
            below = all_below(self.ledger, entry, base)
            answer = protocol.on_completion(entry, base, failure, below, passed_by(self.ledger, entry))
            if isinstance(answer, protocol.Abort):
                holding.settle(self.ledger, entry)
                self._decide(self._abort(answer))
            elif isinstance(answer, protocol.Complete):
                assert entry is not None
                settle_acks(self.ledger, entry, base, below)
                sha = self.ledger.create_manifest(manifest_of(entry, base, below))
                self.ledger.index_run(entry.plan)
                self._decide(_decision(id, "completed", manifest=sha))
            elif isinstance(answer, protocol.Held):
                if not holding.answer_overdue(self.ledger, answer):
                    return Outcome(id, "open", holding.HELD, holding.told_all(self.ledger.view(), [id]))
            else:
                if entry is not None and entry.aborted:
                    retention.release(self, entry)
                return _outcome(id, entry)

    def abort(self, id: int, reason: str, detail: str = "", *, counts: bool = False) -> Outcome:
        """End checkpoint `id` unless it is decided. Always safe; what comes back is what holds."""
        entry, _ = self.entry_and_base(id)
        if entry is not None and entry.open:
            self._decide(_decision(id, "aborted", reason=reason, detail=detail, counts=counts))
            entry, _ = self.entry_and_base(id)
        if entry is not None and entry.aborted:
            retention.release(self, entry)
        return _outcome(id, entry)

    def suspend(self, by: str, reason: str) -> int:
        """Let no run plan a checkpoint until somebody resumes; what is planned already goes on."""
        return control.suspend(self.ledger, by, reason)

    def resume(self, by: str, reason: str = "", *, set_aside: bool = False) -> int | None:
        """Let checkpoints be planned again. None: there was nothing to resume from."""
        return control.resume(self.ledger, by, reason, set_aside=set_aside)

    def roll_back(
        self, to: int, *, run: str, by: str, choices: Mapping[str, How] | None = None, reason: str = ""
    ) -> rollback.Done:
        """Put positions, state and outputs back to checkpoint `to`, and publish that: see checkpoint/rollback.py."""
        return rollback.roll_back(self, to, run=run, by=by, choices=choices or {}, reason=reason)

    def suspended(self) -> control.Suspended | None:
        """Why no checkpoint may be planned now, or None."""
        return control.suspended(self.ledger.view(), self.limits.tolerable_failed_checkpoints)

    def _abort(self, answer: protocol.Abort) -> Decision:
        return _decision(answer.id, "aborted", reason=answer.reason, detail=answer.detail, counts=answer.counts)

    def _decide(self, decision: Decision) -> None:
        """Create the decision. Whether this one or another holds is read by whoever goes on."""
        self.ledger.create_decision(decision)

    def entry_and_base(self, id: int) -> tuple[Entry | None, Entry | None]:
        """An entry and what it rests on; no entry if it is retired. A lost base is an error, unless the entry no
        longer needs it."""
        entry = self.real_entry(id)
        if entry is None:
            self._refuse_unknown(id)
            return None, None
        if entry.plan.base is None:
            return (None if entry.open and self._retired_before(id) else entry), None
        base = self.ledger.entry(entry.plan.base)
        if base is None and entry.open:
            again = self.ledger.entry(id)
            if again is None or not again.open:  # decided since, and the base retired behind it
                return again, None
            if self._retired_before(id):
                return None, None
            raise Corrupt(
                f"checkpoint {entry.plan.base}, the base of the open checkpoint {id}, is gone",
                expected="every base of an open checkpoint to exist",
                help="restore the ledger's folder from a copy; never delete entries by hand",
                reason="LEDGER_DAMAGED",
            )
        return entry, base

    def real_entry(self, id: int) -> Entry | None:
        """The entry, or None if it is retired. What those who slept left under its id is no damage."""
        try:
            return self.ledger.entry(id)
        except Corrupt:
            if self._retired_before(id):
                return None
            raise

    def _retired_before(self, id: int) -> bool:
        """Whether an open entry is no real one: its id was retired, and claimed anew by somebody who slept.

        If something above it is completed, it was decided once: an old hint that names a pinned entry hides that.
        """
        view = self.ledger.view()
        found = view.get(id)
        if found is not None and found.open:
            return any(entry.completed and entry.plan.base is not None for entry in view.entries if entry.id > id)
        return bool(view.entries) and id < view.entries[0].id

    def _refuse_unknown(self, id: int) -> None:
        """Retired entries lie below the log's end. Any other that is not there never was, or is lost."""
        view = self.ledger.view()
        if not view.entries or not 1 <= id < view.entries[0].id:
            raise Invalid(
                f"pipeline {self.graph.name!r} has no checkpoint {id}",
                expected=f"one up to {view.last_id}" if view.entries else "a pipeline that has made checkpoints",
                help="`tidegate list` shows all; if it was there before, the ledger has been replaced: restore it",
                reason="NO_SUCH_CHECKPOINT",
            )

    # -- publish -------------------------------------------------------------------------------------

    def publish(self) -> publish.Report:
        """Bring every table up to the last completed checkpoint. Any process, any time, as often as it likes."""
        return publish.publish_owed(self)

    def retire(self) -> list[int]:
        """Forget what lies beyond `num_retained`, or all if it was cancelled for good. Answers with what is gone."""
        if (gone := discard.discard(self)) is not None:
            return gone
        periodic.keep_periodically(self)  # first, so that it stays
        return retention.retire_old(self)

    def context(self, sink: str) -> SinkContext:
        """Who we are to the target of `sink`."""
        uid, by_interval = self.ledger.start().uid, self.graph.by_interval
        return SinkContext(
            self.graph.name, uid, sink, self.place, by_interval=by_interval, home=self.ledger.home, spark=self.spark
        )


def _decision(id: int, outcome: str, **rest: object) -> Decision:
    return Decision(**stamp(seams.new_id()), id=id, outcome=outcome, **rest)  # type: ignore[arg-type]


def _outcome(id: int, entry: Entry | None) -> Outcome:
    if entry is None:
        return Outcome(id, "retired")
    if entry.decision is None:
        return Outcome(id, "open")
    decision = entry.decision
    return Outcome(id, decision.outcome, decision.reason, decision.detail, decision.counts)
