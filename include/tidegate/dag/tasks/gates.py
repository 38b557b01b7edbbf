"""The task of a gate: shows its verdict, and lets a person answer when the gate holds the checkpoint.

If a verdict is `hold`, Airflow asks people for an answer (Required Actions), and the task is deferred. It resumes after
an answer in Airflow, an answer on our page or by command, which the triggerer finds in the ledger, or the time limit.
An answer in Airflow is first written to the ledger, and only the ledger counts. Before the task ends, the question in
Airflow gets the answer that counts, so that nobody answers in vain.

Who may answer is checked by Airflow's server, with the same right as on our page: to edit the DAG's required actions.
"""

from __future__ import annotations

import logging
import re
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Param

from tidegate.dag.links import LINKS, CheckpointLink
from tidegate.dag.tasks.notices import Notice
from tidegate.dag.tasks.operators import PipelineTask
from tidegate.dag.tasks.questions import APPROVE, ELSEWHERE, QUARANTINE, REJECT, closing, option_of
from tidegate.errors import Fenced, Rejected
from tidegate.records.records import Answer, RecordedRule, Verdict
from tidegate.versions.airflow import HAS_QUESTIONS, AirflowFailException

if TYPE_CHECKING:
    from tidegate.dag.tasks.task import Task
    from tidegate.protocol.view import Acked, Entry

__all__ = ["GateOperator", "gate_task"]

log = logging.getLogger(__name__)


def gate_task(gate: str) -> str:
    """Return the task id of a gate."""
    return f"gate_{gate}"


class Question(Enum):
    """What is known of the question in Airflow."""

    UNKNOWN = "this try has just begun"
    MISSING = "Airflow has none"
    OPEN = "people can answer it"
    MISANSWERED = "it has an answer that does not count"
    CLOSED = "nobody can answer it any more"


