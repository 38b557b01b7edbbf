"""Trigger, decide, publish: carries out what protocol/rules.py answers, one create at a time.

Holds no state between calls: any process may call any method at any time, twice, or too late. Each
method reads the ledger, asks the protocol, does the one thing that it says, and asks again until the
protocol has nothing more to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tidegate.checkpoint import approvals as holding
from tidegate.checkpoint import control, intervals, skipping
from tidegate.checkpoint.ancestry import all_below, lacking, passed_by, settle_acks
from tidegate.checkpoint.context import GiveUp, PipelineContext, decision
from tidegate.checkpoint.intervals import AlreadyCovered
from tidegate.checkpoint.manifests import manifest_of
from tidegate.checkpoint.planning import CheckpointOptions, Plans
from tidegate.checkpoint.publishing import publish
from tidegate.checkpoint.publishing.intervals import refuse_rewritten
from tidegate.errors import Corrupt, Rejected
from tidegate.lifecycle import cancel as discard
from tidegate.lifecycle import periodic_savepoints as periodic
from tidegate.lifecycle import retention, rollback
from tidegate.lifecycle.rollback_proposal import How
from tidegate.protocol import rules as protocol
from tidegate.protocol.view import Entry, View
from tidegate.records.names import check_run
from tidegate.records.records import Decision, Drain, Plan

if TYPE_CHECKING:
    pass

__all__ = ["AlreadyCovered", "Coordinator", "Outcome", "Triggered"]


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


def _nobody_is_gone(plan: Plan) -> str | None:
    return None


class Coordinator(PipelineContext):
    """The control plane of one pipeline."""

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
    ) -> Triggered | AlreadyCovered | None:
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
                self.decide(self._abort(answer))
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
                    plan = self._plan(answer, view, run, kind, wanted, CheckpointOptions(standing, drain, aligned))
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

    def _ask(
        self, view: View, run: str, give_up: GiveUp, wanted: protocol.WantedInterval | None
    ) -> protocol.Triggering:
        intervals.refuse_other_kind(self.graph, view)
        reasons, asked = self._reasons(view, run, give_up), intervals.with_index(wanted, self.ledger)
        return protocol.on_trigger(view, run, self.limits.max_concurrent_checkpoints, reasons, asked)

    def _plan(
        self,
        answer: protocol.CreateEntry,
        view: View,
        run: str,
        kind: str,
        wanted: protocol.WantedInterval | None,
        special: CheckpointOptions,
    ) -> Plan:
        if wanted is not None and wanted.independent:
            refuse_rewritten(self, view, wanted.interval)
        plans = Plans(self.graph, self.ledger, self.limits, self.place)
        plan = plans.make(answer, view, run, kind, wanted, special)
        intervals.refuse_archived(self.graph, plan, view, self.ledger)
        return plan

    def _refuse(self, view: View, kind: str) -> None:
        """Why nothing may be planned now, if so."""
        discard.resume_cleanup(self, view)
        control.refuse(self, view, kind)

    def _create(self, plan: Plan, view: View) -> bool:
        """T6. False: the id was taken; look again."""
        control.settle_below(self.ledger, view, plan.base or 0)
        if not self.ledger.create_entry(plan).mine or not self.counts(plan):
            return False
        self.ledger.index_run(plan)
        return True

    def _no_plan(
        self,
        answer: protocol.Covered | protocol.Misfit | protocol.Wait,
        view: View,
        wanted: protocol.WantedInterval | None,
    ) -> AlreadyCovered:
        """The run gets nothing now. What is done already is published, all else is refused."""
        if isinstance(answer, protocol.Wait):
            control.refuse_suspended(self, view)
            raise control.busy(answer.ids, holding.pending_approvals_text(view, answer.ids))
        assert wanted is not None
        if isinstance(answer, protocol.Misfit):
            raise intervals.misfit(answer, wanted, self.graph)
        report = publish.publish_or_wait(self, wanted.interval)
        done = intervals.covered(answer, wanted, self.ledger)
        if (entry := self.ledger.entry(done.by)) is not None and self.ledger.published(entry.id) is None:
            publish.refuse_unpublished(entry, report)
        return done

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
            if again is None or again.plan.attempt != entry.plan.attempt or self.retired_before(id):
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
                self.decide(self._abort(answer))
            elif isinstance(answer, protocol.Complete):
                assert entry is not None
                settle_acks(self.ledger, entry, base, below)
                sha = self.ledger.create_manifest(manifest_of(entry, base, below))
                self.ledger.index_run(entry.plan)
                self.decide(decision(id, "completed", manifest=sha))
            elif isinstance(answer, protocol.Undecided):
                if not holding.answer_overdue(self.ledger, answer):
                    return Outcome(id, "open", holding.HELD, holding.pending_approvals_text(self.ledger.view(), [id]))
            else:
                if entry is not None and entry.aborted:
                    retention.release(self, entry)
                return _outcome(id, entry)

    def abort(self, id: int, reason: str, detail: str = "", *, counts: bool = False) -> Outcome:
        """End checkpoint `id` unless it is decided. Always safe; what comes back is what holds."""
        entry, _ = self.entry_and_base(id)
        if entry is not None and entry.open:
            self.decide(decision(id, "aborted", reason=reason, detail=detail, counts=counts))
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
    ) -> rollback.RolledBack:
        """Put positions, state and outputs back to checkpoint `to`, and publish that: see lifecycle/rollback.py."""
        return rollback.roll_back(self, to, run=run, by=by, choices=choices or {}, reason=reason)

    def suspended(self) -> control.Suspended | None:
        """Why no checkpoint may be planned now, or None."""
        return control.suspended(self.ledger.view(), self.limits.tolerable_failed_checkpoints)

    def _abort(self, answer: protocol.Abort) -> Decision:
        return decision(answer.id, "aborted", reason=answer.reason, detail=answer.detail, counts=answer.counts)

    # -- publish -------------------------------------------------------------------------------------

    def publish(self) -> publish.Report:
        """Bring every table up to the last completed checkpoint. Any process, any time, as often as it likes."""
        return publish.publish_pending(self)

    def retire(self) -> list[int]:
        """Forget what lies beyond `num_retained`, or all if it was cancelled for good. Answers with what is gone."""
        if (gone := discard.delete_cancelled(self)) is not None:
            return gone
        periodic.keep_periodically(self)  # first, so that it stays
        return retention.retire_old(self)


def _outcome(id: int, entry: Entry | None) -> Outcome:
    if entry is None:
        return Outcome(id, "retired")
    if entry.decision is None:
        return Outcome(id, "open")
    decision = entry.decision
    return Outcome(id, decision.outcome, decision.reason, decision.detail, decision.counts)
