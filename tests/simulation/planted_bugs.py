"""Bugs that are planted into the real code, one at a time. The simulation must find each within some days.

Each is a way in which somebody could get a rule of docs/protocol.md wrong. The names say what is broken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from tests.kit.toys import ToySink
from tests.simulation.simulate import simulate_seed
from tidegate import coordinator
from tidegate.checkpoint import approvals, suspension
from tidegate.checkpoint.manifests import manifest_of
from tidegate.checkpoint.publishing import publish
from tidegate.coordinator import Coordinator
from tidegate.errors import Unavailable
from tidegate.execution.job.run_job import Attempt
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.log import EntryLog
from tidegate.ledger.record_files import Created, Records
from tidegate.lifecycle import retention, rollback
from tidegate.protocol import rules
from tidegate.protocol.view import Entry
from tidegate.records.codec import encode, sha256
from tidegate.records.records import Decision

Patches = Iterator[Any]
"""What `mock.patch.object` gives, all at once."""


def _overwrite_instead_of_create() -> Patches:
    def create(self: Records, path: str, record: Any) -> Created[Any]:
        data = encode(record)
        self.store.replace(path, data)
        return Created(record, sha256(data), is_new=True)

    yield mock.patch.object(Records, "_create_if_absent", create)


def _believe_that_every_create_won() -> Patches:
    real = Records._create_if_absent

    def create(self: Records, path: str, record: Any) -> Created[Any]:
        real(self, path, record)
        return Created(record, sha256(encode(record)), is_new=True)

    yield mock.patch.object(Records, "_create_if_absent", create)


def _believe_that_an_unclear_create_lost() -> Patches:
    real = Records._create_if_absent

    def create(self: Records, path: str, record: Any) -> Created[Any]:
        return replace(real(self, path, record), is_new=False)

    yield mock.patch.object(Records, "_create_if_absent", create)


def _release_the_winner_after_an_unclear_ack() -> Patches:
    real = Attempt.ack

    def ack(self: Attempt, *args: Any) -> Any:
        try:
            return real(self, *args)
        except Unavailable:
            self.release()
            raise

    yield mock.patch.object(Attempt, "ack", ack)


def _publish_without_cas() -> Patches:
    real = ToySink.publish

    def publish(self: ToySink, publication: Any, head: Any, context: Any) -> Any:
        commits = self._table.commits
        return real(self, publication, replace(head, version=len(commits) - 1 if commits else None), context)

    def ask(self: ToySink, what: str, possible: str) -> str:
        return ""  # no pause between reading the version and committing: whatever it is, it is right

    yield mock.patch.object(ToySink, "publish", publish)
    yield mock.patch.object(ToySink, "_ask", ask)


def _publish_the_newest_first() -> Patches:
    real = rules.on_publish

    def on_publish(view: Any, table: str, *read: Any) -> Any:
        answer = real(view, table, *read)
        if isinstance(answer, rules.Publish):
            owed = [e.id for e in view.entries if e.manifest and e.manifest.tables[table].committables]
            return replace(answer, id=owed[-1])
        return answer

    yield mock.patch.object(rules, "on_publish", on_publish)


def _publish_before_the_decision() -> Patches:
    real = Coordinator.decide

    def decide(self: Coordinator, decision: Decision) -> None:
        if decision.outcome == "completed":
            entry, base = self.entry_and_base(decision.id)
            if entry is not None and entry.open:
                early = replace(entry, decision=decision, manifest=manifest_of(entry, base))
                for name, sinking in self.graph.sinks.items():
                    context = self.context(name)
                    part = early.manifest.tables[name] if early.manifest else None
                    if part is not None and part.committables:
                        unsynced = mock.patch.object(self.ledger, "sync_decision", lambda id: None)
                        with unsynced, contextlib.suppress(Unavailable):
                            publication = publish._publication(self, early, name, part.after)
                            sinking.sink.publish(publication, sinking.sink.head(context), context)
        real(self, decision)

    yield mock.patch.object(Coordinator, "decide", decide)


def _never_settle() -> Patches:
    for name in ("sync_plan", "sync_decision", "sync_ack"):
        yield mock.patch.object(Ledger, name, lambda self, what: None)


def _base_is_the_last_completed() -> Patches:
    yield mock.patch.object(rules, "plan_base", lambda view: view.last_completed)


def _ignore_what_the_run_has() -> Patches:
    yield mock.patch.object(rules, "entry_of_run", lambda view, run: None)


def _complete_on_a_pending_base() -> Patches:
    real = rules.on_completion

    def on_completion(entry: Entry | None, base: Entry | None, failure: Any = None, *more: Any) -> Any:
        if base is not None and base.open:
            forged = Decision(attempt="x", created="", id=base.id, outcome="completed")
            base = replace(base, decision=forged)
        return real(entry, base, failure, *more)

    yield mock.patch.object(rules, "on_completion", on_completion)


def _plan_around_an_abort_that_may_have_lost() -> Patches:
    real = Coordinator.decide

    def decide(self: Coordinator, decision: Decision) -> None:
        real(self, decision)
        if decision.outcome == "aborted":
            self.ledger.__dict__.setdefault("believed", set()).add(decision.id)

    real_filled = EntryLog._entry_of

    def filled(self: EntryLog, plan: Any) -> Entry:
        entry = real_filled(self, plan)
        if plan.id in self.__dict__.get("believed", ()):
            aborted = Decision(attempt="x", created="", id=plan.id, outcome="aborted")
            return replace(entry, decision=aborted, manifest=None)
        return entry

    yield mock.patch.object(Coordinator, "decide", decide)
    yield mock.patch.object(EntryLog, "_entry_of", filled)


def _no_run_index() -> Patches:
    yield mock.patch.object(Ledger, "index_run", lambda self, plan: None)


def _retire_what_is_not_settled() -> Patches:
    def floor(ledger: Any, kept: Any, num_retained: int) -> int:
        return kept.upto + 1 if kept is not None else 0

    yield mock.patch.object(retention, "_floor", floor)


def _discard_the_winner_when_retiring() -> Patches:
    def clear(coordinator: Coordinator, entry: Entry) -> None:
        for name, sinking in coordinator.graph.sinks.items():
            context = coordinator.context(name)
            for attempt in sinking.sink.attempts(entry.id, context):
                sinking.sink.discard(context, retention.Staging(entry.id, attempt))

    yield mock.patch.object(retention, "clear_staged", clear)


def _never_notice_a_retired_id() -> Patches:
    yield mock.patch.object(Coordinator, "abort_if_id_was_used", lambda self, plan: True)


def _release_attempts_of_other_plans() -> Patches:
    yield mock.patch.object(Entry, "owns", lambda self, attempt: True)


def _believe_the_first_contradiction() -> Patches:
    real = rules.on_publish

    def on_publish(view: Any, table: str, *read: Any) -> Any:
        answer = real(view, table, *read)
        if isinstance(answer, rules.Damaged):
            raise coordinator.Corrupt(answer.why)
        return answer

    yield mock.patch.object(rules, "on_publish", on_publish)


def _roll_back_over_what_is_open() -> Patches:
    real = rules.on_rollback

    def on_rollback(view: Any) -> Any:
        decided = tuple(each for each in view.entries if each.decision is not None)
        answer = real(replace(view, entries=decided))
        return answer if isinstance(answer, rules.Abort) else replace(answer, id=view.last_id + 1)

    yield mock.patch.object(rules, "on_rollback", on_rollback)


def _continue_from_where_the_last_one_ended() -> Patches:
    real = rollback._plan

    def plan(answer: Any, proposal: Any, record: Any, *rest: Any) -> Any:
        made = real(answer, proposal, record, *rest)
        sources = rollback.standing_ranges(proposal.base.plan, {})
        return msgspec.structs.replace(made, sources=sources)

    yield mock.patch.object(rollback, "_plan", plan)


def _pin_nothing() -> Patches:
    def create(self: Ledger, pin: Any) -> Created[Any]:
        return Created(pin, "", is_new=True)

    yield mock.patch.object(Ledger, "create_pin", create)


def name_without_looking_for_the_tombstone() -> Patches:
    yield mock.patch.object(EntryLog, "is_retained", lambda self, id: True)


def _answer_a_suspension_by_a_rollback() -> Patches:
    real = rollback._rollback_record

    def rollback_record(*args: Any) -> Any:
        return msgspec.structs.replace(real(*args), suspended=None)

    yield mock.patch.object(rollback, "_rollback_record", rollback_record)


def _make_no_fence() -> Patches:
    real = ToySink.restore

    def restore(self: ToySink, publication: Any, head: Any, context: Any) -> Any:
        restored = publication.restore
        if restored.to is not None and restored.to.version == head.version:
            return self._published(head.version)
        return real(self, publication, head, context)

    yield mock.patch.object(ToySink, "restore", restore)


def _ignore_suspensions() -> Patches:
    yield mock.patch.object(suspension, "refuse_suspended", lambda coordinator, view: None)


def _complete_without_an_answer() -> Patches:
    yield mock.patch.object(rules, "unanswered", lambda entry: ())


def _take_a_no_for_a_yes() -> Patches:
    yield mock.patch.object(rules, "rejection", lambda entry: "")


def _let_the_time_limit_overrule() -> Patches:
    real = Ledger.create_answer

    def create(self: Ledger, answer: Any) -> Any:
        if answer.by != "the time limit":
            return real(self, answer)
        self.store.replace(f"checkpoints/{answer.id:08d}/holds/{answer.gate}.json", encode(answer))
        return real(self, answer)

    yield mock.patch.object(Ledger, "create_answer", create)


class Plant(NamedTuple):
    """A bug: how it is planted, and within how many days it must be found."""

    patches: Callable[[], Patches]
    within: int
    known: tuple[int, ...] = ()
    """Days on which it was found before: looked at first. If they have changed since, all others are."""
    kind: str | None = None
    """The kind of days that show it, if it is another one than for its neighbours."""

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The real code with this bug, for the length of a `with` block."""
        with contextlib.ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield

    def is_found(self, kind: str = "life") -> bool:
        """Whether somebody notices, as it is planted now, on days of this kind."""
        return any(simulate_seed(seed, self.kind or kind).problem for seed in (*self.known, *range(self.within)))


