"""Wait without a worker: Airflow's triggerer watches the ledger until it is worth asking again.

A waiting task is deferred. Its trigger decides nothing: when it fires, the task asks the coordinator as it did
before, and may be told to wait again. Whoever asks first goes first. Any stricter order could deadlock, because
those that are to go first may not be running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidegate import seams
from tidegate.config import load_settings
from tidegate.dag.runs import gone
from tidegate.errors import TidegateError
from tidegate.ledger.ledger import open_ledger
from tidegate.protocol.view import Entry
from tidegate.records.records import Plan

__all__ = ["LedgerTrigger"]

POLL_S = 0.5
ASK_AIRFLOW_S = 10.0


class LedgerTrigger(BaseTrigger):
    """Fires when one of the checkpoints `ids` is decided, has the ack of `job` or the answer to `gate`, or has no
    chance of any.

    question: first look whether Airflow has an answer to what this task instance has asked, or even no question.
    look_again: fires after so many seconds in any case, for what no ledger tells.
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

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """No storage options in here: Airflow would keep them in its database."""
        kept = ("root", "project", "pipeline", "ids", "job", "look_again", "gate", "question")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in kept}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        if self.question and (found := await self._asked()) is not None:
            yield TriggerEvent(found)  # type: ignore[no-untyped-call]
            return
        until = seams.monotonic() + self.look_again
        ask_airflow = seams.monotonic() + ASK_AIRFLOW_S
        while (left := until - seams.monotonic()) > 0:
            # Reading blocks, and neither delta-rs nor obstore may run in the event loop's thread.
            entries = await asyncio.to_thread(self._entries)
            why = next((why for entry in entries if (why := self._why(entry))), None)
            if why is None and not self.gate and seams.monotonic() >= ask_airflow:
                why = await self._given_up(entries)
                ask_airflow = seams.monotonic() + ASK_AIRFLOW_S
            if why is not None:
                yield TriggerEvent(why)  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(min(left, POLL_S))
        yield TriggerEvent("it is time to look again")  # type: ignore[no-untyped-call]

    async def _asked(self) -> dict[str, Any] | None:
        """The answer that Airflow has, as it would have been given to the task; None: it waits for one."""
        from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail
        from asgiref.sync import sync_to_async

        ask = sync_to_async(get_hitl_detail_content_detail)
        try:
            detail = await ask(ti_id=self.question)  # type: ignore[arg-type]  # a UUID is made of it
            if not detail.response_received:
                return None
        except Exception as error:
            self.log.warning("Airflow has no question: %r", error)
            return {"not_asked": True}
        user = detail.responded_by_user
        return {
            "chosen_options": list(detail.chosen_options or []),
            "params_input": dict(detail.params_input or {}),
            "responded_by_user": {"id": user.id, "name": user.name} if user is not None else None,
        }

    def _entries(self) -> list[SeenEntry]:
        """What the ledger says now. Where the triggerer cannot read it, there is no news but the time."""
        try:
            options = load_settings(start=Path(self.project)).storage_options
            ledger = open_ledger(self.root, self.pipeline, dict(options))
            entries = [entry for id in self.ids if (entry := ledger.entry(id)) is not None]
            return [SeenEntry(entry, entry.open and ledger.expired(entry.plan)) for entry in entries]
        except TidegateError as error:
            self.log.warning("Cannot look into the ledger: %s", error)
            return []

    def _why(self, seen: SeenEntry) -> str | None:
        """Why it is worth asking again."""
        entry = seen.entry
        if entry.decision is not None and not (entry.completed and self.job in entry.overtakable):
            return f"checkpoint {entry.id} is {entry.decision.outcome}"
        if self.job and self.job in entry.acks:
            return f"job {self.job} of checkpoint {entry.id} is done"
        if self.gate and self.gate in entry.answers:
            return f"gate {self.gate} of checkpoint {entry.id} is answered"
        if seen.expired and any(job not in entry.acks for job in entry.plan.acks):
            return f"checkpoint {entry.id} has expired"
        return None

    async def _given_up(self, entries: list[SeenEntry]) -> str | None:
        from asgiref.sync import sync_to_async

        for seen in entries:
            if await sync_to_async(_gone)(seen.entry.plan):
                return f"the run of checkpoint {seen.entry.id} has ended without it"
        return None


@dataclass(frozen=True)
class SeenEntry:
    """An entry at one moment."""

    entry: Entry
    expired: bool


def _gone(plan: Plan) -> bool:
    """Airflow not answering is no news either."""
    try:
        return gone(plan) is not None
    except Exception:
        return False
