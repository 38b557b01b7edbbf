"""Lets tasks wait without a worker: Airflow's triggerer watches the ledger until it is worth trying again.

A waiting task is deferred. Its trigger decides nothing: when it fires, the task calls the coordinator again, and may
have to wait again. More urgent runs go first (protocol/turns.py). Among equals, the first to ask wins, because the task
that has waited longest may not be running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidegate import seams
from tidegate.config import load_settings
from tidegate.dag.runs import ended_run_reason
from tidegate.dag.tasks.questions import closing
from tidegate.errors import TidegateError, name_of
from tidegate.ledger.ledger import open_ledger
from tidegate.protocol.view import Entry
from tidegate.records.airflow_login import AirflowConnection, StorageLogin, connection_id, no_connection
from tidegate.records.place import is_url
from tidegate.records.records import Plan
from tidegate.stores import polling_pause
from tidegate.versions.airflow import HAS_QUESTIONS, RESUMES_ANSWERED, find_connection_from_trigger
from tidegate.versions.python import parse_time

__all__ = ["LedgerTrigger"]

POLL_S = 0.5
ASK_AIRFLOW_S = 10.0
LOOK_FOR_ANSWER_S = 2.0


class LedgerTrigger(BaseTrigger):
    """Fires when one of the checkpoints `ids` is decided, has the ack of `job` or the answer to `gate`, or can no
    longer get any of these.

    question: the task instance whose question in Airflow may be answered there.
    since: if set, that question may be about an earlier checkpoint. Answers before this moment are ignored, and without
    a later one it fires at once.
    closing: the answer that counts, and who gave it. It answers the question with this, and fires.
    look_again: seconds after which it fires in any case, for changes that the ledger does not show.
    """

    def __init__(
        self,
        root: str,
        project: str,
        pipeline: str,
        ids: list[int],
        job: str = "",
        look_again: float = 60.0,
        gate: str = "",
        question: str = "",
        since: str = "",
        closing: list[str] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.root = root
        self.project = project
        self.pipeline = pipeline
        self.ids = ids
        self.job = job
        self.look_again = look_again
        self.gate = gate
        self.question = question
        self.since = since
        self.closing = closing

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the arguments, without storage options: Airflow would store them in its database."""
        names = ("root", "project", "pipeline", "ids", "job", "look_again", "gate", "question", "since", "closing")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        if self.closing is not None:
            yield TriggerEvent(await self._close_question(*self.closing))  # type: ignore[no-untyped-call]
            return
        # Somebody may have answered before the task was deferred.
        event = await self._airflow_answer() if self.question else None
        if event is None and self.since:
            event = {"not_asked": True}
        if event is not None:
            yield TriggerEvent(event)  # type: ignore[no-untyped-call]
            return
        options = await self._storage_options()
        began = seams.monotonic()
        until = began + self.look_again
        ask_airflow = began + ASK_AIRFLOW_S
        look_for_answer = began + LOOK_FOR_ANSWER_S
        while (remaining_s := until - seams.monotonic()) > 0:
            # Reading blocks, and neither delta-rs nor obstore may run in the event loop's thread.
            entries = await asyncio.to_thread(self._entries, options)
            answer = self._counting_answer(entries)
            if answer is not None:
                if self.question:
                    event = await self._close_question(*answer)
                else:
                    event = {"closed": True}
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                return
            why = self._why_any(entries)
            if why is None and not self.gate and seams.monotonic() >= ask_airflow:
                why = await self._abandon_reason(entries)
                ask_airflow = seams.monotonic() + ASK_AIRFLOW_S
            if why is not None:
                yield TriggerEvent(why)  # type: ignore[no-untyped-call]
                return
            if self.question and not RESUMES_ANSWERED and seams.monotonic() >= look_for_answer:
                event = await self._airflow_answer()
                if event is not None:
                    yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                    return
                look_for_answer = seams.monotonic() + LOOK_FOR_ANSWER_S
            pause_s = polling_pause(self.root, seams.monotonic() - began, POLL_S)
            await asyncio.sleep(min(remaining_s, pause_s))
        yield TriggerEvent("the maximum wait is over")  # type: ignore[no-untyped-call]

    async def _airflow_answer(self) -> dict[str, Any] | None:
        """Return the answer in Airflow, as the task would have received it, or None if it has none yet."""
        if not HAS_QUESTIONS:
            return None
        from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail
        from asgiref.sync import sync_to_async

        ask = sync_to_async(get_hitl_detail_content_detail)
        try:
            detail = await ask(ti_id=self.question)  # type: ignore[arg-type]  # converted to a UUID
            if not detail.response_received or self._is_old(detail):
                return None
        except Exception as error:
            self.log.warning("Airflow has no question: %r", error)
            return {"not_asked": True}
        return _as_event(detail)

    def _is_old(self, detail: Any) -> bool:
        return bool(self.since) and detail.responded_at < parse_time(self.since)

    async def _close_question(self, option: str, note: str) -> dict[str, Any]:
        """Answer the question in Airflow, so that nobody else can. Return that it is closed, or the answer of a person
        who was faster."""
        from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail, update_hitl_detail_response
        from asgiref.sync import sync_to_async

        ti_id: Any = self.question  # converted to a UUID
        try:
            detail = await sync_to_async(get_hitl_detail_content_detail)(ti_id=ti_id)
            if not detail.response_received:
                update = sync_to_async(update_hitl_detail_response)
                await update(ti_id=ti_id, chosen_options=[option], params_input={"note": note})
                return {"closed": True}
        except Exception as error:  # there is none, or a person answers it at this moment
            self.log.warning("Could not close the question in Airflow: %r", error)
            return {"closed": True}
        event = _as_event(detail)
        is_by_person = event["responded_by_user"] is not None
        return event if is_by_person else {"closed": True}

    async def _storage_options(self) -> Mapping[str, str] | None:
        """Return the login options of the ledger's store, or None if the triggerer cannot look them up."""
        if not is_url(self.root):
            return {}
        try:
            options = load_settings(start=Path(self.project)).storage_options
            if not isinstance(options, StorageLogin):
                return options
            id = connection_id(options.name)
            connection = await find_connection_from_trigger(id)
            if connection is None:
                raise no_connection(id)
            return options.options_with_login(AirflowConnection.from_airflow(id, connection))
        except TidegateError as error:
            self.log.warning("Cannot read the ledger: %s", error)
        except Exception as error:  # a secrets backend's message may quote the secret, so log only the type
            self.log.warning("Cannot read the ledger: Airflow cannot look up its login: %s", name_of(error))
        return None

    def _entries(self, options: Mapping[str, str] | None) -> list[SeenEntry]:
        """Return the current entries, or none if the triggerer cannot read the ledger: then only time fires it."""
        if options is None:
            return []
        entries: list[SeenEntry] = []
        try:
            ledger = open_ledger(self.root, self.pipeline, options)
            for id in self.ids:
                entry = ledger.entry(id)
                if entry is not None:
                    entries.append(SeenEntry(entry, entry.open and ledger.expired(entry.plan)))
        except TidegateError as error:
            self.log.warning("Cannot read the ledger: %s", error)
            return []
        return entries

    def _counting_answer(self, entries: list[SeenEntry]) -> list[str] | None:
        """Return with what the question is to be closed, if no answer can count any more."""
        for entry in (seen.entry for seen in entries if self.gate):
            answer = entry.answers.get(self.gate)
            if answer is not None or entry.decision is not None:
                return closing(answer, entry.id)
        return None

    def _why_any(self, entries: list[SeenEntry]) -> str | None:
        for seen_entry in entries:
            why = self._why(seen_entry)
            if why is not None:
                return why
        return None

    def _why(self, seen_entry: SeenEntry) -> str | None:
        """Return the reason to fire, if any."""
        entry = seen_entry.entry
        if entry.decision is not None and not (entry.completed and self.job in entry.overtakable):
            return f"checkpoint {entry.id} is {entry.decision.outcome}"
        if self.job and self.job in entry.acks:
            return f"job {self.job} of checkpoint {entry.id} is done"
        if seen_entry.expired and any(job not in entry.acks for job in entry.plan.acks):
            return f"checkpoint {entry.id} has expired"
        return None

    async def _abandon_reason(self, entries: list[SeenEntry]) -> str | None:
        from asgiref.sync import sync_to_async

        for seen_entry in entries:
            if await sync_to_async(_has_run_ended)(seen_entry.entry.plan):
                return f"the run of checkpoint {seen_entry.entry.id} has ended without deciding it"
        return None


def _as_event(detail: Any) -> dict[str, Any]:
    """Return an answer in Airflow, as Airflow itself gives it to a task that it resumes."""
    user = detail.responded_by_user
    return {
        "chosen_options": list(detail.chosen_options or []),
        "params_input": dict(detail.params_input or {}),
        "responded_by_user": {"id": user.id, "name": user.name} if user is not None else None,
    }


@dataclass(frozen=True)
class SeenEntry:
    """An entry as of one moment, and whether it has expired."""

    entry: Entry
    expired: bool


def _has_run_ended(plan: Plan) -> bool:
    """Return whether the run is gone, as far as Airflow knows. False if it does not answer."""
    try:
        return ended_run_reason(plan) is not None
    except Exception:
        return False
