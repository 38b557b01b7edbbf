"""The context of a running pipeline: its graph, ledger and settings, and safe reading of its entries.

Each step of a checkpoint, or of a pipeline's lifecycle, takes one. The coordinator, which combines the steps, is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from tidegate import seams
from tidegate.checkpoint import approvals
from tidegate.checkpoint.manifests import jobs_without_ack
from tidegate.config.settings import RestartSettings
from tidegate.connectors.sink import SinkContext
from tidegate.connectors.source import SourceContext
from tidegate.errors import ENVIRONMENT, Corrupt, Invalid
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.ledger.log import TOO_LATE
from tidegate.ledger.refusals import no_such_checkpoint
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol import rules
from tidegate.protocol.moved_sources import accepted_beginning
from tidegate.protocol.view import Entry, View
from tidegate.records.place import Place
from tidegate.records.records import Beginning, Decision, Json, Plan, SourceSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AbandonCheck", "CheckpointSettings", "PipelineContext", "decision"]


class CheckpointSettings(Protocol):
    """The settings that checkpoints obey; `tidegate.config.Settings` has them."""

    @property
    def timeout(self) -> float: ...
    @property
    def max_concurrent_checkpoints(self) -> int: ...
    @property
    def max_unpublished(self) -> int: ...
    @property
    def num_retained(self) -> int: ...
    @property
    def tolerable_failed_checkpoints(self) -> int: ...
    @property
    def min_pause(self) -> float: ...
    @property
    def restart(self) -> RestartSettings: ...
    def record(self) -> Json: ...


AbandonCheck = Callable[[Plan], str | None]
"""Called with the plan of each open entry of another run. Returns a reason to abort it, or None to leave it alone."""


class PipelineContext:
    """One pipeline, its records and its settings."""

    def __init__(self, graph: Graph, ledger: Ledger, settings: CheckpointSettings, place: Place) -> None:
        self.graph = graph
        self.ledger = ledger
        self.settings = settings
        self.place = place
        self.spark: Callable[[], SparkSession] | None = None
        """Needed for targets to which only delta-spark may publish. Without it they wait for a process with Spark."""
        self.only_looks = False
        """True if nothing may be written, not even pipeline.json."""

    def context(self, sink: str) -> SinkContext:
        """Return the context in which the target of `sink` is called."""
        return self.contexts([sink])[sink]

    def contexts(self, sinks: Iterable[str], uid: str | None = None) -> dict[str, SinkContext]:
        """Return the contexts of several sinks, reading the ledger once. uid: the pipeline's, if the caller has just
        read it."""
        name, uid, home = self.graph.name, uid or self._uid(), self.ledger.home
        options: Any = {"by_interval": self.graph.by_interval, "home": home, "spark": self.spark}
        return {sink: SinkContext(name, uid, sink, self.place, **options) for sink in sinks}

    def _uid(self) -> str:
        if not self.only_looks:
            return self.ledger.start().uid
        identity = self.ledger.identity_or_none()
        return identity.uid if identity is not None else "none"

    @property
    def subject(self) -> str:
        """Its name in messages."""
        return f"pipeline {self.graph.name!r}"

    @property
    def option(self) -> str:
        """The option that commands about its checkpoints need, in addition to the pipeline's name."""
        return ""

    @property
    def resuming(self) -> str:
        """The command that resumes it."""
        return f"tidegate resume {self.graph.name}"

    @property
    def finishes(self) -> bool:
        """True if it ends by itself, once all of its sources have been read to their end."""
        return self.graph.finishes

    @property
    def limits_jobs(self) -> bool:
        """True if its jobs have to finish within the timeout, because later checkpoints wait for them."""
        return True

    @property
    def cuts_freely(self) -> bool:
        """True if it cuts its input differently from the checkpoints that it is compared with: see GateContext."""
        return False

    def source_context(self, name: str) -> SourceContext:
        """Return the context in which a source, or an operator or gate that reads inputs, plans."""
        return SourceContext(self.graph.name, name, self.place, self.ledger)

    def initial_schema(self, source: str) -> SourceSchema | None:
        """Return a schema whose columns are known from the first checkpoint on. None: only what is found counts."""
        return None

    def beginning(self, view: View, base: Entry | None, source: str) -> Json | None:
        """Return where an unread source begins, if that was decided.

        Only decisions after the base count. So a rollback to before the source was added finds the decision made at the
        time, and a source that was removed and put back begins again.
        """
        floor = 0
        if base is not None:
            floor = base.rollback.target if base.rollback is not None else base.id
        decided = self.decided_beginning(source, floor)
        if decided is None:
            return None
        accepted = accepted_beginning(view, decided.id, source)
        return decided.at if accepted is None else accepted

    def decided_beginning(self, source: str, behind: int) -> Beginning | None:
        """Return where a source begins that has not been read since checkpoint `behind`, if it was decided."""
        return self.ledger.beginning(source, behind)

    def all_in_buckets(self, uid: str) -> bool:
        """Return whether every target is a Delta table on an object store."""
        contexts = self.contexts(self.graph.tables, uid)
        tables = [sinking.sink.delta_table(contexts[name]) for name, sinking in self.graph.tables.items()]
        return all(table is not None and not table.is_local for table in tables)

    def entry_and_base(self, id: int) -> tuple[Entry | None, Entry | None]:
        """Return an entry and its base; no entry if it is retired. A lost base is an error, unless the entry no longer
        needs it."""
        entry = self.real_entry(id)
        if entry is None:
            self._refuse_unknown(id)
            return None, None
        if entry.plan.base is None:
            return (None if entry.open and self.retired_before(id) else entry), None
        base = self.ledger.entry(entry.plan.base)
        if base is None and entry.open:
            entry_now = self.ledger.entry(id)
            if entry_now is None or not entry_now.open:  # it was decided in between, and then the base was retired
                return entry_now, None
            if self.retired_before(id):
                return None, None
            raise Corrupt(
                f"checkpoint {entry.plan.base}, the base of the open checkpoint {id}, is missing",
                expected="every base of an open checkpoint to exist",
                help="restore the ledger's folder from a copy; never delete entries by hand",
                reason="LEDGER_DAMAGED",
            )
        return entry, base

    def real_entry(self, id: int) -> Entry | None:
        """Return the entry, or None if it is retired. A paused process may have written records under its id: that is
        not damage."""
        try:
            return self.ledger.entry(id)
        except Corrupt:
            if self.retired_before(id):
                return None
            raise

    def retired_before(self, id: int) -> bool:
        """Return whether the id of an open entry had been retired when a paused process claimed it again.

        If an entry above it is completed, the id was decided before: an old hint that names a pinned entry hides that.
        """
        if self.ledger.ends_with(id):
            return False
        view = self.ledger.view()
        entry_in_view = view.get(id)
        if entry_in_view is not None and entry_in_view.open:
            return any(entry.completed and entry.plan.base is not None for entry in view.entries if entry.id > id)
        return bool(view.entries) and id < view.entries[0].id

    def _refuse_unknown(self, id: int) -> None:
        """Raise Invalid unless the id is below the view: any other missing entry never existed, or is lost."""
        view = self.ledger.view()
        if not view.entries or not 1 <= id < view.entries[0].id:
            raise no_such_checkpoint(
                self.graph.name,
                id,
                expected=f"one up to {view.last_id}" if view.entries else "a pipeline that has made checkpoints",
                help="`tidegate list` shows all; if it existed before, the ledger has been replaced: restore it",
                kind=Invalid,
            )

    def decide(self, decision: Decision) -> Decision:
        """Create the decision. Return the one that holds: this one or another."""
        return self.ledger.create_decision(decision).record

    def overdue(self, entry: Entry) -> bool:
        """Return whether the entry is past its timeout and lacks an ack.

        A checkpoint that a gate holds has the limit of the hold instead. One with all its acks is completed, not given
        up. A rollback has no acks; only its creator decides it before the timeout.
        """
        if approvals.awaits_person(entry):
            return False
        waits = entry.rollback is not None or bool(jobs_without_ack(self.ledger, entry))
        return waits and self.ledger.expired(entry.plan)

    def why_overdue(self, entry: Entry) -> tuple[str, str]:
        """Return the reason and the detail for aborting an entry that is past its timeout.

        If, as far as its jobs have recorded, there was no Spark for any of them, it is not the pipeline's fault.
        """
        limit = f"{entry.plan.timeout_s:g} s"
        trouble = None if entry.acks else self.ledger.trouble()
        if trouble is not None and trouble.entry == entry.id and trouble.reason in ENVIRONMENT:
            return rules.ENVIRONMENT_FAILED, f"no job could begin within {limit}: {trouble.what}"
        return "CHECKPOINT_EXPIRED", f"not all jobs acked within {limit}"

    def abort_if_id_was_used(self, plan: Plan) -> bool:
        """Abort a new entry whose id was free only because its entry is retired. Return whether the entry counts.

        A process that was paused between planning and creating may find the id free again. Then the log begins above
        it.
        """
        if not self.retired_before(plan.id):
            return True
        entry = self.real_entry(plan.id)
        if entry is not None and entry.open:  # every real entry there is decided
            self.decide(decision(plan.id, "aborted", reason=TOO_LATE, detail="its id was used and retired"))
        return entry is not None and entry.completed and entry.acks_agree and not self.ledger.retired(plan.id)


def decision(id: int, outcome: str, **fields: object) -> Decision:
    """Return a decision with the stamp of its writer."""
    return Decision(**stamp(seams.new_id()), id=id, outcome=outcome, **fields)  # type: ignore[arg-type]
