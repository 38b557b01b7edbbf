"""Triggers, decides and publishes checkpoints by the rules of protocol/rules.py, one create at a time.

It keeps no state between calls: any process may call any method at any time, twice, or too late. Each method reads the
ledger, asks the protocol for the next step, performs it, and repeats until no step remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from tidegate import seams
from tidegate.checkpoint import approvals, intervals, skipping, source_notices, suspension
from tidegate.checkpoint.context import AbandonCheck, PipelineContext, decision
from tidegate.checkpoint.intervals import AlreadyCovered
from tidegate.checkpoint.manifests import ancestors, jobs_without_ack, manifest_of, overtaken_jobs, sync_acks
from tidegate.checkpoint.planning import CheckpointOptions, Plans
from tidegate.checkpoint.publishing import publish
from tidegate.checkpoint.publishing.intervals import refuse_rewritten
from tidegate.errors import Corrupt, Rejected
from tidegate.ledger.turns import Turns
from tidegate.lifecycle import control, final_cleanup, retention, rollback, savepoint
from tidegate.lifecycle.rollback_preview import How
from tidegate.protocol import rules
from tidegate.protocol.view import Entry, View
from tidegate.records.codec import fingerprint
from tidegate.records.names import check_run
from tidegate.records.records import ChangeByHand, Decision, Divert, Drain, Plan, Rank

__all__ = ["AlreadyCovered", "Coordinator", "Outcome", "Triggered"]


@dataclass(frozen=True)
class Triggered:
    """A run has its checkpoint. Its jobs execute `plan`."""

    plan: Plan
    adopted: bool
    """Whether the run already had it, as after a retry or a cleared task."""


@dataclass(frozen=True)
class Outcome:
    """The current state of a checkpoint."""

    id: int
    state: str
    """completed, aborted, open, or retired. Open and HELD: it waits for a person."""
    reason: str = ""
    detail: str = ""
    counts: bool = False
    """Whether an abort counts towards the tolerable failures. It does not if another run, or the base, caused it."""


@dataclass(frozen=True)
class _TriggerRequest:
    """The arguments of `trigger`."""

    run: str
    kind: str
    give_up: AbandonCheck
    only_if_new: bool
    is_due: Callable[[View], bool]
    interval: rules.WantedInterval | None
    options: CheckpointOptions


def _never_due(view: View) -> bool:
    return False


def _never_abandon(plan: Plan) -> str | None:
    return None


class Coordinator(PipelineContext):
    """The control plane of one pipeline."""

    # -- trigger -------------------------------------------------------------------------------------

    def trigger(
        self,
        run: str,
        *,
        kind: str = "manual",
        give_up: AbandonCheck = _never_abandon,
        only_if_new: bool = False,
        is_due: Callable[[View], bool] = _never_due,
        interval: tuple[datetime, datetime] | None = None,
        reprocess: bool = False,
        standing: bool = False,
        by_hand: ChangeByHand | None = None,
        divert: Divert | None = None,
        drain: Drain | None = None,
        aligned: bool = False,
        rank: Rank | None = None,
    ) -> Triggered | AlreadyCovered | None:
        """Return the run's checkpoint: an existing one, or a new one that continues from the last.

        Return AlreadyCovered if the interval is done, and None if `only_if_new` is set and no source has new input.
        Raise Rejected if other checkpoints are in progress, or too much is unpublished; the caller may retry later.

        give_up: returns the reason to abort an open checkpoint of another run, if it is abandoned.
        is_due: with `only_if_new`, returns whether to make a checkpoint even without new input.
        interval: the run's data interval, if it has one.
        reprocess: process the interval again, as a new checkpoint that replaces its rows in the tables.
        standing, by_hand, divert, drain, aligned: see planning.CheckpointOptions.
        rank: how urgent the run is. Of several runs that wait, the most urgent comes first. None: it does not queue.
        """
        check_run(run)
        requested = intervals.requested_interval(self.graph, interval, reprocess)
        # In an interval pipeline, runs wait for intervals instead of their turn.
        turns = Turns(self.ledger, run, rank if not self.graph.by_interval else None)
        request = _TriggerRequest(
            run,
            kind,
            give_up,
            only_if_new,
            is_due,
            requested,
            CheckpointOptions(standing, drain, aligned, by_hand, divert),
        )
        with turns.noted():
            return self._triggered(request, turns)

    def _triggered(self, request: _TriggerRequest, turns: Turns) -> Triggered | AlreadyCovered | None:
        began = seams.monotonic()
        run, requested = request.run, request.interval
        uid = self.ledger.start().uid
        published: int | None = None
        reach: int | None = None
        report: publish.Report | None = None
        while True:
            view = self.ledger.view(run, reach)
            answer = self._request_checkpoint(view, run, request.give_up, requested)
            if isinstance(answer, rules.Adopt):
                adopted = self._adopted(view, answer.id)
                if adopted is not None:
                    return adopted
            elif isinstance(answer, rules.Abort):
                self.decide(self._abort(answer))
            elif not isinstance(answer, rules.CreateEntry):
                return self._handle_no_plan(answer, view, requested)
            else:
                final_cleanup.resume_cleanup(self, view)
                suspension.check_may_plan(self, view, request.kind)
                completed = view.last_completed.id if view.last_completed else 0
                if published != completed:  # publish first: a source may read a table with pending entries
                    published = completed
                    if not self._may_skip_tables(view, uid):
                        interval_now = requested.interval if requested else None
                        diverts = request.options.divert
                        report = publish.publish_or_wait(self, interval_now, view, uid, diverts=diverts)
                        continue  # publishing takes time, so read the log again
                    report = publish.Report(needless=True)
                turns.refuse_early(view)
                try:
                    plan = self._plan(answer, view, run, request.kind, requested, request.options, report)
                except Corrupt:
                    if answer.base is None or self.ledger.is_retained(answer.base):
                        raise
                    continue  # the log moved on, and retention removed files that the base's positions name
                if request.only_if_new and self.has_no_new_input(plan, view) and not request.is_due(view):
                    turns.end_waiting()
                    return None
                plan = msgspec.structs.replace(plan, planning_s=round(seams.monotonic() - began, 3))
                if self._create(plan, view):
                    turns.end_waiting()
                    return Triggered(plan, adopted=False)
                reach = plan.id  # it exists now, even if listings do not show it yet

    def has_no_new_input(self, plan: Plan, view: View) -> bool:
        """Return whether a plan has neither input to read nor skipped input to report."""
        is_empty = all(part.empty for part in plan.sources.values())
        return is_empty and plan.drain is None and not skipping.is_news(plan.sources, view)

    def _may_skip_tables(self, view: View, uid: str) -> bool:
        """Return whether the tables need not be checked before planning.

        In an object store each check costs requests. If everything is published as recorded, and neither code nor
        settings have changed, a check could only find changes by other writers. The job finds these, too, before it
        reads.
        """
        last = view.last_completed
        if last is None or last.id != view.settled or last.rollback is not None or last.plan.by_interval:
            return False
        same_code = last.plan.code_fingerprint == self.graph.code_fingerprint()
        same_settings = last.plan.config_fingerprint == fingerprint(self.settings.record())
        return same_code and same_settings and self.all_in_buckets(uid)

    def _request_checkpoint(
        self, view: View, run: str, give_up: AbandonCheck, requested: rules.WantedInterval | None
    ) -> rules.Triggering:
        intervals.refuse_changed_kind(self.graph, view)
        reasons = self._find_abortable(view, run, give_up)
        indexed = intervals.with_index(requested, self.ledger)
        return rules.on_trigger(view, run, self.settings.max_concurrent_checkpoints, reasons, indexed)

    def _plan(
        self,
        answer: rules.CreateEntry,
        view: View,
        run: str,
        kind: str,
        requested: rules.WantedInterval | None,
        options: CheckpointOptions,
        report: publish.Report | None,
    ) -> Plan:
        if requested is not None and requested.independent:
            refuse_rewritten(self, view, requested.interval)
        plan = Plans(self).make(answer, view, run, kind, requested, options, report)
        intervals.refuse_archived(self.graph, plan, view, self.ledger)
        return plan

    def _create(self, plan: Plan, view: View) -> bool:
        """T6: create the entry. Return False if the id was taken, so that the log must be read again."""
        control.sync_below(self.ledger, view, plan.base or 0)
        if not self.ledger.create_entry(plan).is_new or not self.abort_if_id_was_used(plan):
            return False
        self.ledger.index_run(plan)
        return True

    def _handle_no_plan(
        self,
        answer: rules.Covered | rules.Misfit | rules.Wait,
        view: View,
        requested: rules.WantedInterval | None,
    ) -> AlreadyCovered:
        """Handle a run that gets no checkpoint: publish a covered interval, or raise for every other answer."""
        if isinstance(answer, rules.Wait):
            suspension.refuse_suspended(self, view)
            if pending := approvals.pending_approvals_text(view, answer.ids, self._answering):
                raise suspension.approval_pending(self, answer.ids, pending)
            limit = self.settings.max_concurrent_checkpoints
            is_full = requested is None or len(answer.ids) >= limit
            if is_full:
                why = f"max_concurrent_checkpoints is {limit}"
            else:
                why = "its interval overlaps"
            raise suspension.in_progress(answer.ids, why)
        assert requested is not None
        if isinstance(answer, rules.Misfit):
            raise intervals.misfit(answer, requested, self.graph)
        report = publish.publish_or_wait(self, requested.interval)
        covered = intervals.covered(answer, requested, self.ledger)
        entry = self.ledger.entry(covered.checkpoint)
        if entry is not None and self.ledger.published(entry.id) is None:
            publish.refuse_unpublished(entry, report)
        return covered

    def _adopted(self, view: View, id: int) -> Triggered | None:
        """Return the run's existing checkpoint. None if another run took over its id, so that the log must be read
        again."""
        entry = view.get(id)
        if entry is None:
            for candidate in view.own_outside_view:
                if isinstance(candidate, Entry) and candidate.id == id:
                    entry = candidate
                    break
        if entry is None:
            raise Rejected(
                f"this run made checkpoint {id}, which is decided and retired since",
                help="nothing to do; trigger a new run for new input",
                reason="RETIRED",
            )
        if entry.open:
            self.ledger.sync_plan(id)  # an index without its entry would look like damage
            again = self.real_entry(id)
            if again is None or again.plan.attempt != entry.plan.attempt or self.retired_before(id):
                return None
        self.ledger.index_run(entry.plan)
        return Triggered(entry.plan, adopted=True)

    def _find_abortable(self, view: View, run: str, give_up: AbandonCheck) -> dict[int, str]:
        """Return the open entries of other runs that may be aborted, with reasons. A wrong reason only costs time."""
        reasons = {}
        for entry in view.still_open():
            if entry.plan.run == run:
                continue
            if approvals.awaits_person(entry):
                self.complete(entry.id)  # its creator may be gone
                continue
            reason = self.why_overdue(entry)[0] if self.overdue(entry) else give_up(entry.plan)
            if reason:
                reasons[entry.id] = reason
            elif not jobs_without_ack(self.ledger, entry) and self.ledger.expired(entry.plan):
                self.complete(entry.id)  # its process died before it could
        return reasons

    # -- decide --------------------------------------------------------------------------------------

    def complete(self, id: int, failure: tuple[str, str] | None = None) -> Outcome:
        """Decide checkpoint `id` if possible. failure: the reason and detail of a job that gave up."""
        while True:
            entry, base = self.entry_and_base(id)
            if failure is None and entry is not None and entry.open and self.overdue(entry):
                failure = self.why_overdue(entry)
            below = ancestors(self.ledger, entry, base)
            answer = rules.on_completion(entry, base, failure, below, overtaken_jobs(self.ledger, entry))
            if isinstance(answer, rules.Abort):
                approvals.sync_answers(self.ledger, entry)
                self.decide(self._abort(answer))
            elif isinstance(answer, rules.Complete):
                assert entry is not None
                sync_acks(self.ledger, entry, base, below)
                manifest = manifest_of(entry, base, below)
                sha = self.ledger.create_manifest(manifest)
                self.ledger.index_run(entry.plan)
                decided = self.decide(decision(id, "completed", manifest=sha))
                if decided.manifest == sha and self.ledger.plan(id) == entry.plan:  # it is not retired since
                    self.ledger.remember(replace(entry, decision=decided, manifest=manifest))
                    return _decided(decided)
            elif isinstance(answer, rules.Undecided):
                if not self._carry_approvals(answer) and not approvals.answer_overdue(self.ledger, answer):
                    text = approvals.pending_approvals_text(self.ledger.view(), [id], self._answering)
                    return Outcome(id, "open", approvals.HELD, text)
            else:
                if entry is not None and entry.aborted:
                    retention.discard_staged(self, entry)
                return _outcome(id, entry)

    def _carry_approvals(self, undecided: rules.Undecided) -> bool:
        """Apply approvals of the same rows from elsewhere, as a backfill does. Return whether there were any."""
        return False

    def _answering(self, id: int) -> str:
        """Return the command that answers a hold, if it is not the pipeline's own."""
        if not self.option:
            return ""
        return f": tidegate approve|reject {self.graph.name} {id}{self.option}"

    def abort(self, id: int, reason: str, detail: str = "", *, counts: bool = False) -> Outcome:
        """Abort checkpoint `id` unless it is decided, and return its outcome. This is always safe."""
        entry, _ = self.entry_and_base(id)
        if entry is not None and entry.open:
            self.decide(decision(id, "aborted", reason=reason, detail=detail, counts=counts))
            entry, _ = self.entry_and_base(id)
        if entry is not None and entry.aborted:
            retention.discard_staged(self, entry)
        return _outcome(id, entry)

    def suspend(self, by: str, reason: str) -> int:
        """Suspend the pipeline: no run plans a checkpoint until it is resumed. Planned checkpoints continue."""
        return control.suspend(self.ledger, by, reason)

    def resume(self, by: str, reason: str = "", *, quarantine_all: bool = False) -> int | None:
        """Resume the pipeline, and return the entry's id, or None if it was not suspended."""
        return control.resume(self.ledger, by, reason, quarantine_all=quarantine_all)

    def roll_back(
        self, to: int, *, run: str, by: str, choices: Mapping[str, How] | None = None, reason: str = ""
    ) -> rollback.RolledBack:
        """Return positions, state and tables to checkpoint `to`, and publish that: see lifecycle/rollback.py."""
        return rollback.roll_back(self, to, run=run, by=by, choices=choices or {}, reason=reason)

    def suspended(self) -> suspension.SuspensionState | None:
        """Return why no checkpoint may be planned now, or None."""
        return suspension.current_suspension(self)

    def _abort(self, answer: rules.Abort) -> Decision:
        return decision(answer.id, "aborted", reason=answer.reason, detail=answer.detail, counts=answer.counts)

    # -- publish -------------------------------------------------------------------------------------

    def publish(self) -> publish.Report:
        """Publish all completed checkpoints to every table. Any process may call this, at any time."""
        report = publish.publish_pending(self)
        source_notices.notify_sources(self)
        return report

    def retire(self) -> list[int]:
        """Delete entries beyond `num_retained`, or all of them after a final cancel. Return their ids."""
        removed = final_cleanup.delete_cancelled(self)
        if removed is not None:
            return removed
        savepoint.create_periodic_savepoint(self)  # first, so that retention spares the savepoint
        retired = retention.retire_old(self)
        if retired:
            source_notices.release_unneeded(self)
        return retired


def _outcome(id: int, entry: Entry | None) -> Outcome:
    if entry is None:
        return Outcome(id, "retired")
    if entry.decision is None:
        return Outcome(id, "open")
    return _decided(entry.decision)


def _decided(decision: Decision) -> Outcome:
    return Outcome(decision.id, decision.outcome, decision.reason, decision.detail, decision.counts)
