"""The tasks of a backfill's DAG: check, replay, compare, swap, discard, why. They do the same as `tidegate backfill`
and `tidegate why`.

Each asks the ledger what is left to do, so all of them can be retried, cleared and killed: a backfill is begun once,
continues where it stopped, and is swapped in once (docs/protocol.md, section 14). Its failures do not count as failures
of the pipeline.

Whoever may trigger the DAG may let it compute, which changes nothing. Swapping and discarding need more rights: the
pipeline's page checks them, and records the request for the run (`run_params.requested`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.dag.assets import AssetEvents
from tidegate.dag.links import LINKS
from tidegate.dag.run_params import requested
from tidegate.dag.tasks.asset_events import send_events, unannounced_changes
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
    from tidegate.ledger.ledger import Ledger
    from tidegate.lifecycle.rollback_preview import How
    from tidegate.proposal.policy import Limit
    from tidegate.provenance.explanation import Explanation
    from tidegate.records.records import Act, ComparedTable

__all__ = ["CheckStep", "CompareStep", "DiscardStep", "ReplayStep", "SwapStep", "WhyStep"]

log = logging.getLogger(__name__)

NEED_REQUEST = frozenset({"swap", "discard backfill", "why"})
"""Actions that need a recorded request, because the right to trigger is not enough."""

OVER = frozenset({"LINE_DISCARDED", "LINE_SWAPPED"})
"""Reasons that nothing is left to do. The task is then skipped instead of failed."""

SAMPLE = 20
"""The maximum number of differing rows to show."""

REPLAYS, CANDIDATES = 60, 5_000
"""The bounds of a question of a page."""

LETTERS = 200
"""A text with so many letters may have been cut by the page."""


@dataclass(frozen=True)
class RequestedBackfill:
    """What a run was asked to do, by its form or by a request."""

    name: str
    origin: str
    """Where to begin, as the user wrote it. Empty to continue the existing backfill."""
    act: Act | None
    params: dict[str, Any]

    @property
    def swaps(self) -> bool:
        return self.act is not None and self.act.action == "swap"

    @property
    def discards(self) -> bool:
        return self.act is not None and self.act.action == "discard backfill"

    @property
    def explains(self) -> bool:
        return self.act is not None and self.act.action == "why"

    @property
    def requester(self) -> str:
        return self.act.by if self.act is not None else ""


class BackfillStep(PipelineTask):
    """Base class of these tasks."""

    operator_extra_links = LINKS[2:]

    def execute(self, context: Any) -> Any:
        with self.opened_task(context) as task:
            task.refuse_unknown_conf()
            return self.work(task, self._request(task))

    def work(self, task: Task, request: RequestedBackfill) -> Any:
        raise NotImplementedError

    def note(self, task: Task, error: TidegateError) -> None:
        """Do nothing: a backfill's failure is not the pipeline's, and must not suspend it."""

    def as_airflow(self, error: TidegateError, task: Task | None) -> AirflowException:
        if error.reason in OVER:
            return AirflowSkipException(f"{error.reason}: {error}")
        return super().as_airflow(error, task)

    def line(self, task: Task, request: RequestedBackfill) -> OpenBackfill:
        """Open the backfill. Skip the task if it is over."""
        from tidegate.backfill import open_line
        from tidegate.backfill.choosing import no_backfill

        self.skip_if_over(task, request)
        record = task.coordinator.ledger.line(request.name)
        if record is None:
            raise no_backfill(task.coordinator.ledger, request.name)
        return open_line(task.coordinator, record)

    def skip_if_over(self, task: Task, request: RequestedBackfill) -> None:
        discarded = task.coordinator.ledger.line_discarded(request.name)
        if discarded is not None:
            raise AirflowSkipException(
                f"backfill {request.name} is over: it was swapped in, or discarded, by {discarded.by}. Nothing to do"
            )

    def _request(self, task: Task) -> RequestedBackfill:
        from tidegate.backfill.choosing import existing_line, no_backfill

        act = requested(task, NEED_REQUEST)
        params = dict(task.context["params"])
        if act is not None and act.action == "why":
            return RequestedBackfill("", "", act, params)
        if act is not None:
            name, origin = act.parameters.get("name"), act.parameters.get("begin_after")
        else:
            name, origin = params.get("name"), params.get("from")
        name, origin = str(name or ""), str(origin or "").strip()
        if not name and origin:
            # Every try of the run derives the same name, so a retry continues the backfill that it began.
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
    """Reports what would be read again and what would change, and refuses an impossible backfill. Writes nothing."""

    ui_color = "#d6eaf8"

    def work(self, task: Task, request: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill.choosing import no_backfill, origin_of, outlook
        from tidegate.backfill.open_backfill import cannot_backfill, refuse_kind

        if note := request.params.get("note"):
            log.info("Note: %s", note)
        if request.explains:
            raise AirflowSkipException("this run explains a row, and backfills nothing")
        if request.discards:
            log.info("Backfill %s is to be discarded", request.name)
            return {"backfill": request.name}
        self.skip_if_over(task, request)
        refuse_kind(task.coordinator)
        _refuse_submit(task)
        record = task.coordinator.ledger.line(request.name)
        if record is None and not request.origin:
            raise no_backfill(task.coordinator.ledger, request.name)
        _refuse_swap(task.coordinator.ledger, request)
        if record is not None:
            origin = record.origin
        else:
            origin = origin_of(task.coordinator.ledger, request.origin)
        cuts = record.cuts if record is not None else _cuts(request) or "own"
        preview = outlook(task.coordinator, origin, cuts, drops_by_hand=_drops_manual_edits(request))
        _log_outlook(task, request.name, preview, begun=record is not None)
        if preview["problems"] and record is None:
            raise cannot_backfill(task.pipeline.name, preview["problems"])
        return {"backfill": request.name, **preview}


class ReplayStep(BackfillStep):
    """Reads the same input again, while the pipeline runs, until it has caught up with the pipeline."""

    ui_color = "#fdebd0"

    def work(self, task: Task, request: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill.choosing import no_backfill, origin_of
        from tidegate.backfill.open_backfill import begin
        from tidegate.dag.tasks.replaying import catch_up
        from tidegate.protocol.backfill import Swapped

        if request.discards:
            raise AirflowSkipException("this run only discards the backfill")
        if request.params.get("dry_run"):
            raise AirflowSkipException("this run is a dry run: it reads nothing")
        self.skip_if_over(task, request)
        ledger = task.coordinator.ledger
        record = ledger.line(request.name)
        if record is None and not request.origin:
            raise no_backfill(ledger, request.name)
        if record is not None:
            origin = record.origin
        else:
            origin = origin_of(ledger, request.origin)
        triggered_by = task.context["dag_run"].triggering_user_name or "a run"
        line = begin(
            task.coordinator,
            request.name,
            origin,
            by=request.requester or f"{triggered_by} in Airflow",
            note=str(request.params.get("note") or ""),
            cuts=_cuts(request),
            drops_by_hand=_drops_manual_edits(request),
        )
        if isinstance(line.backfill.next_step(), Swapped):
            log.info("Backfill %s is already swapped in: nothing is left to read", line.name)
            return {"backfill": line.name, "checkpoints": 0}
        _apply_bounds(line, request)
        checkpoints = catch_up(self, task, line, float(request.params.get("pause") or 0))
        log.info("Backfill %s has caught up with the pipeline, in %s checkpoints", line.name, checkpoints)
        return {"backfill": line.name, "checkpoints": checkpoints}


class CompareStep(BackfillStep):
    """Counts the rows that a swap would change, per table. The rows themselves are only in the XCom `rows`."""

    ui_color = "#d5f5e3"

    def work(self, task: Task, request: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill.compare import compare, differing_rows, tables_of
        from tidegate.protocol.backfill import Swapped

        line = self.line(task, request)
        if isinstance(line.backfill.next_step(), Swapped):
            raise AirflowSkipException(f"backfill {line.name} is already swapped in: its rows are in the tables")
        _apply_bounds(line, request)
        differences = compare(line)
        for table, difference in differences.items():
            _log_difference(table, difference)
        for name in line.sinks_without_shadow():
            log.info("%s stays as it is: rows cannot be removed from it", name)
        table = str(request.params.get("diff") or "")
        if table and table not in tables_of(line):
            raise Invalid(
                f"the backfill has no table {table!r}",
                expected=" or ".join(tables_of(line)),
                help="name one of these in the field `diff`; the swap leaves other sinks as they are",
                reason="NO_SUCH_SINK",
            )
        if table:
            rows = differing_rows(line, table, SAMPLE)
            task.context["ti"].xcom_push("rows", [_texts(row) for row in rows])
            log.info("%s differing rows of %s are in this task's XCom `rows`", len(rows), table)
        return {"backfill": line.name, "tables": typed.document_of(differences)}


class SwapStep(BackfillStep):
    """Swaps the backfill in, if that was requested. The pipeline waits while the rest is read."""

    ui_color = "#f9e79f"

    def __init__(self, *, asset_events: AssetEvents = "rows", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asset_events = asset_events

    def work(self, task: Task, request: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill import discard
        from tidegate.dag.lineage.facts import of_checkpoint
        from tidegate.protocol.backfill import Swapped

        if not request.swaps:
            raise AirflowSkipException(
                f"this run swaps nothing in. Look at what a swap would change, then press Swap in on the page "
                f"Checkpoints of DAG {pipeline_dag(task)}, or run: tidegate backfill MODULE:PIPELINE --name "
                f"{request.name} --swap"
            )
        line = self.line(task, request)
        line.backfill.drops_by_hand = _drops_manual_edits(request)
        if line.record.purpose == "proposal" and self._ends_proposal(task, line, request):
            return {"backfill": line.name, "entry": None, "savepoint": None}
        with self.sessions(task):  # for tables that only Spark can publish to
            swapped = self._swapped(task, line, request, done=isinstance(line.backfill.next_step(), Swapped))
        if swapped.error is not None:
            raise swapped.error
        log.info("Backfill %s is swapped in, by entry %s", line.name, swapped.id)
        if swapped.savepoint is not None:
            log.info("To undo it: tidegate rollback MODULE:PIPELINE --to %s", swapped.savepoint)
        stuck = swapped.report.stuck if swapped.report is not None else {}
        for table, error in stuck.items():
            raise Unavailable(
                f"the swap is decided, but sink {table!r} could not be published to: {error.what}",
                help="nothing is lost: this task tries again, and so does each run of the pipeline",
                reason=error.reason,
                quoted=error.quoted,
            ) from error
        send_events(self, task, swapped.id, self.asset_events, by_partition=False)
        changes = partial(unannounced_changes, task, swapped.id)
        self.send_lineage(lambda: of_checkpoint(task.coordinator, swapped.id, changes))
        discard(line, request.requester)  # after the events: a task that is tried again without a line sends none
        return {"backfill": line.name, "entry": swapped.id, "savepoint": swapped.savepoint}

    def _ends_proposal(self, task: Task, line: OpenBackfill, request: RequestedBackfill) -> bool:
        """Compare a proposal again, now that it has caught up. Return whether it has ended, because nothing differs."""
        from tidegate.backfill import discard, pause_pipeline
        from tidegate.dag.tasks.replaying import catch_up
        from tidegate.proposal.acceptance import decide
        from tidegate.protocol.backfill import Swapped

        if isinstance(line.backfill.next_step(), Swapped):
            return False
        _refuse_swap(line.live.ledger, request)

        def read_rest() -> None:
            pause_pipeline(line, _wait, task.run)
            catch_up(self, task, line, 0.0)

        _, ends = decide(line, _limits(request), read_rest)
        if not ends:
            return False
        discard(line, request.requester)
        log.info("Nothing differs: the pipeline continues with this code, and proposal %s is discarded", line.name)
        return True

    def _swapped(self, task: Task, line: OpenBackfill, request: RequestedBackfill, *, done: bool) -> CompletedSwap:
        """Pause the pipeline while the rest is read, then swap."""
        from tidegate.backfill import examine_swap, pause_pipeline, released_on_failure, swap
        from tidegate.dag.tasks.replaying import catch_up
        from tidegate.proposal.acceptance import compare_again, refuse_broken

        choices = _choices(request)

        with released_on_failure(line):
            # If the swap has problems, `swap` below refuses it and lists them: no need to pause the pipeline.
            if not done and not examine_swap(line, choices).problems:
                pause_pipeline(line, _wait, task.run)
                catch_up(self, task, line, 0.0)
                if limits := _limits(request):  # the pipeline may have made a checkpoint since the comparison
                    refuse_broken(line.name, compare_again(line), limits)
            if request.act is not None:
                note = str(request.act.parameters.get("note") or "")
            else:
                note = ""
            return swap(line, by=request.requester, choices=choices, reason=note, wait=_wait, run=task.run)


class DiscardStep(BackfillStep):
    """Ends a backfill and removes its files, if that was requested."""

    ui_color = "#f5b7b1"

    def work(self, task: Task, request: RequestedBackfill) -> dict[str, Any]:
        from tidegate.backfill.discard import discard_named

        if not request.discards:
            raise AirflowSkipException("this run discards nothing")
        swapped = discard_named(task.coordinator, request.name, request.requester)
        if swapped:
            log.info("Backfill %s is over; entry %s had already swapped it in", request.name, swapped)
        else:
            log.info("Backfill %s is over", request.name)
        return {"backfill": request.name, "swapped": swapped}


class WhyStep(BackfillStep):
    """Finds out why a table has a row, if that was requested on a page, and writes the answer for that page."""

    ui_color = "#e8daef"

    def execute(self, context: Any) -> Any:
        with self.opened_task(context) as task:
            task.refuse_unknown_conf()
            act = requested(task, NEED_REQUEST)
            if act is None or act.action != "why":
                raise AirflowSkipException("nobody asked this run why a row is there")
            return self._answer(task, act)

    def _answer(self, task: Task, act: Act) -> dict[str, Any]:
        from tidegate.ledger.ledger import stamp
        from tidegate.records.records import RowExplained

        try:
            answer = self._explain(task, act.parameters)
        except TidegateError as error:
            if error.of_environment:  # another try may succeed
                raise
            # What it says may quote the row: the page shows it by right, a log would not.
            log.info("There is no answer (%s): the page says why", error.reason)
            explained = RowExplained(**stamp(seams.new_id()), answer=None, problem=error.what, help=error.help)
        else:
            document = typed.document_of(answer) | {"unproven": answer.unproven}
            explained = RowExplained(**stamp(seams.new_id()), answer=document)
        task.coordinator.ledger.hint_explained(act.key, explained)
        return {"answered": explained.answer is not None}

    def _explain(self, task: Task, asked_row: Mapping[str, Any]) -> Explanation:
        import tempfile
        from pathlib import Path

        from tidegate.pipeline.private import private_columns
        from tidegate.provenance.explanation import explain_row, prepare
        from tidegate.provenance.question import condition_for
        from tidegate.provenance.tables import resolve_checkpoint, table_as_of
        from tidegate.spark.server.priority import lowest_priority
        from tidegate.spark.session import reused_session

        _refuse_submit(task)
        live, sink = task.coordinator, str(asked_row["sink"])
        checkpoint = resolve_checkpoint(live, sink, asked_row.get("checkpoint"), "the checkpoint's page lists them")
        snapshot = table_as_of(live, sink, checkpoint)
        assert snapshot is not None
        keys = list(live.graph.sinks[sink].sink.upserts or ())
        asked = prepare(
            live,
            sink,
            condition_for(snapshot, asked_row["values"], keys, LETTERS),
            checkpoint,
            lambda id: table_as_of(live, sink, id),
            over=None,
            replays=REPLAYS,
            candidates=CANDIDATES,
            hidden=private_columns(live.graph, task.settings.sample_hidden),
        )
        with (
            lowest_priority(),
            tempfile.TemporaryDirectory(prefix="tidegate-why-", ignore_cleanup_errors=True) as folder,
            reused_session(task.settings, aside=True) as sessions,
        ):
            self.set_cancel(sessions.cancel)
            try:
                return explain_row(asked, sessions(), Path(folder))
            finally:
                self.set_cancel(None)


# -- shared by the tasks -------------------------------------------------------------------------------


def pipeline_dag(task: Task) -> str:
    """Return the id of the pipeline's own DAG."""
    return str(task.context["ti"].dag_id).removesuffix(BACKFILL)


