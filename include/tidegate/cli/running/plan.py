"""`tidegate plan`: how a pipeline is cut into jobs, and the channels between them; and whether Spark can plan it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output, error_document
from tidegate.cli.running.analysis import add_option, analysed
from tidegate.cli.targets import open_target, refuse_unknown_jobs
from tidegate.pipeline.graph.graph import Graph, Job
from tidegate.pipeline.picture import picture
from tidegate.records.records import Json

__all__ = ["add_parser", "run"]


_MEANS = {
    "exactly_once": "rows are staged, and become visible with the decision, each once",
    "at_least_once": "jobs write to their tables directly; after a failure some rows may be duplicated, none is lost",
}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="how a pipeline is cut into jobs, and the channels between them",
        description="Show the pipeline's graph, its jobs in the order in which they run, the inputs, stages, state "
        "and outputs of each, and the streams between jobs, in channels. Spark plans all of it on empty frames, and "
        "its errors are shown (exit code 1). No row is read, and nothing is written.",
        epilog="example:\n  tidegate plan jobs.orders:pipeline",
    )
    parser.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the code")
    add_option(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings, started=False)
    coordinator = coordinator_of(target)
    coordinator.only_looks = True
    graph = coordinator.graph
    refuse_unknown_jobs(graph, target.settings)
    jobs = [_job_document(graph, job, target.settings.job_display_rows(job.name)) for job in graph.jobs]
    mode = target.settings.mode
    base = target.ledger.view().last_completed if target.ledger.identity_or_none() is not None else None
    errors = analysed(args, target, coordinator, base, out)
    reasons = [error_document(error) for error in errors]
    code = graph.code_fingerprint()
    out.document({"pipeline": graph.name, "code": code, "mode": mode, "jobs": jobs, "reasons": reasons})
    out.line(picture(graph))
    out.line()
    out.line(f"mode {mode}: {_MEANS[mode]}")
    if graph.by_interval and graph.operators:
        out.line("by interval: each operator starts without state, and its event time ends with the interval")
    for job in jobs:
        out.line()
        after = f", after {', '.join(job['after'])}" if job["after"] else ""
        out.line(f"job {job['job']}{after}", "bold")
        for key in ("reads", "receives", "parts", "states", "sends", "writes"):
            if job[key]:
                out.line(f"  {key:<10} {', '.join(job[key])}")
        for key, value in job["settings"].items():
            out.line(f"  {'settings' if key == next(iter(job['settings'])) else '':<10} {key} = {value}")
    for error in errors:
        out.error(error)
    return 1 if errors else 0


def _job_document(graph: Graph, job: Job, own: Mapping[str, str]) -> Json:
    return {
        "job": job.name,
        "after": list(job.after),
        "reads": [source.name for source in job.sources],
        "receives": list(job.takes),
        "parts": [stage.name for stage in job.stages],
        "states": [name for stage in job.operators for name in stage.states],
        "sends": list(job.gives),
        "writes": [*(sink.name for sink in job.sinks), *(name for gated in job.gates for name in gated.quarantine)],
        "settings": dict(own),
    }
