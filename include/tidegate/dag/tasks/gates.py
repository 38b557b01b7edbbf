"""The task of a gate: shows its verdict, and lets a person answer when the gate holds the checkpoint.

If a verdict is `hold`, Airflow asks people for an answer (Required Actions), and the task is deferred. It resumes after
an answer in Airflow, an answer by command, which the triggerer finds in the ledger, or the time limit. An answer in
Airflow is first written to the ledger, and only the ledger counts.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Param

from tidegate.dag.links import LINKS
from tidegate.dag.tasks.notices import Notice
from tidegate.dag.tasks.operators import PipelineTask
from tidegate.errors import Fenced, Rejected
from tidegate.records.records import RecordedRule, Verdict
from tidegate.versions.airflow import HAS_QUESTIONS, AirflowFailException

if TYPE_CHECKING:
    from tidegate.dag.tasks.task import Task
    from tidegate.protocol.view import Acked, Entry

__all__ = ["GateOperator", "gate_task"]

log = logging.getLogger(__name__)

APPROVE, REJECT = "Approve", "Reject"


def gate_task(gate: str) -> str:
    """Return the task id of a gate."""
    return f"gate_{gate}"


class GateOperator(PipelineTask):
    """Shows what one gate found, and waits for a person if its verdict is `hold`."""

    ui_color = "#f9e79f"
    operator_extra_links = LINKS

    def __init__(self, *, gate: str, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate = gate
        self.job = job
        self._question_posted: bool | None = None
        """Whether Airflow has the question, or None if this try has just begun."""

    def execute(self, context: Any) -> dict[str, Any]:
        """Show the verdict: succeed if the checkpoint may continue, otherwise fail."""
        with self.opened_task(context) as task:
            entry, acked = self._judged(task)
            verdict = acked.ack.gates[self.gate]
            _log_verdict(self.gate, entry.id, verdict)
            if verdict.quarantined and verdict.outcome != "abort":
                where = f"{self.pipeline.name} {self.gate} --checkpoint {entry.id}"
                log.info("The quarantined rows:  tidegate quarantine show %s", where)
            if verdict.outcome == "abort":
                raise AirflowFailException(_failure_text(self.gate, entry.id, verdict))
            if verdict.outcome == "hold":
                self._hold(task, entry, verdict)
            return {"checkpoint": entry.id, "verdict": verdict.outcome}

    def answered(self, context: Any, event: Any = None) -> dict[str, Any]:
        """Resume after an answer in Airflow, or when the ledger should be read again."""
        answer = event if isinstance(event, dict) else {}
        if answer.get("chosen_options"):
            with self.opened_task(context) as task:
                self._record_answer(task, approve=answer["chosen_options"] == [APPROVE], event=answer)
        self._question_posted = not answer.get("not_asked")
        return self.execute(context)

    def _judged(self, task: Task) -> tuple[Entry, Acked]:
        last = task.last()
        entry = task.coordinator.ledger.entry(last) if last is not None else None
        if entry is None:
            raise Fenced("no verdict: this run has no checkpoint, or its records are retired")
        acked = entry.acks.get(self.job)
        if acked is None or self.gate not in acked.ack.gates:
            why = "its job has not acknowledged it" if acked is None else "a gate before this one has ended it"
            raise Fenced(f"gate {self.gate!r} has no verdict on checkpoint {entry.id}: {why}")
        return entry, acked

    def _hold(self, task: Task, entry: Entry, verdict: Verdict) -> None:
        """Return if the answer is Approve, fail if it is Reject. Without an answer, ask, and defer the task."""
        from tidegate.protocol.verdicts import REJECTED

        outcome = task.coordinator.complete(entry.id) if entry.open else None  # answers it if the time limit has passed
        answer = task.coordinator.ledger.answer(entry.id, self.gate)
        if answer is None and outcome is not None and outcome.state == "open":
            is_new_try = self._question_posted is None
            posted = self._question_posted
            if posted is None:
                # An answer that arrives before the first try has left its worker makes Airflow start another try. The
                # answer exists then, and asking again would delete it. Only the triggerer can check.
                posted = task.context["ti"].try_number > 1
            if not posted:
                self._ask(task, entry, verdict)
                rules = ", ".join(sorted({broken.rule for broken in verdict.broken}))
                held = f"gate {self.gate} holds checkpoint {entry.id} until somebody answers: {rules}"
                self.notify(task, Notice("held", self.pipeline.name, entry.id, held))
            self._wait_for_answer(task, entry, verdict, check_question=is_new_try and posted)
        if answer is None:
            return
        decision = "approved" if answer.approve else "rejected"
        log.info("Gate %s: %s by %s. %s", self.gate, decision, answer.by, answer.note)
        if not answer.approve:
            note = f": {answer.note}" if answer.note else ""
            raise AirflowFailException(
                f"{REJECTED}: gate {self.gate!r}: checkpoint {entry.id} was rejected by {answer.by}{note}\n  Nothing "
                f"of it is published.\n  Help: correct the input or the rules, then: tidegate resume "
                f"{self.pipeline.name}; add --quarantine-all to quarantine the held rows"
            )

    def _ask(self, task: Task, entry: Entry, verdict: Verdict) -> None:
        if not HAS_QUESTIONS:
            return
        from airflow.sdk.execution_time.hitl import upsert_hitl_detail

        note = Param("", type=["null", "string"], maxLength=1000, title="Note", description="Why. Kept in the ledger.")
        upsert_hitl_detail(
            ti_id=task.context["ti"].id,
            options=[APPROVE, REJECT],
            subject=f"Gate {self.gate} holds checkpoint {entry.id} of {self.pipeline.name}",
            body=question(self.gate, entry.id, verdict, self.pipeline.name),
            params={"note": note.serialize()},
        )

    def _wait_for_answer(self, task: Task, entry: Entry, verdict: Verdict, *, check_question: bool) -> NoReturn:
        from tidegate.dag.waiting import LedgerTrigger

        log.info(
            "Waiting for a person: answer under Required Actions, or by `tidegate approve %s %s` or `tidegate reject`",
            self.pipeline.name,
            entry.id,
        )
        self.defer(
            trigger=LedgerTrigger(
                root=task.settings.root,
                project=self.project,
                pipeline=self.pipeline.name,
                ids=[entry.id],
                gate=self.gate,
                look_again=_poll_interval(verdict),
                question=str(task.context["ti"].id) if check_question else "",
            ),
            method_name="answered",
        )

    def _record_answer(self, task: Task, *, approve: bool, event: dict[str, Any]) -> None:
        """Write the answer to the ledger, where the first one counts."""
        from tidegate.checkpoint.approvals import answer

        entry, _ = self._judged(task)
        user = event.get("responded_by_user") or {}
        name = user.get("name") or user.get("id") or "an unknown user"
        note = (event.get("params_input") or {}).get("note")
        try:
            answer(
                task.coordinator.ledger,
                entry.id,
                self.gate,
                approve=approve,
                by=f"{name} in Airflow",
                note=note[:1000] if isinstance(note, str) else "",
            )
        except Rejected as late:
            log.warning("This answer is too late: %s", late.what)


def _poll_interval(verdict: Verdict) -> float:
    """Return the seconds after which the time limit may have passed, at most an hour."""
    limit = verdict.hold.limit_s if verdict.hold is not None else None
    return 3600.0 if limit is None else min(limit + 1.0, 3600.0)


# -- what people read ----------------------------------------------------------------------------------


def _log_verdict(gate: str, id: int, verdict: Verdict) -> None:
    """Write the verdict to the task's log."""
    quarantined = f"{verdict.quarantined:,} quarantined" if verdict.outcome != "abort" else "none quarantined"
    counts = f"{verdict.rows:,} rows judged, {quarantined}, {verdict.released:,} released from quarantine"
    log.info("Gate %s of checkpoint %s: %s. %s", gate, id, verdict.outcome.upper(), counts)
    for rule in verdict.broken:
        log.warning("  %s", _rule_text(rule))
    if not verdict.broken:
        log.info("  no rule is broken")


