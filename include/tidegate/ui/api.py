"""The JSON API: GET, versioned, paged. The pages use the same routes; `openapi.json` describes all of them."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute

from tidegate import seams
from tidegate.history.query import MAX_LENGTH, SORTS, HistoryFilter
from tidegate.history.row import MEASURES, PLOTTED
from tidegate.history.schemas.timeline import timelines
from tidegate.history.without_values import manifest_without_rows
from tidegate.records import typed
from tidegate.records.masking import MASK
from tidegate.records.records import Act, Acted, ShownKind, State
from tidegate.ui import proposals as proposed
from tidegate.ui import views
from tidegate.ui.access import LOGGED_IN, READ, VALUES, Readable, find_visible_pipeline, may, may_read_rows
from tidegate.ui.airflow_setup import notices
from tidegate.ui.answers import (
    ActedAnswer,
    Audit,
    Checkpoint,
    CheckpointOfRun,
    Checkpoints,
    Compared,
    Configuration,
    Findings,
    GateTrend,
    GraphAnswer,
    JudgedCheckpoint,
    ManifestAnswer,
    Me,
    MeasuredByGate,
    NoticeAnswer,
    Overview,
    PartSamples,
    PipelinesAnswer,
    Points,
    ProposalReportAnswer,
    Proposals,
    Quarantine,
    QuarantinedRowsAt,
    RollbackPlan,
    RowsAnswer,
    Schemas,
    Summary,
    TableChanges,
    TableRows,
    WhyAnswer,
    described,
)
from tidegate.ui.listing import BUDGET_S, list_pipelines
from tidegate.ui.pipelines import PipelineRef, find_pipelines, run_states
from tidegate.ui.rows import quarantined, row_reasons, stream_samples, table_samples

__all__ = ["answers", "router"]

REVALIDATED = {"Cache-Control": "private, no-cache", "Vary": "Cookie, Authorization"}
"""The headers of answers that a browser may cache, but must revalidate. Answers that quote rows are never cached."""
_MOMENT = re.compile(rb'"now":"[^"]*"')
"""Left out of the tag, because it differs in each answer. A client gets the time from the header Date."""


class AnswerRoute(APIRoute):
    """A route that encodes its answer as JSON in the thread that computed it. FastAPI would do that in the event loop,
    where all of Airflow's requests wait for it, and ten times as slowly."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **words: Any) -> None:
        quotes_rows = any(each in VALUES[-1:] for each in words.get("dependencies") or ())
        self.answer = inspect.signature(endpoint, eval_str=True).return_annotation
        if words["include_in_schema"]:
            responses = words.get("responses") or {}
            words |= {"response_model": None, "responses": {**responses, 200: described(self.answer)}}
        super().__init__(path, _encoding(endpoint, {} if quotes_rows else REVALIDATED), **words)


def _encoding(endpoint: Callable[..., Any], headers: Mapping[str, str]) -> Callable[..., Any]:
    """Return the endpoint with its answer encoded as JSON, and with an ETag if a browser may cache it."""
    if hasattr(endpoint, "__wrapped__"):
        return endpoint  # FastAPI creates the route a second time when its router is included

    @functools.wraps(endpoint)
    def encoded(**words: Any) -> Response:
        body = msgspec.json.encode(endpoint(**words))
        answer_headers = dict(headers)
        if headers:
            answer_headers["ETag"] = f'W/"{hashlib.sha256(_MOMENT.sub(b"", body)).hexdigest()[:32]}"'
        return Response(body, media_type="application/json", headers=answer_headers)

    encoded.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    return encoded


router = APIRouter(route_class=AnswerRoute)

Of = Annotated[PipelineRef, Depends(find_visible_pipeline)]
Id = Annotated[int, Path(ge=1, le=99_999_999, description="A checkpoint's number")]
Numbered = Annotated[int, Query(ge=1, le=99_999_999, description="A checkpoint's number")]


def answers() -> list[Any]:
    """Return the types of all answers."""
    return [route.answer for route in router.routes if isinstance(route, AnswerRoute) and route.include_in_schema]


