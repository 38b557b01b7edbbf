"""The tasks of a backfill's DAG: look, read again, compare, swap in. They do what `tidegate backfill` does.

Each asks the ledger what is left to do, so all can be retried, cleared and killed: a line is begun once, continues
where it stopped, and is swapped in once (docs/protocol.md, section 14). What goes wrong is not the pipeline's trouble.

Anybody who may trigger the DAG lets it compute, which changes nothing. To swap or to discard needs more: the pipeline's
page writes such a request down for a run, once it knows that the user may (`run_params.requested`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.dag.assets import AssetEvents
from tidegate.dag.run_params import requested
from tidegate.dag.tasks.asset_events import send_events
from tidegate.dag.tasks.operators import PipelineTask
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records import typed
from tidegate.records.names import BACKFILL
from tidegate.versions.airflow import AirflowException, AirflowSkipException

if TYPE_CHECKING:
    from tidegate.backfill import OpenBackfill
    from tidegate.backfill.open_backfill import Cuts
    from tidegate.backfill.swap import CompletedSwap
    from tidegate.dag.tasks.task import Task
    from tidegate.lifecycle.rollback_proposal import How
    from tidegate.records.records import Act, ComparedTable

__all__ = ["CheckStep", "CompareStep", "DiscardStep", "ReplayStep", "SwapStep"]

log = logging.getLogger(__name__)

ASKED_FOR = frozenset({"swap", "discard backfill"})
"""Actions that need a request, because the right to trigger is not enough."""

OVER = frozenset({"LINE_DISCARDED", "LINE_SWAPPED"})
"""Why there is nothing left to do, which is no failure."""

SAMPLE = 20
"""How many rows that differ are shown."""


@dataclass(frozen=True)
class RequestedBackfill:
    """What a run is to do, by its form or by a request."""

    name: str
    origin: str
    """Where it is to begin, in the user's words. Empty: the backfill that there is continues."""
    act: Act | None
    params: dict[str, Any]

    @property
    def swaps(self) -> bool:
        return self.act is not None and self.act.action == "swap"

    @property
    def discards(self) -> bool:
        return self.act is not None and self.act.action == "discard backfill"

    @property
    def requester(self) -> str:
        return self.act.by if self.act is not None else ""


class BackfillStep(PipelineTask):
    """Base of these tasks."""

    operator_extra_links = ()

    def execute(self, context: Any) -> Any:
        with self.at_work(context) as task:
            task.refuse_unknown_conf()
            return self.work(task, self._wanted(task))

    def work(self, task: Task, wanted: RequestedBackfill) -> Any:
        raise NotImplementedError

    def note(self, task: Task, error: TidegateError) -> None:
        """Tell nobody: the pipeline itself has no trouble, and nothing of it is suspended."""

    def as_airflow(self, error: TidegateError, task: Task | None) -> AirflowException:
        if error.reason in OVER:
            return AirflowSkipException(f"{error.reason}: {error}")
        return super().as_airflow(error, task)

    def line(self, task: Task, wanted: RequestedBackfill) -> OpenBackfill:
        """Open the line. Skip the task if it is over."""
        from tidegate.backfill import open_line
        from tidegate.backfill.choosing import no_backfill

        self.skip_if_over(task, wanted)
        record = task.coordinator.ledger.line(wanted.name)
        if record is None:
            raise no_backfill(task.coordinator.ledger, wanted.name)
        return open_line(task.coordinator, record)

    def skip_if_over(self, task: Task, wanted: RequestedBackfill) -> None:
        discarded = task.coordinator.ledger.line_discarded(wanted.name)
        if discarded is not None:
            raise AirflowSkipException(
                f"backfill {wanted.name} is over: it was swapped in, or discarded, by {discarded.by}. Nothing to do"
            )

    def _wanted(self, task: Task) -> RequestedBackfill:
        from tidegate.backfill.choosing import existing_line, no_backfill

        act = requested(task, ASKED_FOR)
        params = dict(task.context["params"])
        asked = act.parameters if act is not None else {"name": params.get("name"), "begin_after": params.get("from")}
        name, origin = str(asked.get("name") or ""), str(asked.get("begin_after") or "").strip()
        if not name and origin:
            # The same one whenever the run is tried, so that it continues what it has begun.
            name = f"backfill-{task.context['dag_run'].run_after:%Y%m%d-%H%M%S}"
        if not name:
            name = str((task.pulled("check", "return_value") or {}).get("backfill") or "")
        if not name:
            existing = existing_line(task.coordinator.ledger, None)
            if existing is None:
                raise no_backfill(task.coordinator.ledger, None)
            name = existing.name
        return RequestedBackfill(name, origin, act, params)


