"""Wait without a worker: Airflow's triggerer watches the ledger until it is worth asking again.

A waiting task is deferred. Its trigger decides nothing: when it fires, the task asks the coordinator as it did
before, and may be told to wait again. Whoever asks first goes first. Any stricter order could deadlock, because
those that are to go first may not be running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidegate import seams
from tidegate.config import load_settings
from tidegate.dag.runs import gone
from tidegate.errors import TidegateError
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.model.records import Plan
from tidegate.model.view import Entry

__all__ = ["LedgerTrigger"]

POLL_S = 0.5
ASK_AIRFLOW_S = 10.0


class LedgerTrigger(BaseTrigger):
    """Fires when one of the checkpoints `ids` is decided, has the ack of `job`, or has no chance of either.

    look_again: fires after so many seconds in any case, for what no ledger tells.
    """

    def __init__(
        self, root: str, project: str, pipeline: str, ids: list[int], job: str = "", look_again: float = 60.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.root = root
        self.project = project
        self.pipeline = pipeline
        self.ids = ids
        self.job = job
        self.look_again = look_again

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """No storage options in here: Airflow would keep them in its database."""
        kept = ("root", "project", "pipeline", "ids", "job", "look_again")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in kept}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        until = seams.monotonic() + self.look_again
        ask_airflow = seams.monotonic() + ASK_AIRFLOW_S
        while (left := until - seams.monotonic()) > 0:
            # Reading blocks, and neither delta-rs nor obstore may run in the event loop's thread.
            why = await asyncio.to_thread(self._news)
            if why is None and seams.monotonic() >= ask_airflow:
                why = await self._given_up()
                ask_airflow = seams.monotonic() + ASK_AIRFLOW_S
            if why is not None:
                yield TriggerEvent(why)  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(min(left, POLL_S))
        yield TriggerEvent("it is time to look again")  # type: ignore[no-untyped-call]

    def _news(self) -> str | None:
        """Why it is worth asking again. Storage that does not answer is the task's to complain about."""
        try:
            ledger = self._ledger()
            return next((why for id in self.ids if (why := self._why(ledger, id))), None)
        except TidegateError as error:
            return error.what

    def _why(self, ledger: Ledger, id: int) -> str | None:
        entry = ledger.entry(id)
        if entry is None or entry.decision is not None:
            return f"checkpoint {id} is {entry.decision.outcome if entry and entry.decision else 'retired'}"
        if self.job and self.job in entry.acks:
            return f"job {self.job} of checkpoint {id} is done"
        if _lacks_acks(entry) and ledger.expired(entry.plan):
            return f"checkpoint {id} has expired"
        return None

    async def _given_up(self) -> str | None:
        from asgiref.sync import sync_to_async

        for plan in await asyncio.to_thread(self._open_plans):
            if await sync_to_async(gone)(plan):
                return f"the run of checkpoint {plan.id} has ended without it"
        return None

    def _open_plans(self) -> list[Plan]:
        try:
            entries = [self._ledger().entry(id) for id in self.ids]
        except TidegateError:
            return []
        return [entry.plan for entry in entries if entry is not None and entry.open]

    def _ledger(self) -> Ledger:
        options = load_settings(start=Path(self.project)).storage_options
        return open_ledger(self.root, self.pipeline, dict(options))


def _lacks_acks(entry: Entry) -> bool:
    return any(job not in entry.acks for job in entry.plan.acks)
