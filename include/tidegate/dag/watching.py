"""Checkpoints by event: Airflow's triggerer watches a pipeline's sources, and runs its DAG when input has arrived.

The DAG is scheduled on an asset, `<pipeline> input`, of which only this watcher sends events. An event says that a
checkpoint should be made, and a run without anything new makes none. So an event may come twice, or late, without harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from tidegate import seams
from tidegate.config import Settings
from tidegate.errors import TidegateError, name_of
from tidegate.execution.loading import declaring_files
from tidegate.execution.opening import airflow_logins
from tidegate.execution.watch_request import WatchReport, WatchRequest
from tidegate.pipeline import Pipeline
from tidegate.pipeline.graph.graph import Graph
from tidegate.records import typed
from tidegate.records.airflow_login import (
    AirflowConnection,
    connection_id,
    no_connection,
    variables_of,
)
from tidegate.records.codec import fingerprint
from tidegate.versions.airflow import can_import_airflow, find_connection_from_trigger

__all__ = ["SourceWatcher", "input_asset"]

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
"""Before the process that watches is started again after it has failed."""

PATIENCE_S = 300.0
"""How long it may be unable to look before it asks for a run all the same. That run reads what the triggerer cannot
see, or it fails for the same reason, and everybody sees that."""


def input_asset(pipeline: Pipeline, graph: Graph, settings: Settings, project: str, dag_file: str) -> Asset:
    """Return the asset whose events run the pipeline's DAG."""
    sources = [node.source for node in graph.sources.values()]
    watcher = SourceWatcher(
        pipeline=graph.name,
        declared_in=[list(place) for place in declaring_files(pipeline, dag_file)],
        project=project,
        logins=airflow_logins(settings, sources),
        code=fingerprint({"graph": graph.code_fingerprint(), "settings": settings.record()}),
    )
    name = f"{graph.name} input"
    uri = f"tidegate-input://{graph.name}"
    return Asset(name=name, uri=uri, group="tidegate", watchers=[AssetWatcher(name=name, trigger=watcher)])


class SourceWatcher(BaseEventTrigger):
    """Sends an event whenever a checkpoint of the pipeline should be made.

    logins: the names of the connections of Airflow that the pipeline needs, as "airflow:ID".
    code: stands for the pipeline's code and settings, so that the watcher is replaced when they change.
    """

    def __init__(self, pipeline: str, declared_in: list[list[str]], project: str, logins: list[str], code: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.declared_in = declared_in
        self.project = project
        self.logins = logins
        self.code = code
        self._process: Process | None = None
        self._failing_since: float | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the arguments. Airflow keeps them in its database: they hold no login."""
        names = ("pipeline", "declared_in", "project", "logins", "code")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        pause_s = FIRST_PAUSE_S
        while True:
            began = seams.monotonic()
            try:
                async for report in self._reports():
                    event = self._event_of(report)
                    if event is not None:
                        yield event
            except Exception as error:  # of a secrets backend: it may quote what it has found
                problem = str(error) if isinstance(error, TidegateError) else name_of(error)
                event = self._event_of(WatchReport(problem=problem))
                if event is not None:
                    yield event
            finally:
                await self._end()
            if seams.monotonic() - began > MAX_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _event_of(self, report: WatchReport) -> TriggerEvent | None:
        """Return the event that follows from a report, if one does."""
        if report.notice:
            self.log.warning("Pipeline %s: %s", self.pipeline, report.notice)
            return None
        if not report.problem:
            self._failing_since = None
            if report.reason:
                return self._event(report.key, report.reason)
            return None
        self.log.warning("Pipeline %s: cannot look for input: %s", self.pipeline, report.problem)
        now = seams.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since < PATIENCE_S:
            return None
        self._failing_since = now
        return self._event("cannot look", "the triggerer cannot look for input")

    def _event(self, key: str, reason: str) -> TriggerEvent:
        self.log.info("Pipeline %s: a checkpoint is due: %s", self.pipeline, reason)
        return TriggerEvent({"pipeline": self.pipeline, "key": key, "reason": reason})  # type: ignore[no-untyped-call]

    async def cleanup(self) -> None:
        """End the process: the triggerer stops, or the pipeline is no longer made by event."""
        await self._end()

    async def _reports(self) -> AsyncIterator[WatchReport]:
        """Start the process that looks, and return what it says until it ends."""
        own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **await self._logins()}
        environment = can_import_airflow({**os.environ, **own})
        command = [sys.executable, "-m", "tidegate.execution.watching"]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, env=environment, cwd=self.project
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        declared_in = [(module, file) for module, file in self.declared_in]
        request = WatchRequest(pipeline=self.pipeline, declared_in=declared_in, project=self.project)
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        await process.stdin.drain()
        while line := await process.stdout.readline():
            yield typed.decode(line, WatchReport)
        if code := await process.wait():
            yield WatchReport(problem=f"the process that looks has ended with {code}")

    async def _logins(self) -> dict[str, str]:
        """Return the variables by which a process outside of Airflow finds these connections."""
        connections = []
        for id in map(connection_id, self.logins):
            found = await find_connection_from_trigger(id)
            if found is None:
                raise no_connection(id)
            connections.append(AirflowConnection.from_airflow(id, found))
        return variables_of(connections)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