def _decide_on_an_answer_that_is_not_durable() -> Patches:
    yield mock.patch.object(approvals, "sync_answers", lambda ledger, entry: None)


PLANTED: dict[str, Plant] = {
    "plan behind a suspension": Plant(_ignore_suspensions, 200),
    "overwrite instead of create": Plant(_overwrite_instead_of_create, 50),
    "believe that every create won": Plant(_believe_that_every_create_won, 200),
    "believe that every create lost": Plant(_believe_that_an_unclear_create_lost, 50),
    "release the winner after an unclear ack": Plant(_release_the_winner_after_an_unclear_ack, 3000, (22,)),
    "publish without compare-and-swap": Plant(_publish_without_cas, 400),
    "publish the newest first": Plant(_publish_the_newest_first, 400),
    "publish before the decision": Plant(_publish_before_the_decision, 200),
    "act on what is not durable": Plant(_never_settle, 400, (5,)),
    "base = last completed": Plant(_base_is_the_last_completed, 200),
    "ignore what the run has": Plant(_ignore_what_the_run_has, 100),
    "complete on a pending base": Plant(_complete_on_a_pending_base, 400),
    "plan around an abort that may have lost": Plant(_plan_around_an_abort_that_may_have_lost, 400, (50,)),
    "no run index": Plant(_no_run_index, 50),
    "retire what is not settled": Plant(_retire_what_is_not_settled, 50),
    "discard the winner when retiring": Plant(_discard_the_winner_when_retiring, 100),
    "never notice that an id is retired": Plant(_never_notice_a_retired_id, 600, (19,)),
    "release attempts of other plans": Plant(_release_attempts_of_other_plans, 600, (84,)),
    "roll back over what is open": Plant(_roll_back_over_what_is_open, 400, (13,)),
    "go on from where the last one ended": Plant(_continue_from_where_the_last_one_ended, 100, (71,)),
    "pin nothing": Plant(_pin_nothing, 400, (34,)),
    "answer a suspension by a rollback": Plant(_answer_a_suspension_by_a_rollback, 400, (13,)),
    "make no fence": Plant(_make_no_fence, 400, (34,)),
    "complete without an answer": Plant(_complete_without_an_answer, 100),
    "take a no for a yes": Plant(_take_a_no_for_a_yes, 100, (18,)),
    "let the time limit overrule": Plant(_let_the_time_limit_overrule, 600, (103,)),
    "decide on an answer that is not durable": Plant(_decide_on_an_answer_that_is_not_durable, 3000, (1187,)),
    "believe the first contradiction": Plant(_believe_the_first_contradiction, 600, (13,)),
}
