"""`build_dag` turns a pipeline into an Airflow DAG. It runs whenever a DAG file is parsed: it reads no data and starts
nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, get_args

from airflow.sdk import DAG

from tidegate.config import FILE_NAME, Settings, load_settings
from tidegate.config.retries import Retries, retries_of_control, retries_of_jobs
from tidegate.dag import document, run_params
from tidegate.dag.assets import AssetEvents, inlets_of, outlets_of, shared_uri_of
from tidegate.dag.backfill import build_backfill_dag
from tidegate.dag.tasks.deadlines import promise_deadlines
from tidegate.dag.tasks.gates import GateOperator, gate_task
from tidegate.dag.tasks.notices import Event, Notifiers, checked_notifiers
from tidegate.dag.tasks.operators import COMPLETE, TRIGGER, CompleteOperator, JobOperator, TriggerOperator, job_task
from tidegate.dag.timetable import EPOCH_START, Every
from tidegate.dag.watching import input_asset
from tidegate.errors import Invalid
from tidegate.execution.opening import refuse_interval_pipeline
from tidegate.pipeline import Pipeline
from tidegate.pipeline.card import CardEvents, CardSink, card_of
from tidegate.pipeline.graph.graph import Graph
from tidegate.pipeline.promises import refuse_short_promises
from tidegate.versions.airflow import DAG_MODULE_PREFIX, DOUBLING, HAS_PARTITION_KEYS, VERSION

__all__ = ["build_dag", "for_control", "for_jobs"]


def for_jobs(settings: Settings) -> dict[str, Any]:
    """Return the retry arguments of a job's task. All tries share the checkpoint's timeout."""
    return _arguments(retries_of_jobs(settings))


def for_control(settings: Settings) -> dict[str, Any]:
    """Return the retry arguments of `trigger` and `complete`."""
    return _arguments(retries_of_control(settings))


def _arguments(retries: Retries) -> dict[str, Any]:
    """Return the retries as Airflow's arguments. To doubling pauses, Airflow adds jitter of up to the same length."""
    if not retries.times:
        return {"retries": 0}
    arguments = {"retries": retries.times, "retry_delay": timedelta(seconds=retries.delay)}
    if retries.max_delay is None:
        return arguments
    return arguments | {
        "retry_exponential_backoff": DOUBLING,
        "max_retry_delay": timedelta(seconds=retries.max_delay),
    }