class GateOperator(PipelineTask):
    """Shows what one gate found, and waits for a person if its verdict is `hold`."""

    ui_color = "#f9e79f"
    operator_extra_links = LINKS[:2]

    def __init__(self, *, gate: str, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate = gate
        self.job = job
        self._question = Question.UNKNOWN

    def execute(self, context: Any) -> dict[str, Any]:
        """Show the verdict: succeed if the checkpoint may continue, otherwise fail."""
        from tidegate.dag.lineage.facts import of_gate

        with self.opened_task(context) as task:
            entry, acked = self._judged(task)
            verdict = acked.ack.gates[self.gate]
            self.send_lineage(lambda: of_gate(task.coordinator, entry, self.gate, verdict))
            _log_verdict(self.gate, entry.id, verdict)
            if verdict.quarantined and verdict.outcome != "abort":
                where = f"{self.pipeline.name} {self.gate} --checkpoint {entry.id}"
                log.info("The quarantined rows:  tidegate quarantine show %s", where)
            if verdict.outcome == "abort":
                raise AirflowFailException(_failure_text(self.gate, entry.id, verdict))
            if verdict.outcome == "hold":
                self._hold(task, entry, verdict)
            return {"checkpoint": entry.id, "verdict": verdict.outcome}

    def answered(self, context: Any, event: Any = None, *, closed: bool = False) -> dict[str, Any]:
        """Resume after an answer in Airflow, or when the ledger should be read again."""
        answer = event if isinstance(event, dict) else {}
        if closed or answer.get("closed"):
            self._question = Question.CLOSED
        elif "chosen_options" in answer:
            with self.opened_task(context) as task:
                self._question = self._record_answer(task, answer)
        else:
            if answer.get("not_asked"):
                self._question = Question.MISSING
            else:
                self._question = Question.OPEN
        return self.execute(context)

    def _judged(self, task: Task) -> tuple[Entry, Acked]:
        last = task.last()
        entry = task.coordinator.ledger.entry(last) if last is not None else None
        if entry is None:
            raise Fenced("no verdict: this run has no checkpoint, or its records are retired")
        acked = entry.acks.get(self.job)
        if acked is None or self.gate not in acked.ack.gates:
            if acked is None:
                why = "its job has not acknowledged it"
            else:
                why = "a gate before this one has ended it"
            raise Fenced(f"gate {self.gate!r} has no verdict on checkpoint {entry.id}: {why}")
        return entry, acked

    def _hold(self, task: Task, entry: Entry, verdict: Verdict) -> None:
        """Fail if the answer is Reject, otherwise return. Without an answer, ask, and defer the task."""
        from tidegate.protocol.verdicts import REJECTED

        outcome = task.coordinator.complete(entry.id) if entry.open else None  # answers it if the time limit has passed
        answer = task.coordinator.ledger.answer(entry.id, self.gate)
        if answer is None and outcome is not None and outcome.state == "open":
            self._wait_for_answer(task, entry, verdict)
        self._close_question(task, entry, verdict, answer)
        if answer is None:
            return
        log.info("Gate %s: %s by %s. %s", self.gate, answer.choice, answer.by, answer.note)
        if answer.quarantine:
            log.info("Checkpoint %s is aborted, and its input is read again, with these rows in quarantine", entry.id)
        elif not answer.approve:
            note = f": {answer.note}" if answer.note else ""
            raise AirflowFailException(
                f"{REJECTED}: gate {self.gate!r}: checkpoint {entry.id} was rejected by {answer.by}{note}\n  Nothing "
                f"of it is published.\n  Help: correct the input or the rules, then: tidegate resume "
                f"{self.pipeline.name}; add --quarantine-all to quarantine the held rows"
            )

    # -- the question in Airflow -------------------------------------------------------------------------

    def _wait_for_answer(self, task: Task, entry: Entry, verdict: Verdict) -> NoReturn:
        """Ask, unless Airflow has the question, and defer the task until there is an answer."""
        is_new_try = self._question is Question.UNKNOWN
        # An answer that arrives before the first try has left its worker makes Airflow start another try. The answer
        # exists then, and asking again would delete it. Only the triggerer can check.
        may_have_answer = is_new_try and self._may_have_posted_question(task)
        if (is_new_try and not may_have_answer) or self._question in (Question.MISSING, Question.MISANSWERED):
            is_current = self._ask(task, entry, verdict)
            self._question = Question.OPEN
            if is_new_try:
                rules = ", ".join(sorted({broken.rule for broken in verdict.broken}))
                held = f"gate {self.gate} holds checkpoint {entry.id} until somebody answers: {rules}"
                self.notify(task, Notice("held", self.pipeline.name, entry.id, held))
            if not is_current:
                log.warning(
                    "Under Required Actions, Airflow keeps the question about an earlier checkpoint of the run. "
                    "Answer on the checkpoint's page, or by command"
                )
                elsewhere = [ELSEWHERE, f"for checkpoint {entry.id}, see its page"]
                self._defer_question(task, entry, closing=elsewhere, closed=True)
        log.info(
            "Waiting for a person: answer under Required Actions, or by `tidegate approve %s %s` or `tidegate reject`",
            self.pipeline.name,
            entry.id,
        )
        # After the run was cleared, Airflow may have an answer that is about an earlier checkpoint.
        is_cleared = bool(task.context["dag_run"].clear_number)
        if may_have_answer and is_cleared:
            since = entry.acks[self.job].ack.created
        else:
            since = ""
        self._defer_question(task, entry, look_again=_poll_interval(verdict), since=since)

    def _may_have_posted_question(self, task: Task) -> bool:
        """Return whether Airflow may have the question of an earlier try."""
        return HAS_QUESTIONS and task.context["ti"].try_number > 1

    def _ask(self, task: Task, entry: Entry, verdict: Verdict) -> bool:
        """Ask in Airflow, if it can, and delete an earlier answer. Return whether the question is about the checkpoint.

        Airflow keeps a question's text for as long as the run exists, even if the run is cleared.
        """
        if not HAS_QUESTIONS:
            return True
        from airflow.sdk.execution_time.comms import CreateHITLDetailPayload
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        from tidegate.checkpoint.approvals import can_quarantine

        options = [APPROVE, QUARANTINE, REJECT]
        if not can_quarantine(entry, self.gate):
            options.remove(QUARANTINE)
        note = Param("", type=["null", "string"], maxLength=1000, title="Note", description="Why. Kept in the ledger.")
        subject = f"Gate {self.gate} holds checkpoint {entry.id} of {self.pipeline.name}"
        page = CheckpointLink().get_link(self, ti_key=task.context["ti"])
        payload = CreateHITLDetailPayload(
            ti_id=task.context["ti"].id,
            options=options,
            subject=subject,
            body=question(
                self.gate, entry.id, verdict, self.pipeline.name, page=page, quarantine=QUARANTINE in options
            ),
            params={"note": note.serialize()},
            assigned_users=[],
        )
        asked: Any = SUPERVISOR_COMMS.send(payload)
        return getattr(asked, "subject", subject) == subject

    def _close_question(self, task: Task, entry: Entry, verdict: Verdict, answer: Answer | None) -> None:
        """Defer the task until the question in Airflow shows the answer that counts, unless it does."""
        may_be_open = self._question in (Question.OPEN, Question.MISANSWERED)
        if not HAS_QUESTIONS or not (
            may_be_open or (self._question is Question.UNKNOWN and self._may_have_posted_question(task))
        ):
            return
        if self._question is Question.MISANSWERED:
            self._ask(task, entry, verdict)
        self._defer_question(task, entry, closing=closing(answer, entry.id))

    def _defer_question(self, task: Task, entry: Entry, *, closed: bool = False, **words: Any) -> NoReturn:
        """Defer the task. closed: no answer in Airflow counts any more."""
        from tidegate.dag.waiting import LedgerTrigger

        is_closed = self._question is Question.CLOSED
        self.defer(
            trigger=LedgerTrigger(
                root=task.settings.root,
                project=self.project,
                pipeline=self.pipeline.name,
                ids=[entry.id],
                gate=self.gate,
                question=str(task.context["ti"].id) if HAS_QUESTIONS and not is_closed else "",
                **words,
            ),
            method_name="answered",
            kwargs={"closed": closed or is_closed},
        )

    def _record_answer(self, task: Task, event: dict[str, Any]) -> Question:
        """Write an answer in Airflow to the ledger, where the first one counts. Return what the question then is."""
        from tidegate.checkpoint import approvals

        entry, _ = self._judged(task)
        user = event.get("responded_by_user") or {}
        name, options = user.get("name") or user.get("id"), event["chosen_options"]
        if not name:
            log.warning("The question was answered, but not by a user that Airflow has checked: that does not count")
            return Question.MISANSWERED
        if options not in ([APPROVE], [QUARANTINE], [REJECT]):
            log.warning("The answer of %s is not one of the options: it does not count", name)
            return Question.MISANSWERED
        by, note = f"{name} in Airflow", (event.get("params_input") or {}).get("note")
        try:
            approvals.answer(
                task.coordinator.ledger,
                entry.id,
                self.gate,
                approve=options == [APPROVE],
                quarantine=options == [QUARANTINE],
                by=by,
                note=note[:1000] if isinstance(note, str) else "",
            )
        except Rejected as refused:
            log.info("Not recorded: %s", refused.what)
        counting = task.coordinator.ledger.answer(entry.id, self.gate)
        if counting is not None and counting.by == by and [option_of(counting)] == options:
            return Question.CLOSED
        log.warning("The answer of %s does not count", by)
        return Question.MISANSWERED


def _poll_interval(verdict: Verdict) -> float:
    """Return the seconds after which the time limit may have passed, at most an hour."""
    limit = verdict.hold.limit_s if verdict.hold is not None else None
    if limit is None:
        return 3600.0
    return min(limit + 1.0, 3600.0)


# -- what people read ----------------------------------------------------------------------------------


def _log_verdict(gate: str, id: int, verdict: Verdict) -> None:
    """Write the verdict to the task's log."""
    if verdict.outcome != "abort":
        quarantined = f"{verdict.quarantined:,} quarantined"
    else:
        quarantined = "none quarantined"
    counts = f"{verdict.rows:,} rows judged, {quarantined}, {verdict.released:,} released from quarantine"
    log.info("Checkpoint %s, gate %s: %s. %s", id, gate, verdict.outcome.upper(), counts)
    for rule in verdict.broken:
        log.warning("  %s", _rule_text(rule))
    if not verdict.broken:
        log.info("  no rule is broken")


def _rule_text(rule: RecordedRule) -> str:
    return f"{rule.rule} ({rule.severity}): {rule.why} -> {rule.policy}"


def _failure_text(gate: str, id: int, verdict: Verdict) -> str:
    """Return the error message of a task whose gate failed the checkpoint."""
    reasons = [verdict.why] if verdict.why else []
    for rule in verdict.broken:
        if rule.policy == "abort":
            reasons.append(_rule_text(rule))
    details = "".join(f"\n    {reason}" for reason in reasons)
    return (
        f"GATE_FAILED: gate {gate!r} stops checkpoint {id}, after judging {verdict.rows:,} rows{details}\n  Nothing of "
        "it is published, and its input is in the next checkpoint.\n  Help: correct the input, the upstream stage or "
        "the rules; the next run, or clearing this one, reads the input again"
    )


def question(gate: str, id: int, verdict: Verdict, pipeline: str, *, page: str, quarantine: bool) -> str:
    """Return the text of the question: counts, rules and consequences, as Markdown.

    It quotes no values, because not everyone who may answer may read rows. Those are on the checkpoint's page.
    """
    lines = ["| rule | severity | rows | finding | policy |", "| --- | --- | --- | --- | --- |"]
    for rule in verdict.broken:
        count = "" if rule.rows is None else f"{rule.rows:,}"
        lines.append(f"| {_cell(rule.rule)} | {rule.severity} | {count} | {_cell(rule.why)} | {rule.policy} |")
    limit = verdict.hold.limit_s if verdict.hold is not None else None
    default = verdict.hold.default if verdict.hold is not None else "reject"
    if limit is None:
        time_limit = "The checkpoint waits until it is answered."
    else:
        time_limit = f"After {limit:g} s without an answer: {default}."
    parts = [
        f"**{verdict.rows:,}** rows judged, **{verdict.quarantined:,}** to be quarantined.",
        "\n".join(lines),
        f"Some of the values that broke the rules are on [the page of checkpoint {id}]({page}).",
        "**Approve**: exactly the judged rows are published.",
    ]
    if quarantine:
        parts.append(
            f"**Quarantine**: checkpoint {id} is aborted, and its input is read again at once. The rows that broke "
            "these rules go to quarantine, and the others are published. If a rule is not about single rows, all rows "
            "of this gate go to quarantine."
        )
    resume = f"`tidegate resume {pipeline}`"
    parts.append(f"**Reject**: checkpoint {id} is aborted, and pipeline {pipeline} is suspended until {resume}.")
    parts.append(f"{time_limit} The first answer counts, here, on that page or by command.")
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    """Return the text for a cell of a Markdown table, escaped and cut."""
    escaped = re.sub(r"[\\`*_{}\[\]<>()#+!|~]", r"\\\g<0>", text)
    return escaped.replace("\r", " ").replace("\n", " ")[:300]
