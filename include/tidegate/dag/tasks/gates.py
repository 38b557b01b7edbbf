"""The task of a gate: shows its verdict, and is where a person answers when it holds the checkpoint.

A verdict that holds is put to people in Airflow (Required Actions), and the task is deferred: no worker waits. What
resumes it is an answer in Airflow, an answer by command, which the triggerer finds in the ledger, or the time limit.
Airflow's answer goes into the ledger first; what counts is what is there.
"""

from __future__ import annotations

import logging
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
    """The task id of a gate."""
    return f"gate_{gate}"


class GateOperator(PipelineTask):
    """Shows what one gate found, and waits for a person if it says so."""

    ui_color = "#f9e79f"
    operator_extra_links = LINKS

    def __init__(self, *, gate: str, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate = gate
        self.job = job
        self._asked: bool | None = None
        """True once Airflow has the question. None: this try has just begun."""

    def execute(self, context: Any) -> dict[str, Any]:
        """Show the verdict: green if the checkpoint may continue, red if not."""
        with self.at_work(context) as task:
            entry, acked = self._judged(task)
            verdict = acked.ack.gates[self.gate]
            _log_verdict(self.gate, entry.id, verdict)
            if verdict.quarantined and verdict.outcome != "abort":
                where = f"{self.pipeline.name} {self.gate} --checkpoint {entry.id}"
                log.info("The quarantined rows:  tidegate quarantine show %s", where)
            if verdict.outcome == "abort":
                raise AirflowFailException(_failed(self.gate, entry.id, verdict))
            if verdict.outcome == "hold":
                self._hold(task, entry, verdict)
            return {"checkpoint": entry.id, "verdict": verdict.outcome}

    def answered(self, context: Any, event: Any = None) -> dict[str, Any]:
        """Somebody has answered in Airflow; or the ledger is worth another look."""
        told = event if isinstance(event, dict) else {}
        if told.get("chosen_options"):
            with self.at_work(context) as task:
                self._write(task, approve=told["chosen_options"] == [APPROVE], event=told)
        self._asked = not told.get("not_asked")
        return self.execute(context)

    def _judged(self, task: Task) -> tuple[Entry, Acked]:
        last = task.last()
        entry = task.coordinator.ledger.entry(last) if last is not None else None
        if entry is None:
            raise Fenced("there is no verdict: this run has no checkpoint, or its records are retired")
        acked = entry.acks.get(self.job)
        if acked is None or self.gate not in acked.ack.gates:
            why = "its job has not acknowledged it" if acked is None else "a gate before this one has ended it"
            raise Fenced(f"gate {self.gate!r} has no verdict on checkpoint {entry.id}: {why}")
        return entry, acked

    def _hold(self, task: Task, entry: Entry, verdict: Verdict) -> None:
        """Continue if it is answered, else ask, and wait."""
        from tidegate.protocol.verdicts import REJECTED

        outcome = task.coordinator.complete(entry.id) if entry.open else None  # lets the time limit answer
        said = task.coordinator.ledger.answer(entry.id, self.gate)
        if said is None and outcome is not None and outcome.state == "open":
            # Who answers while the first try is still leaving its worker makes Airflow begin another try: then the
            # answer is there, and asking anew would remove it. Only the triggerer can look.
            known = task.context["ti"].try_number > 1 if self._asked is None else self._asked
            if not known:
                self._ask(task, entry, verdict)
                rules = ", ".join(sorted({broken.rule for broken in verdict.broken}))
                held = f"gate {self.gate} holds checkpoint {entry.id} until somebody answers: {rules}"
                self.notify(task, Notice("held", self.pipeline.name, entry.id, held))
            self._wait_for_answer(task, entry, verdict, look=self._asked is None and known)
        if said is not None:
            log.info("Gate %s: %s by %s. %s", self.gate, "approved" if said.approve else "rejected", said.by, said.note)
        if said is not None and not said.approve:
            note = f": {said.note}" if said.note else ""
            raise AirflowFailException(
                f"{REJECTED}: gate {self.gate!r}: checkpoint {entry.id} was rejected by {said.by}{note}\n  Nothing of "
                f"it is published.\n  Help: correct the input or the rules, then: tidegate resume {self.pipeline.name};"
                " with --quarantine-all, what is held is quarantined"
            )

    def _ask(self, task: Task, entry: Entry, verdict: Verdict) -> None:
        if not HAS_QUESTIONS:
            return
        from airflow.sdk.execution_time.hitl import upsert_hitl_detail

        note = Param("", type=["null", "string"], maxLength=1000, title="Note", description="Why, for the records.")
        upsert_hitl_detail(
            ti_id=task.context["ti"].id,
            options=[APPROVE, REJECT],
            subject=f"Gate {self.gate} holds checkpoint {entry.id} of {self.pipeline.name}",
            body=question(self.gate, entry.id, verdict, self.pipeline.name),
            params={"note": note.serialize()},
        )

    def _wait_for_answer(self, task: Task, entry: Entry, verdict: Verdict, *, look: bool) -> NoReturn:
        from tidegate.dag.waiting import LedgerTrigger

        log.info(
            "Waiting for a person: Required Actions, or `tidegate approve %s %s`, or `tidegate reject` likewise",
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
                look_again=_poll_again(verdict),
                question=str(task.context["ti"].id) if look else "",
            ),
            method_name="answered",
        )

    def _write(self, task: Task, *, approve: bool, event: dict[str, Any]) -> None:
        """Into the ledger, where the first answer counts."""
        from tidegate.checkpoint.approvals import answer

        entry, _ = self._judged(task)
        user = event.get("responded_by_user") or {}
        note = (event.get("params_input") or {}).get("note")
        by = f"{user.get('name') or user.get('id') or 'somebody'} in Airflow"
        try:
            answer(
                task.coordinator.ledger,
                entry.id,
                self.gate,
                approve=approve,
                by=by,
                note=note[:1000] if isinstance(note, str) else "",
            )
        except Rejected as late:
            log.warning("This answer came too late: %s", late.what)