def _rule_text(rule: RecordedRule) -> str:
    return f"{rule.rule} ({rule.severity}): {rule.why} -> {rule.policy}"


def _failure_text(gate: str, id: int, verdict: Verdict) -> str:
    """Return the error message of a task whose gate failed the checkpoint."""
    reasons = [verdict.why] if verdict.why else []
    reasons += [_rule_text(rule) for rule in verdict.broken if rule.policy == "abort"]
    details = "".join(f"\n    {reason}" for reason in reasons)
    return (
        f"GATE_FAILED: gate {gate!r} stops checkpoint {id}, after judging {verdict.rows:,} rows{details}\n  Nothing of "
        "it is published, and its input is in the next checkpoint.\n  Help: correct the input, the upstream stage or "
        "the rules; the next run, or clearing this one, reads the input again"
    )


def question(gate: str, id: int, verdict: Verdict, pipeline: str) -> str:
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
        f"Some of the values that broke the rules are on the page of checkpoint {id}.",
        f"**Approve**: exactly the judged rows are published. **Reject**: checkpoint {id} is aborted, and pipeline "
        f"{pipeline} is suspended until `tidegate resume {pipeline}`, or `tidegate resume {pipeline} "
        f"--quarantine-all`, which quarantines all of these rows. {time_limit}",
    ]
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    """Return the text for a cell of a Markdown table, escaped and cut."""
    escaped = re.sub(r"[\\`*_{}\[\]<>()#+!|~]", r"\\\g<0>", text)
    return escaped.replace("\r", " ").replace("\n", " ")[:300]
