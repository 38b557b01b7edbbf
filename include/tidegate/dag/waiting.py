"""Wait without a worker: Airflow's triggerer watches the ledger until it is worth asking again.

A waiting task is deferred. Its trigger decides nothing: when it fires, the task calls the coordinator again, and may
have to wait again. More urgent runs come first: protocol/turns.py. Among equals nothing stricter than first come, first
served: the task that is first in line may not be running.
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
from tidegate.dag.runs import run_gone_reason
from tidegate.errors import TidegateError, name_of
from tidegate.ledger.ledger import open_ledger
from tidegate.protocol.view import Entry
from tidegate.records.airflow_login import AirflowConnection, StorageLogin, connection_id, no_connection
from tidegate.records.place import is_url
from tidegate.records.records import Plan
from tidegate.stores import pause_between_looks
from tidegate.versions.airflow import HAS_QUESTIONS, find_connection_from_trigger

__all__ = ["LedgerTrigger"]

POLL_S = 0.5
ASK_AIRFLOW_S = 10.0


class LedgerTrigger(BaseTrigger):
    """Fires when one of the checkpoints `ids` is decided, has the ack of `job` or the answer to `gate`, or has no
    chance of any.

    question: the task instance whose question Airflow may have an answer to, or not even know; checked first.
    look_again: seconds after which it fires in any case, for changes that no ledger shows.
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
        """Return the arguments, without storage options: Airflow would store them in its database."""
        names = ("root", "project", "pipeline", "ids", "job", "look_again", "gate", "question")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        answer = await self._airflow_answer() if self.question else None
        if answer is not None:
            yield TriggerEvent(answer)  # type: ignore[no-untyped-call]
            return
        options = await self._storage_options()
        began = seams.monotonic()
        until = began + self.look_again
        ask_airflow = began + ASK_AIRFLOW_S
        while (remaining_s := until - seams.monotonic()) > 0:
            # Reading blocks, and neither delta-rs nor obstore may run in the event loop's thread.
            entries = await asyncio.to_thread(self._entries, options)
            why = next((why for entry in entries if (why := self._why(entry))), None)
            if why is None and not self.gate and seams.monotonic() >= ask_airflow:
                why = await self._abandon_reason(entries)
                ask_airflow = seams.monotonic() + ASK_AIRFLOW_S
            if why is not None:
                yield TriggerEvent(why)  # type: ignore[no-untyped-call]
                return
            pause_s = pause_between_looks(self.root, seams.monotonic() - began, POLL_S)
            await asyncio.sleep(min(remaining_s, pause_s))
        yield TriggerEvent("it is time to look again")  # type: ignore[no-untyped-call]

    async def _airflow_answer(self) -> dict[str, Any] | None:
        """Return Airflow's answer, as the task would have received it; None if Airflow is waiting for one."""
        if not HAS_QUESTIONS:
            return None
        from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail
        from asgiref.sync import sync_to_async

        ask = sync_to_async(get_hitl_detail_content_detail)
        try:
            detail = await ask(ti_id=self.question)  # type: ignore[arg-type]  # converted to a UUID
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

    async def _storage_options(self) -> Mapping[str, str] | None:
        """Return how to log in to the ledger's store. None: the triggerer cannot tell."""
        if not is_url(self.root):
            return {}
        try:
            options = load_settings(start=Path(self.project)).storage_options
            if not isinstance(options, StorageLogin):
                return options
            id = connection_id(options.name)
            found = await find_connection_from_trigger(id)
            if found is None:
                raise no_connection(id)
            return options.options_by(AirflowConnection.of(id, found))
        except TidegateError as error:
            self.log.warning("Cannot look into the ledger: %s", error)
        except Exception as error:  # of a secrets backend: it may quote what it has found
            self.log.warning("Cannot look into the ledger: Airflow cannot look up its login: %s", name_of(error))
        return None

    def _entries(self, options: Mapping[str, str] | None) -> list[SeenEntry]:
        """Return the entries as of now. If the triggerer cannot read the ledger, only time can fire the trigger."""
        if options is None:
            return []
        try:
            ledger = open_ledger(self.root, self.pipeline, options)
            entries = [entry for id in self.ids if (entry := ledger.entry(id)) is not None]
            return [SeenEntry(entry, entry.open and ledger.expired(entry.plan)) for entry in entries]
        except TidegateError as error:
            self.log.warning("Cannot look into the ledger: %s", error)
            return []

    def _why(self, seen: SeenEntry) -> str | None:
        """Return the reason to fire, if there is one."""
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

    async def _abandon_reason(self, entries: list[SeenEntry]) -> str | None:
        from asgiref.sync import sync_to_async

        for seen in entries:
            if await sync_to_async(_is_run_gone)(seen.entry.plan):
                return f"the run of checkpoint {seen.entry.id} has ended without it"
        return None


@dataclass(frozen=True)
class SeenEntry:
    """An entry at one moment."""

    entry: Entry
    expired: bool


def _is_run_gone(plan: Plan) -> bool:
    """Return whether the run is gone. If Airflow does not answer, it is not taken to be."""
    try:
        return run_gone_reason(plan) is not None
    except Exception:
        return False