class CheckStep(BackfillStep):
    """Tells what would be read again and what would change, and refuses what is impossible. It writes nothing."""

    ui_color = "#d6eaf8"

    def work(self, task: Task, wanted: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill.choosing import no_backfill, origin_of, outlook
        from tidegate.backfill.open_backfill import cannot_backfill, refuse_kind

        if note := wanted.params.get("note"):
            log.info("Note: %s", note)
        if wanted.discards:
            log.info("Backfill %s is to be discarded", wanted.name)
            return {"backfill": wanted.name}
        self.skip_if_over(task, wanted)
        refuse_kind(task.coordinator)
        _refuse_submit(task)
        record = task.coordinator.ledger.line(wanted.name)
        if record is None and not wanted.origin:
            raise no_backfill(task.coordinator.ledger, wanted.name)
        origin = record.origin if record is not None else origin_of(task.coordinator.ledger, wanted.origin)
        cuts = record.cuts if record is not None else _cuts(wanted) or "own"
        found = outlook(task.coordinator, origin, cuts, drops_by_hand=_drops_manual_edits(wanted))
        _log_outlook(task, wanted.name, found, begun=record is not None)
        if found["problems"] and record is None:
            raise cannot_backfill(task.pipeline.name, found["problems"])
        return {"backfill": wanted.name, **found}


class ReplayStep(BackfillStep):
    """Reads the same input again, beside the pipeline, until it has read all that the pipeline has."""

    ui_color = "#fdebd0"

    def work(self, task: Task, wanted: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill.choosing import no_backfill, origin_of
        from tidegate.backfill.open_backfill import begin
        from tidegate.dag.tasks.replaying import read_on
        from tidegate.protocol.backfill import Swapped

        if wanted.discards or wanted.params.get("dry_run"):
            raise AirflowSkipException("this run was not to read anything")
        self.skip_if_over(task, wanted)
        ledger = task.coordinator.ledger
        record = ledger.line(wanted.name)
        if record is None and not wanted.origin:
            raise no_backfill(ledger, wanted.name)
        origin = record.origin if record is not None else origin_of(ledger, wanted.origin)
        by = wanted.requester or f"{task.context['dag_run'].triggering_user_name or 'a run'} in Airflow"
        line = begin(
            task.coordinator,
            wanted.name,
            origin,
            by=by,
            note=str(wanted.params.get("note") or ""),
            cuts=_cuts(wanted),
            drops_by_hand=_drops_manual_edits(wanted),
        )
        if isinstance(line.backfill.next_step(), Swapped):
            log.info("Backfill %s is swapped in already: there is nothing left to read", line.name)
            return {"backfill": line.name, "checkpoints": 0}
        _bound(line, wanted)
        made = read_on(self, task, line, float(wanted.params.get("pause") or 0))
        log.info("Backfill %s has caught up with the pipeline, by %s checkpoints of its own", line.name, made)
        return {"backfill": line.name, "checkpoints": made}


class CompareStep(BackfillStep):
    """Counts the rows that a swap would change, table by table. Rows themselves are in the XCom `rows` only."""

    ui_color = "#d5f5e3"

    def work(self, task: Task, wanted: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill.compare import compare, differing_rows, tables_of
        from tidegate.protocol.backfill import Swapped

        line = self.line(task, wanted)
        if isinstance(line.backfill.next_step(), Swapped):
            raise AirflowSkipException(f"backfill {line.name} is swapped in already: its rows are in the tables")
        _bound(line, wanted)
        differences = compare(line)
        for table, difference in differences.items():
            _log_difference(table, difference)
        for name in line.sinks_without_shadow():
            log.info("%s stays as it is: rows cannot be taken out there again", name)
        table = str(wanted.params.get("diff") or "")
        if table and table not in tables_of(line):
            raise Invalid(
                f"the backfill has no table {table!r}",
                expected=" or ".join(tables_of(line)),
                help="name one of these in the field `diff`; other sinks stay as they are",
                reason="NO_SUCH_SINK",
            )
        if table:
            rows = differing_rows(line, table, SAMPLE)
            shown = [{name: None if value is None else str(value) for name, value in row.items()} for row in rows]
            task.context["ti"].xcom_push("rows", shown)
            log.info("%s rows of %s that differ are in this task's XCom `rows`", len(shown), table)
        return {"backfill": line.name, "tables": typed.document_of(differences)}


class SwapStep(BackfillStep):
    """Swaps the line in, if that was asked for; the pipeline waits while the rest is read."""

    ui_color = "#f9e79f"

    def __init__(self, *, asset_events: AssetEvents = "rows", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asset_events = asset_events

    def work(self, task: Task, wanted: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill import discard
        from tidegate.protocol.backfill import Swapped

        if not wanted.swaps:
            raise AirflowSkipException(
                f"nothing is swapped in by this run. Look at what it would change, then press Swap in on the page "
                f"Checkpoints of DAG {pipeline_dag(task)}, or say: tidegate backfill MODULE:PIPELINE --name "
                f"{wanted.name} --swap"
            )
        line = self.line(task, wanted)
        line.backfill.drops_by_hand = _drops_manual_edits(wanted)
        with self.sessions(task):  # for tables that only Spark publishes to
            swapped = self._swapped(task, line, wanted, done=isinstance(line.backfill.next_step(), Swapped))
        if swapped.error is not None:
            raise swapped.error
        log.info("Backfill %s is swapped in, by entry %s", line.name, swapped.id)
        if swapped.savepoint is not None:
            log.info("To take it back: tidegate rollback MODULE:PIPELINE --to %s", swapped.savepoint)
        stuck = swapped.report.stuck if swapped.report is not None else {}
        for table, error in stuck.items():
            raise Unavailable(
                f"the swap is decided, but sink {table!r} could not be published to: {error.what}",
                help="nothing is lost: it is tried again now, and by each run of the pipeline",
                reason=error.reason,
                quoted=error.quoted,
            ) from error
        discard(line, wanted.requester)
        send_events(self, task, swapped.id, self.asset_events, by_partition=False)
        return {"backfill": line.name, "entry": swapped.id, "savepoint": swapped.savepoint}

    def _swapped(self, task: Task, line: OpenBackfill, wanted: RequestedBackfill, *, done: bool) -> CompletedSwap:
        """Let the pipeline wait while the rest is read, and swap."""
        from tidegate.backfill import examine_swap, pause_pipeline, released_on_failure, swap
        from tidegate.dag.tasks.replaying import read_on
        from tidegate.execution.loop import POLL_S

        choices = _choices(wanted)

        def wait(why: str) -> None:
            log.info("%s", why)
            seams.sleep(POLL_S)

        with released_on_failure(line):
            if not done and not examine_swap(line, choices).problems:  # else `swap` refuses it, with all of them
                pause_pipeline(line, wait, task.run)
                read_on(self, task, line, 0.0)
            note = str(wanted.act.parameters.get("note") or "") if wanted.act is not None else ""
            return swap(line, by=wanted.requester, choices=choices, reason=note, wait=wait, run=task.run)


class DiscardStep(BackfillStep):
    """Ends a line and removes its files, if that was asked for."""

    ui_color = "#f5b7b1"

    def work(self, task: Task, wanted: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill.discard import discard_named

        if not wanted.discards:
            raise AirflowSkipException("nothing is discarded by this run")
        swapped = discard_named(task.coordinator, wanted.name, wanted.requester)
        log.info("Backfill %s is over%s", wanted.name, f"; entry {swapped} had swapped it in before" if swapped else "")
        return {"backfill": wanted.name, "swapped": swapped}


# -- what they have in common --------------------------------------------------------------------------


def pipeline_dag(task: Task) -> str:
    """Return the id of the DAG beside which this one stands."""
    return str(task.context["ti"].dag_id).removesuffix(BACKFILL)


def _bound(line: OpenBackfill, wanted: RequestedBackfill) -> None:
    """Let the line read as the form says; for a swap all that there is."""
    from tidegate.backfill.choosing import choose_stop

    line.backfill.larger = int(wanted.params.get("larger") or 1)
    line.backfill.drops_by_hand = _drops_manual_edits(wanted)
    to = str(wanted.params.get("to") or "").strip()
    line.backfill.until = choose_stop(line, to) if to and not wanted.swaps else None


def _cuts(wanted: RequestedBackfill) -> Cuts | None:
    chosen = str(wanted.params.get("cuts") or "")
    return "recorded" if chosen == "recorded" else "own" if chosen == "own" else None


def _drops_manual_edits(wanted: RequestedBackfill) -> bool:
    """Return whether changes by hand are to be lost: by the form, or by the request for a swap."""
    asked = wanted.act.parameters if wanted.act is not None else {}
    return bool(wanted.params.get("drop_by_hand") or asked.get("drop_manual_edits"))


def _choices(wanted: RequestedBackfill) -> dict[str, How]:
    asked = wanted.act.parameters if wanted.act is not None else {}
    choices: dict[str, How] = {}
    ways: tuple[tuple[How, str], ...] = (
        ("keep", "keep_rows_of"),
        ("retract", "retract"),
        ("discard", "discard_commits"),
    )
    for how, key in ways:
        choices |= dict.fromkeys(map(str, asked.get(key, ())), how)
    return choices


def _refuse_submit(task: Task) -> None:
    if task.settings.spark.mode == "submit":
        origin = task.settings.origins["spark.mode"]
        raise Invalid(
            f"a backfill reads in its task's process, and spark.mode = submit ({origin}) gives them to spark-submit",
            expected="spark.mode connect or local",
            help="on a machine that sees the same tables: tidegate backfill MODULE:PIPELINE --from … -D "
            "spark.mode=connect -D spark.master='local[*]'",
            reason="SPARK_SUBMIT_ONLY",
        )


def _log_outlook(task: Task, name: str, found: dict[str, Any], *, begun: bool) -> None:
    from tidegate.backfill.choosing import approvals_text

    since = f"checkpoint {found['from']}" if found["from"] else "the beginning"
    log.info("Backfill %s of %s from %s %s", name, found["pipeline"], since, "continues" if begun else "can begin")
    log.info("  reads again        %s", ", ".join(task.coordinator.graph.sources))
    log.info("  replaces, later    %s, by one commit each", ", ".join(found["tables"]) or "no table")
    if found["unchanged_sinks"]:
        log.info("  leaves as it is    %s", ", ".join(found["unchanged_sinks"]))
    for text in approvals_text(found["approvals"]):
        log.info("  approvals          %s", text)
    for text in found["released_in_place"]:
        log.info("  quarantine         %s", text)
    for text in found["may_differ"]:
        log.info("  may differ from what it was by the same code: %s", text)
    for text in found["changed_results"]:
        log.warning("  is computed in another way: %s", text)
    for problem in found["problems"]:
        log.warning("  not possible: %s", problem)


def _log_difference(table: str, difference: ComparedTable) -> None:
    log.info(
        "%s: %s rows now, %s after the swap; %s are taken away, %s are brought",
        table,
        f"{difference.rows_now:,}",
        f"{difference.rows_after:,}",
        f"{difference.rows_removed:,}",
        f"{difference.rows_added:,}",
    )
