"""`tidegate trigger`: request a checkpoint now, of a pipeline that Airflow runs."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target, program
from tidegate.cli.up.airflow import Airflow, Dag
from tidegate.cli.up.home import Home
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.lifecycle.savepoint import check_free
from tidegate.protocol.view import Entry
from tidegate.records.names import airflow_run

__all__ = ["TOKEN", "add_parser", "airflow_of", "run"]

TOKEN = "AIRFLOW_CLI_TOKEN"
"""The variable with the token for another Airflow, the same as that of Airflow's own command, airflowctl."""

_POLL_S = 1.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "trigger",
        help="request a checkpoint now, of a pipeline that Airflow runs",
        description="Trigger a run of the pipeline's DAG now, like the button on its Checkpoints page. Without "
        "--airflow, in the Airflow that `tidegate up` runs in this project. The run makes one checkpoint when those in "
        "progress allow it. Exit code 1: it was refused, or, with --wait, the run completed no checkpoint.",
        epilog="examples:\n  tidegate trigger orders\n"
        "  tidegate trigger orders --savepoint before-release --wait\n"
        f"  {TOKEN}=… tidegate trigger orders --airflow https://airflow.example.com",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("--savepoint", metavar="NAME", help="make the checkpoint a savepoint with this name")
    parser.add_argument("--note", default="", metavar="TEXT", help="the reason, for the record")
    parser.add_argument("--airflow", metavar="URL", help=f"another Airflow; {TOKEN} holds a token for its API")
    parser.add_argument("--dag", metavar="DAG", help="the DAG, if several run the pipeline")
    parser.add_argument("--wait", action="store_true", help="wait until the run is over, and print its result")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings, started=False)
    _refuse_suspended(target)
    if args.savepoint is not None:
        check_free(target.ledger, args.savepoint, None)
    airflow = airflow_of(args.airflow, target)
    dag = _dag(airflow, target, args.dag)
    run_id = airflow.checkpoint_now(dag, args.note, args.savepoint)
    document: dict[str, Any] = {"pipeline": target.name, "dag": dag.id, "run": run_id, "paused": dag.paused}
    if not args.wait:
        out.document(document)
        out.line(f"Run {run_id} of DAG {dag.id} makes a checkpoint.")
        if dag.paused:
            out.line("The DAG is paused: the run begins when it is unpaused.", "yellow")
        return 0
    entry, state = _wait(airflow, dag, run_id, target, out)
    outcome = None
    if entry is not None and entry.decision is not None:
        outcome = entry.decision.outcome
    out.document(document | {"checkpoint": entry.id if entry is not None else None, "state": outcome or state})
    if entry is None:
        out.line(f"Run {run_id} of DAG {dag.id} is over ({state}), and made no checkpoint.")
    else:
        out.line(f"Checkpoint {entry.id} is {outcome or 'open'}.")
    out.line(f"To see more:  {target.command('explain', *([entry.id] if entry is not None else []))}", "dim")
    return 0 if outcome == "completed" else 1


def airflow_of(url: str | None, target: Target) -> Airflow:
    """Return the Airflow at this address, or the one that `tidegate up` runs in this project."""
    if url is None:
        home = Home(target.settings.project.absolute())
        port = home.state().get("port")
        if not isinstance(port, int):
            raise _no_airflow(target, f"`{program()} up` has never run here")
        return Airflow(f"http://127.0.0.1:{port}", home.password()[0])
    if not url.startswith(("http://", "https://")):
        raise Invalid(
            f"{url!r} is not an address of an Airflow",
            expected="an address such as https://airflow.example.com",
            help="copy it from the browser, up to the host, or up to Airflow's base path",
            reason="BAD_AIRFLOW",
        )
    token = os.environ.get(TOKEN, "")
    if not token:
        raise Invalid(
            f"there is no token to log in to {url}",
            expected=f"a token for Airflow's API in the variable {TOKEN}",
            help=f"get one with a POST to {url.rstrip('/')}/auth/token, or from `airflowctl auth login`",
            reason="NO_TOKEN",
        )
    return Airflow(url.rstrip("/"), "", token)


def _dag(airflow: Airflow, target: Target, dag_id: str | None) -> Dag:
    """Return the DAG that runs the pipeline. dag_id: the user's choice, if any."""
    try:
        dags = airflow.dags_of(target.name)
    except Unavailable as error:
        if error.reason != "AIRFLOW_SILENT":
            raise
        raise _no_airflow(target, error.what) from error
    matching = [dag for dag in dags if dag_id in (None, dag.id)]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(dag.id for dag in dags)
    raise Invalid(
        f"the Airflow at {airflow.url} has "
        + (f"the DAGs {names} of" if names else "no DAG that runs")
        + f" pipeline {target.name!r}",
        expected="exactly one DAG of build_dag",
        help="choose one of them with --dag"
        if names
        else f"to make a checkpoint here, without Airflow: {_run_command(target)}",
        reason="NO_SUCH_DAG",
    )


def _no_airflow(target: Target, why: str) -> Rejected:
    return Rejected(
        f"no Airflow answers that could make a checkpoint of {target.name!r}: {why}",
        expected=f"`{program()} up` running in {target.settings.project}, or another Airflow, named with --airflow",
        help=f"to make one here, in this process: {_run_command(target)}",
        reason="NO_AIRFLOW",
    )


def _run_command(target: Target) -> str:
    return f"{program()} run {target.text if target.pipeline is not None else 'MODULE:pipeline'} --checkpoints 1"


def _refuse_suspended(target: Target) -> None:
    """Raise Rejected if the pipeline was suspended, stopped or drained by a user: the run would be skipped.

    Only the DAG knows how many failures its code tolerates, so failures are not counted here.
    """
    view = target.ledger.view()
    suspension.refuse_after_final_cancel(target.ledger, view)
    current = suspension.suspended(view, tolerable=sys.maxsize)
    if current is None:
        return
    raise Rejected(
        f"pipeline {target.name!r} is {suspension.STATE_AFTER[current.action]} by {current.cause}"
        + (f": {current.why}" if current.why else ""),
        expected="an active pipeline: a run would be skipped",
        help=target.command("resume") + ("" if current.action != "drain" else " --after-end"),
        reason="FINISHED" if current.action == "drain" else "SUSPENDED",
    )


def _wait(airflow: Airflow, dag: Dag, run_id: str, target: Target, out: Output) -> tuple[Entry | None, str]:
    """Wait until the run is over. Return its last checkpoint, if any, and the run's state in Airflow."""
    out.line(f"Run {run_id} of DAG {dag.id}: waiting for its checkpoint. Ctrl-C ends only the waiting.", "dim")
    while True:
        state = str(airflow.details(dag, run_id)["state"])
        if state not in ("queued", "running"):
            ids = target.ledger.run_ids(airflow_run(dag.id, run_id))
            return (target.ledger.entry(ids[-1]) if ids else None), state
        seams.sleep(_POLL_S)