def _apply_bounds(line: OpenBackfill, request: RequestedBackfill) -> None:
    """Set how the backfill reads, and where it stops, from the form. A swap reads everything."""
    from tidegate.backfill.choosing import choose_stop

    line.backfill.larger = int(request.params.get("larger") or 1)
    line.backfill.drops_by_hand = _drops_manual_edits(request)
    to = str(request.params.get("to") or "").strip()
    line.backfill.until = None
    if to and not request.swaps:
        line.backfill.until = choose_stop(line, to)


def _cuts(request: RequestedBackfill) -> Cuts | None:
    match request.params.get("cuts"):
        case "recorded":
            return "recorded"
        case "own":
            return "own"
        case _:
            return None


def _drops_manual_edits(request: RequestedBackfill) -> bool:
    """Return whether manual changes may be lost: the form says so, or the request for a swap does."""
    return bool(request.params.get("drop_by_hand") or _act_parameters(request).get("drop_manual_edits"))


def _choices(request: RequestedBackfill) -> dict[str, How]:
    """Return what the request says to do with each sink that has rows from elsewhere."""
    parameters = _act_parameters(request)
    choices: dict[str, How] = {}
    keys: tuple[tuple[How, str], ...] = (
        ("keep", "keep_rows_of"),
        ("retract", "retract"),
        ("discard", "discard_commits"),
    )
    for how, key in keys:
        for sink in parameters.get(key, ()):
            choices[str(sink)] = how
    return choices