def _poll_again(verdict: Verdict) -> float:
    """Until the time limit may have passed."""
    limit = verdict.hold.limit_s if verdict.hold is not None else None
    return 3600.0 if limit is None else min(limit + 1.0, 3600.0)


# -- what people read ----------------------------------------------------------------------------------


def _log_verdict(gate: str, id: int, verdict: Verdict) -> None:
    """The verdict, in the task's log."""
    quarantined = f"{verdict.quarantined:,} quarantined" if verdict.outcome != "abort" else "none quarantined"
    counted = f"{verdict.rows:,} rows judged, {quarantined}, {verdict.released:,} let back in"
    log.info("Gate %s of checkpoint %s: %s. %s", gate, id, verdict.outcome.upper(), counted)
    for each in verdict.broken:
        log.warning("  %s", _rule(each))
    if not verdict.broken:
        log.info("  every rule holds")


def _rule(each: RecordedRule) -> str:
    return f"{each.rule} ({each.severity}): {each.why} -> {each.policy}"


def _failed(gate: str, id: int, verdict: Verdict) -> str:
    """Why the task is red, on a screen."""
    broken = "".join(f"\n    {_rule(each)}" for each in verdict.broken if each.policy == "abort")
    why = f"\n    {verdict.why}" if verdict.why else ""
    return (
        f"GATE_FAILED: gate {gate!r} stops checkpoint {id}: of {verdict.rows:,} rows{why}{broken}\n  Nothing of it is "
        "published, and its input is in the next checkpoint.\n  Help: correct the input, the stage before the gate or "
        "its rules; the next run, or clearing this one, takes it up again"
    )


def question(gate: str, id: int, verdict: Verdict, pipeline: str) -> str:
    """Return the text of the question: counts, rules and consequences, as Markdown. Not everybody who may answer may
    read rows: values are on the checkpoint's page."""
    rows = "\n".join(
        f"| {_cell(e.rule)} | {e.severity} | {'' if e.rows is None else f'{e.rows:,}'} | {_cell(e.why)} | {e.policy} |"
        for e in verdict.broken
    )
    limit = verdict.hold.limit_s if verdict.hold is not None else None
    default = verdict.hold.default if verdict.hold is not None else "reject"
    until = "It waits until somebody answers." if limit is None else f"After {limit:g} s without an answer: {default}."
    parts = [
        f"**{verdict.rows:,}** rows judged, **{verdict.quarantined:,}** to be quarantined.",
        f"| rule | severity | rows | what was found | policy |\n| --- | --- | --- | --- | --- |\n{rows}",
        f"Some of the values that broke them are on the page of checkpoint {id}.",
        f"**Approve**: exactly what was judged is published. **Reject**: checkpoint {id} is aborted and pipeline "
        f"{pipeline} is suspended until `tidegate resume {pipeline}`, or, with all of these rows quarantined, "
        f"`tidegate resume {pipeline} --quarantine-all`. {until}",
    ]
    return "\n\n".join(filter(None, parts))


def _cell(text: str) -> str:
    """As Markdown shows it, and never acts on it."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>()#+!|~" else " " if c in "\r\n" else c for c in text)[:300]