@router.get("/openapi.json", dependencies=LOGGED_IN, include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """Return this API's description."""
    description: dict[str, Any] = request.app.openapi()
    return description


@router.get("/me", dependencies=LOGGED_IN)
def me(user: GetUserDep) -> Me:
    """Return the user."""
    return Me(name=user.get_name())


@router.get("/pipelines", dependencies=LOGGED_IN)
def pipelines(readable: Readable, user: GetUserDep) -> PipelinesAnswer:
    """Return all pipelines whose runs the user may see: health, last completed checkpoint and its age, failures in a
    row, lag, owner and tags. If the list is very long, the first answers lack some of them."""
    until = seams.monotonic() + BUDGET_S
    visible, has_all = find_pipelines(readable, until)
    rows, is_current = list_pipelines(visible, until, lambda dag_id: may_read_rows(user, dag_id))
    setup = []
    for each in notices():
        setup.append(NoticeAnswer(problem=each.problem, help=each.help, is_blocking=each.is_blocking))
    return PipelinesAnswer(pipelines=rows, total=len(rows), complete=has_all and is_current, notices=setup)


@router.get("/dags/{dag_id}/overview", dependencies=READ)
def overview(pipeline: Of, user: GetUserDep) -> Overview:
    """Return counts, open checkpoints, the latest of each kind, the pipeline's health, and the user's permissions."""
    return views.overview(pipeline, may(user, pipeline.dag_id))


@router.get("/dags/{dag_id}/checkpoints", dependencies=READ)
def checkpoints(
    pipeline: Of,
    limit: Annotated[int, Query(ge=1, le=MAX_LENGTH)] = 20,
    offset: Annotated[int, Query(ge=0)] = 0,
    sort: Annotated[Literal[SORTS], Query()] = "id",  # type: ignore[valid-type]
    order: Literal["asc", "desc"] = "desc",
    state: Annotated[list[State] | None, Query()] = None,
    kind: Annotated[list[ShownKind] | None, Query()] = None,
    text: Annotated[str, Query(max_length=200)] = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> Checkpoints:
    """Return a page of the history, newest first. Sort by any column; filter by state, kind, time and text."""
    history = pipeline.past()
    page = history.page(
        HistoryFilter(
            states=state or (),
            kinds=kind or (),
            text=text,
            since=since,
            until=until,
            sort=sort,
            descending=order == "desc",
            offset=offset,
            limit=limit,
        )
    )
    return Checkpoints(checkpoints=page.rows, total=page.total, limit=limit, offset=offset, problem=history.problem)


@router.get("/dags/{dag_id}/checkpoints/{id}", dependencies=READ)
def checkpoint(pipeline: Of, id: Id) -> Checkpoint:
    """Return one checkpoint of any age: jobs and their acks, operators, gates, sinks, ranges, durations."""
    return views.checkpoint(pipeline, id)


@router.get("/dags/{dag_id}/checkpoints/{id}/manifest", dependencies=READ)
def manifest(pipeline: Of, id: Id) -> ManifestAnswer:
    """Return the manifest as stored; null if there is none (any more). Users who may not read rows get it without
    positions and files, which contain the smallest and largest value of each column."""
    entry = pipeline.ledger().entry(id)
    if entry is None or entry.manifest is None:
        return ManifestAnswer(manifest=None)
    if not pipeline.may_read_rows:
        return ManifestAnswer(manifest=manifest_without_rows(entry.manifest))
    return ManifestAnswer(manifest=msgspec.to_builtins(entry.manifest))


@router.get("/dags/{dag_id}/checkpoints/{id}/gates/{gate}", dependencies=VALUES)
def gate(pipeline: Of, id: Id, gate: str) -> Findings:
    """Return a gate's verdict, rule by rule, with some of the values that broke them."""
    return views.samples(pipeline, id, gate)


@router.get("/dags/{dag_id}/gates/{gate}", dependencies=READ)
def gate_trend(pipeline: Of, gate: str, limit: Annotated[int, Query(ge=1, le=MAX_LENGTH)] = 50) -> GateTrend:
    """Return a gate's last checkpoints, oldest first: rows judged, and rows that broke each rule."""
    verdicts = pipeline.past().rules(gate, limit)
    return GateTrend(gate=gate, checkpoints=[JudgedCheckpoint(**each) for each in verdicts])


@router.get("/dags/{dag_id}/gates/{gate}/measured", dependencies=VALUES)
def measured(pipeline: Of, gate: str, limit: Annotated[int, Query(ge=1, le=MAX_LENGTH)] = 100) -> MeasuredByGate:
    """Return what a gate has measured in the last retained checkpoints, oldest first, and in which bands it was
    expected, as the gate Anomaly does."""
    return views.measured(pipeline, gate, limit)


@router.get("/dags/{dag_id}/checkpoints/{id}/tables/{sink}", dependencies=VALUES)
def table_rows_as_of(
    pipeline: Of, id: Id, sink: str, user: GetUserDep, limit: Annotated[int, Query(ge=1, le=MAX_LENGTH)] = 50
) -> TableRows:
    """Return some rows of a sink's table, exactly as of the checkpoint, in no particular order."""
    rows = table_samples.rows(pipeline, id, sink, limit)
    rows.may_ask_why = may(user, pipeline.dag_id)["backfill"]
    return rows


@router.get("/dags/{dag_id}/checkpoints/{id}/tables/{sink}/changes", dependencies=VALUES)
def table_changes(
    pipeline: Of,
    id: Id,
    sink: str,
    since: Numbered,
    user: GetUserDep,
    limit: Annotated[int, Query(ge=1, le=MAX_LENGTH)] = 50,
) -> TableChanges:
    """Return how the rows of a sink's table differ between checkpoint `since` and this one: how many do, and some of
    them, by key if the sink has one. Refused if the table changed too much."""
    changes = table_samples.changes(pipeline, since, id, sink, limit)
    changes.may_ask_why = may(user, pipeline.dag_id)["backfill"]
    return changes


@router.get("/dags/{dag_id}/checkpoints/{id}/quarantined/{gate}", dependencies=VALUES)
def quarantined_by(
    pipeline: Of, id: Id, gate: str, limit: Annotated[int, Query(ge=1, le=MAX_LENGTH)] = 20
) -> QuarantinedRowsAt:
    """Return some of the rows that a gate quarantined in the checkpoint, and the current status of each."""
    return quarantined.of_checkpoint(pipeline, id, gate, limit)


@router.get("/dags/{dag_id}/checkpoints/{id}/samples/{part}", dependencies=VALUES)
def samples_of_part(pipeline: Of, id: Id, part: str) -> PartSamples:
    """Return some of the rows that a stage, a gate or an operator emitted in the checkpoint, if its pipeline keeps
    samples (setting sample_rows): one sample for each of its streams."""
    return stream_samples.of_part(pipeline, id, part)


@router.get("/dags/{dag_id}/runs/{run_id:path}", dependencies=READ)
def of_run(pipeline: Of, run_id: str) -> CheckpointOfRun:
    """Return the last checkpoint that a run made, or null."""
    return views.row_of_run(pipeline, run_id)


@router.get("/dags/{dag_id}/summary", dependencies=READ)
def summary(pipeline: Of, since: datetime | None = None, until: datetime | None = None) -> Summary:
    """Return min, avg, p50, p90, p95, p99, p99.9 and max of durations, sizes, rows and lag of completed checkpoints."""
    measures = pipeline.past().summary(HistoryFilter(since=since, until=until))
    return typed.convert({"measures": measures}, Summary)


@router.get("/dags/{dag_id}/configuration", dependencies=READ)
def configuration(pipeline: Of) -> Configuration:
    """Return every setting and the origin of its value. Secrets are masked."""
    return views.configuration(pipeline)


@router.get("/dags/{dag_id}/graph", dependencies=READ)
def graph(
    pipeline: Of,
    checkpoint: Annotated[int | None, Query(ge=1, le=99_999_999, description="By default the newest")] = None,
) -> GraphAnswer:
    """Return the pipeline's parts, with the state and the figures of each in a checkpoint."""
    return views.graph(pipeline, checkpoint)


@router.get("/dags/{dag_id}/schemas", dependencies=READ)
def schemas(pipeline: Of) -> Schemas:
    """Return how the schemas of sources that follow their input have changed, oldest first. Users who may not read rows
    do not see names of files."""
    return Schemas(sources=timelines(pipeline.past()))


@router.get("/dags/{dag_id}/plots", dependencies=READ)
def plots(
    pipeline: Of,
    name: Annotated[list[Literal[tuple(MEASURES)]] | None, Query()] = None,  # type: ignore[valid-type]
    limit: Annotated[int, Query(ge=1, le=2000)] = 300,
) -> Points:
    """Return measures of the last checkpoints, oldest first: the named ones, by default those that the page plots."""
    chosen = list(dict.fromkeys(name or PLOTTED))
    return pipeline.past().points(["state", "planned", *chosen], limit)


@router.get("/dags/{dag_id}/compare", dependencies=READ)
def compare(pipeline: Of, before: Numbered, after: Numbered) -> Compared:
    """Compare two checkpoints."""
    return views.compared(pipeline, before, after)


@router.get("/dags/{dag_id}/proposals", dependencies=READ)
def proposals(pipeline: Of) -> Proposals:
    """Return the proposals that were kept, and those that are being made."""
    return proposed.proposals(pipeline.past().ledger)


@router.get("/dags/{dag_id}/proposals/{name}", dependencies=READ)
def proposal_report(pipeline: Of, name: str) -> ProposalReportAnswer:
    """Return the report of a proposal."""
    return proposed.report(pipeline, pipeline.past().ledger, name)


@router.get("/dags/{dag_id}/why/{key}", dependencies=VALUES)
def why(pipeline: Of, key: Annotated[str, Path(pattern=r"^[0-9T-]{1,30}-[0-9a-f]{16}$")]) -> WhyAnswer:
    """Return a question why a table has a row, and its answer, once its run has found it."""
    return row_reasons.answer(pipeline, key)


@router.get("/dags/{dag_id}/quarantine", dependencies=READ)
def quarantine(pipeline: Of) -> Quarantine:
    """Return for each gate the number of rows that wait, and the requests about them for the next checkpoint."""
    return quarantined.waiting(pipeline)


@router.get("/dags/{dag_id}/quarantine/{gate}", dependencies=VALUES)
def quarantine_rows(
    pipeline: Of,
    gate: str,
    rule: Annotated[list[str] | None, Query(max_length=20)] = None,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LENGTH)] = 50,
) -> RowsAnswer:
    """Return a page of the rows that wait at a gate, with the rules that they broke."""
    return quarantined.rows(pipeline, gate, rule or (), offset, limit)


