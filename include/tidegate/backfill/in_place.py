"""Releases in place: a backfill that repeats the pipeline's checkpoints releases rows where they were quarantined.

A row that would be too late for an operator downstream of its gate is on time there, among the rows it arrived with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.backfill.recorded import RecordedPlans
from tidegate.checkpoint.quarantine_requests import checkpoint_before, requests_in_place
from tidegate.errors import Rejected
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.reader import QuarantinedRows, open_quarantine
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline.graph.graph import Graph
from tidegate.records.place import Place
from tidegate.records.records import Json, Request

__all__ = ["InPlaceRelease", "in_place", "outlook_in_place", "refuse_without_place"]


@dataclass(frozen=True)
class InPlaceRelease:
    """How many rows of a request a backfill can release in place."""

    rows: int
    """The rows that it can release in place."""
    unreachable: int
    """The rows that it cannot: their checkpoints, or all before them, are not retained, or a backfill quarantined
    them."""
    origin: int
    """The checkpoint after which it has to begin, or 0 for the beginning."""

    def words(self) -> list[str]:
        """Return the arguments of `tidegate backfill`."""
        return ["--from", str(self.origin or "beginning"), "--cuts", "recorded", "--swap"]

    def document(self) -> Json:
        """Return it as JSON, for scripts."""
        return {"rows": self.rows, "left": self.unreachable, "from": self.origin or "beginning"}


def in_place(ledger: Ledger, quarantine: QuarantinedRows, request: Request) -> InPlaceRelease:
    """Return how many waiting rows of a request a backfill could release in place, and where it has to begin."""
    held = _count_rows_per_checkpoint(quarantine, request)
    plans = RecordedPlans(ledger, 0)
    missing, retained = plans.missing(), {plan.id for plan in plans.counting()}
    reachable: list[int] = []
    origin = 0
    for checkpoint in sorted(retained & held.keys()):
        if not reachable:
            origin = checkpoint_before(ledger, checkpoint)
            can_begin = ledger.is_retained(origin) if origin else missing is None
            if not can_begin:
                continue
        reachable.append(checkpoint)
    rows = sum(held[checkpoint] for checkpoint in reachable)
    return InPlaceRelease(rows, held.total() - rows, origin)


def refuse_without_place(quarantine: QuarantinedRows, release: InPlaceRelease) -> None:
    """Raise Rejected if no backfill could release a row in place."""
    if release.rows:
        return
    raise Rejected(
        f"no backfill can release these rows of gate {quarantine.gate!r} in place: the checkpoints that quarantined "
        "them are not retained, with one before them; or a backfill has quarantined them itself",
        expected="rows that were quarantined since a checkpoint that is retained",
        help="correct the input or the suite, and compute again with a backfill; num_retained retains more checkpoints",
        reason="NOT_RETAINED",
    )


def outlook_in_place(recorded: RecordedPlans, graph: Graph, place: Place) -> Iterator[str]:
    """Yield the effects of a backfill that repeats these checkpoints on requests to release rows in place."""
    ledger, replayed = recorded.ledger, {plan.id for plan in recorded.counting()}
    for gated in graph.gates:
        requests = requests_in_place(ledger, gated.name) if gated.quarantine else []
        quarantine = None
        if requests:
            quarantine = open_quarantine(ledger.home, gated.name, place.options)
        if quarantine is None:
            continue
        for request in requests:
            held = _count_rows_per_checkpoint(quarantine, request)
            rows = sum(count for checkpoint, count in held.items() if checkpoint in replayed)
            if not rows:
                continue
            text = f"request {request.number} of gate {gated.name!r}: {_rows(rows)} released where the gate held them"
            unreleased = held.total() - rows
            if unreleased:
                text += f"; {_rows(unreleased)} not, because they were held elsewhere"
            yield text


def _count_rows_per_checkpoint(quarantine: QuarantinedRows, request: Request) -> Counter[int]:
    """Return how many rows of a request wait, by the checkpoint that quarantined them."""
    held: Counter[int] = Counter()
    for batch in quarantine.chosen(request, [q.CHECKPOINT]):
        held.update(batch.column(0).to_pylist())
    return held


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"