def _limits(request: RequestedBackfill) -> list[Limit]:
    """Return how much may differ if the request is to be carried out."""
    from tidegate.proposal.policy import parse_limit

    return [parse_limit(text) for text in _act_parameters(request).get("fail_on", ())]


def _refuse_swap(ledger: Ledger, request: RequestedBackfill) -> None:
    """Raise an error if a swap is requested that can never be carried out: no page may have checked the request."""
    from tidegate.proposal.acceptance import refuse_impossible

    if request.swaps:
        refuse_impossible(ledger, request.name, _limits(request), "MODULE:PIPELINE")


def _wait(why: str) -> None:
    from tidegate.execution.loop import POLL_S

    log.info("%s", why)
    seams.sleep(POLL_S)


def _act_parameters(request: RequestedBackfill) -> Mapping[str, Any]:
    if request.act is not None:
        return request.act.parameters
    return {}


def _texts(row: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the row with its values as text, for an XCom."""
    return {name: None if value is None else str(value) for name, value in row.items()}


def _refuse_submit(task: Task) -> None:
    if task.settings.spark.mode == "submit":
        origin = task.settings.origins["spark.mode"]
        raise Invalid(
            f"a backfill reads in its task's process, but spark.mode = submit ({origin}) hands jobs to spark-submit",
            expected="spark.mode connect or local",
            help="on a machine that sees the same tables, run: tidegate backfill MODULE:PIPELINE --from … -D "
            "spark.mode=connect -D spark.master='local[*]'",
            reason="SPARK_SUBMIT_ONLY",
        )


def _log_outlook(task: Task, name: str, preview: dict[str, Any], *, begun: bool) -> None:
    from tidegate.backfill.choosing import approvals_text

    if preview["from"]:
        since = f"checkpoint {preview['from']}"
    else:
        since = "the beginning"
    log.info("Backfill %s of %s from %s %s", name, preview["pipeline"], since, "continues" if begun else "can begin")
    log.info("  reads again        %s", ", ".join(task.coordinator.graph.sources))
    log.info("  replaces, later    %s, in one commit each", ", ".join(preview["tables"]) or "no table")
    if preview["unchanged_sinks"]:
        log.info("  leaves unchanged   %s", ", ".join(preview["unchanged_sinks"]))
    for text in approvals_text(preview["approvals"]):
        log.info("  approvals          %s", text)
    for text in preview["released_in_place"]:
        log.info("  quarantine         %s", text)
    for text in preview["may_differ"]:
        log.info("  may differ even with the same code: %s", text)
    for text in preview["changed_results"]:
        log.warning("  is computed differently: %s", text)
    for problem in preview["problems"]:
        log.warning("  not possible: %s", problem)


def _log_difference(table: str, difference: ComparedTable) -> None:
    log.info(
        "%s: %s rows now, %s after the swap; %s removed, %s added",
        table,
        f"{difference.rows_now:,}",
        f"{difference.rows_after:,}",
        f"{difference.rows_removed:,}",
        f"{difference.rows_added:,}",
    )