@router.get("/dags/{dag_id}/rollback", dependencies=READ)
def rollback(pipeline: Of, to: Numbered) -> RollbackPlan:
    """Return what a rollback to a checkpoint would do. Nothing is changed."""
    return views.rollback_plan(pipeline, to)


@router.get("/dags/{dag_id}/audit", dependencies=READ)
def audit(pipeline: Of, limit: Annotated[int, Query(ge=1, le=MAX_LENGTH)] = 50) -> Audit:
    """Return the actions that users took on these pages, newest first. If a run performs one, its result is the
    run's."""
    acts = pipeline.ledger().acts(limit)
    states = run_states({act.run for act, acted in acts if act.run and acted is not None and acted.succeeded})
    with_values = pipeline.may_read_rows
    return Audit(actions=[_act(act, acted, states.get(act.run, ""), with_values=with_values) for act, acted in acts])


_AFTER_RUN = {
    "failed": (False, "It has failed, and its log says why: nothing was changed, unless the log says so."),
    "queued": (None, "It has not begun yet."),
    "running": (None, "It is running."),
}
"""The result of an action and a sentence about it, by the state of the run that performs it."""


def _act(act: Act, acted: Acted | None, run_state: str, *, with_values: bool) -> ActedAnswer:
    """Return an action of the audit. with_values: include values of rows: those asked about, and corrected ones."""
    succeeded, message = None, ""
    if acted is not None:
        succeeded, sentence = _AFTER_RUN.get(run_state, (acted.succeeded, ""))
        message = f"{acted.message} {sentence}".strip()
    request = act.parameters
    for name in ("correct", "correct_sql", "values"):
        corrected = request.get(name)
        if isinstance(corrected, Mapping) and not with_values:
            request = request | {name: dict.fromkeys(corrected, MASK)}
            message = "" if acted is None or acted.succeeded else MASK
    return ActedAnswer(
        requested_at=act.created,
        requested_by=act.by,
        action=act.action,
        request=request,
        succeeded=succeeded,
        message=message,
    )