def build_dag(
    pipeline: Pipeline,
    *,
    schedule: Any = None,
    project: str | None = None,
    backfill: bool = True,
    asset_events: AssetEvents = "rows",
    asset_partitions: bool = False,
    notify: Mapping[Event, Any] | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Return the DAG of a pipeline: `trigger`, a task for each job and gate, `complete`. Each run is one checkpoint.

    schedule: a cron expression, a timetable or assets, instead of the setting `interval`.
    project: the folder that holds tidegate.toml. By default, the closest folder above the DAG file that has one.
    backfill: also create a DAG `<id>__backfill`, which recomputes the pipeline's results. Interval pipelines do not get
    one, because Airflow's own backfill does that for them. Pipelines that run at least once do not get one either.
    asset_events: when a completed checkpoint emits events for a sink's assets: "rows": only if it wrote rows to the
    sink; "always": in any case. A rollback and a swap emit one for each table that they change.
    asset_partitions: for interval pipelines: each event is about one partition, whose key is the start of the interval,
    such as 2026-01-01T00:00:00 (UTC). Only DAGs that are scheduled on partitions, with a PartitionedAssetTimetable,
    then run on it. Needs Airflow 3.3.
    notify: notifiers of Airflow to call, such as {"held": SmtpNotifier(to="ann@example.com")}, when a gate holds a
    checkpoint ("held"), the pipeline is suspended ("suspended"), rows are quarantined ("quarantined"), a checkpoint
    completes after aborted ones ("recovered"), or a table is older than `pipeline.promise` allows ("stale") or is new
    enough again ("fresh").
    dag_kwargs: any argument of Airflow's DAG. `tags`, `params` and `doc_md` are added to tidegate's own.
    """
    caller = sys._getframe(1)
    file = _dag_file(caller)
    folder = project or _project(Path(file), Path(caller.f_code.co_filename))
    settings = load_settings(code=pipeline.settings, start=Path(folder))
    graph = pipeline.graph(settings.place(), settings.mode)
    _check_asset_arguments(graph, asset_events, asset_partitions)
    notifiers = checked_notifiers(notify)
    if schedule is None:
        own_schedule = _schedule(pipeline, graph, settings, folder, file)
    else:
        own_schedule = schedule
    # Airflow's own interval pipelines have runs of one period; with a schedule of the user's, periods may differ.
    period_s = (settings.interval or 0.0) if graph.by_interval and schedule is None else 0.0
    deadlines = promise_deadlines(graph, notifiers, settings, file, period_s)
    dag_kwargs = {**dag_kwargs, **_with_deadlines(deadlines, dag_kwargs.get("deadline"))}
    dag = DAG(**_dag_arguments(graph, settings, schedule, dag_kwargs), schedule=own_schedule)
    dag.fileloc = file
    outlets = outlets_of(graph.name, graph.sinks, settings.place())
    events = {"asset_events": asset_events, "by_partition": asset_partitions, "outlets": outlets}
    _add_tasks(dag, pipeline, folder, graph, settings, events, notifiers)
    if backfill and not graph.by_interval and not graph.at_least_once:
        build_backfill_dag(
            dag, pipeline, folder, graph, for_control(settings), outlets=outlets, asset_events=asset_events
        ).fileloc = file
    return dag


def _dag_file(caller: FrameType) -> str:
    """Return the DAG file: the one that Airflow is importing, though a module of the user's calls `build_dag` for it.
    Where nobody imports it for Airflow, the caller's."""
    frame: FrameType | None = caller
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(DAG_MODULE_PREFIX):
            return frame.f_code.co_filename
        frame = frame.f_back
    return caller.f_code.co_filename


def _with_deadlines(deadlines: Sequence[Any], own: Any) -> dict[str, Any]:
    """Return the argument `deadline` of the DAG, if its promises add to it."""
    if not deadlines:
        return {}
    users = own if isinstance(own, list) else [own]
    return {"deadline": [*(each for each in users if each is not None), *deadlines]}


def _schedule(pipeline: Pipeline, graph: Graph, settings: Settings, folder: str, file: str) -> Any:
    """Return the schedule that the settings ask for: every interval, by hand, or when input arrives."""
    refuse_short_promises(graph, settings)
    if not settings.by_event:
        return Every(settings.interval or 0.0, settings.initial_delay)
    refuse_interval_pipeline(graph)
    return [input_asset(pipeline, graph, settings, folder, file)]


def _check_asset_arguments(graph: Graph, asset_events: object, asset_partitions: object) -> None:
    if asset_events not in get_args(AssetEvents):
        raise Invalid(
            f"build_dag: asset_events is {asset_events!r}",
            expected=" or ".join(map(repr, get_args(AssetEvents))),
            help="correct it in the DAG file",
            reason="BAD_ARGUMENT",
        )
    if not isinstance(asset_partitions, bool) or (asset_partitions and not (graph.by_interval and HAS_PARTITION_KEYS)):
        if graph.by_interval:
            kind = "an interval pipeline"
        else:
            kind = "a continuous pipeline"
        raise Invalid(
            f"build_dag: asset_partitions is {asset_partitions!r}, for {kind} under Airflow "
            f"{'.'.join(map(str, VERSION))}",
            expected="True for an interval pipeline under Airflow 3.3 or later, otherwise False",
            help="leave asset_partitions out: then DAGs run that are scheduled on the assets themselves",
            reason="BAD_ARGUMENT",
        )


def _project(*files: Path) -> str:
    """Return the folder of the settings: the closest one above the DAG file, or above the file that it links to, or
    above the module that builds the DAG, otherwise the working directory."""
    for file in files:
        for folder in (*file.absolute().parents, *file.resolve().parents):
            if (folder / FILE_NAME).is_file():
                return os.fspath(folder)
    return os.fspath(Path.cwd())


def _dag_arguments(graph: Graph, settings: Settings, schedule: Any, dag_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return tidegate's arguments, overridden by the user's."""
    # One run more than checkpoints may be in progress, to abort dead ones: its trigger waits, aborts a checkpoint whose
    # run hangs, and continues, where Airflow alone would wait for its heartbeat timeout.
    max_active_runs = settings.max_concurrent_checkpoints + 1
    if settings.unaligned:
        # And one for each job that can be overtaken: the run in which it is busy stays open.
        max_active_runs += len(graph.overtakable)
    docs = [document.dag_text(graph, settings)]
    if dag_kwargs.get("doc_md"):
        docs.insert(0, dag_kwargs["doc_md"])
    return {
        "dag_id": graph.name,
        "description": document.description(graph),
        **_catching_up(graph, schedule, dag_kwargs),
        "max_active_runs": max_active_runs,
        **dag_kwargs,
        "doc_md": "\n\n".join(docs),
        "tags": ["tidegate", graph.name, *dag_kwargs.get("tags", ())],
        "params": {**run_params.params(), **dag_kwargs.get("params", {})},
    }


def _catching_up(graph: Graph, schedule: Any, dag_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the catch-up arguments. Only interval pipelines catch up: a continuous pipeline reads missed input in its
    next checkpoint."""
    has_start = "start_date" in dag_kwargs or "start_date" in dag_kwargs.get("default_args", {})
    if not graph.by_interval or (schedule is not None and not has_start):
        return {"catchup": False}
    if has_start or dag_kwargs.get("catchup") is False:
        return {"catchup": True}
    return {"catchup": True, "start_date": EPOCH_START}


def _add_tasks(
    dag: DAG,
    pipeline: Pipeline,
    folder: str,
    graph: Graph,
    settings: Settings,
    events: dict[str, Any],
    notifiers: Notifiers,
) -> None:
    shared: dict[str, Any] = {"dag": dag, "pipeline": pipeline, "project": folder, "notifiers": notifiers}
    control = for_control(settings)
    card = card_of(graph, settings, folder, _card_events(graph, settings, events))
    trigger = TriggerOperator(task_id=TRIGGER, doc_md=document.TRIGGER, doc_json=card, **control, **shared)
    jobs = {}
    for job in graph.jobs:
        jobs[job.name] = JobOperator(
            task_id=job_task(job.name),
            job=job.name,
            inlets=inlets_of(job.sources, settings.place()),
            task_display_name=f"job {job.name}",
            doc_md=document.job_text(job, settings.job_display_rows(job.name), at_least_once=graph.at_least_once),
            **for_jobs(settings),
            **settings.job(job.name).airflow,
            **shared,
        )
    complete = CompleteOperator(
        task_id=COMPLETE,
        trigger_rule="all_done",  # it aborts a failed checkpoint, and fails the run
        doc_md=document.COMPLETE,
        **events,
        **control,
        **shared,
    )
    for job in graph.jobs:
        jobs[job.name].set_upstream([trigger, *(jobs[name] for name in job.after)])
    # `complete` is downstream of all tasks, `trigger` included, because it depends on the states of all of them.
    gates = _gates(graph, jobs, control, shared)
    complete.set_upstream([trigger, *jobs.values(), *gates])


def _card_events(graph: Graph, settings: Settings, events: dict[str, Any]) -> CardEvents:
    """Return what Airflow's web server needs to know to send the events that no task sends."""
    place = settings.place()
    sinks = []
    for name, node in graph.sinks.items():
        gates = sorted(graph.lineage.gates(node.input))
        sinks.append(CardSink(name=name, gates=gates, address=shared_uri_of(node, place) or ""))
    return CardEvents(sinks=sinks, always=events["asset_events"] == "always", by_partition=events["by_partition"])


def _gates(graph: Graph, jobs: dict[str, JobOperator], control: dict[str, Any], shared: dict[str, Any]) -> list[Any]:
    """Return a task for each gate, downstream of its job. It is cheap, because the verdict is in the job's ack."""
    tasks = []
    for job in graph.jobs:
        for gated in job.gates:
            task = GateOperator(
                task_id=gate_task(gated.name),
                gate=gated.name,
                job=job.name,
                task_display_name=f"gate {gated.name}",
                doc_md=document.gate_text(gated),
                **control,
                **shared,
            )
            task.set_upstream(jobs[job.name])
            tasks.append(task)
    return tasks
