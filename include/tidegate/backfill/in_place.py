"""Rows that are let out of quarantine where they were held back: by a backfill that repeats the pipeline's checkpoints.

A row that came too late for an operator behind its gate is on time there, among the rows that it came with.
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
    """The rows of a request, by whether a backfill can come to where they were held back."""

    rows: int
    """Those that it can let out there."""
    unreachable: int
    """Those that it cannot: their checkpoints, or all before them, are not retained; or a backfill held them back."""
    origin: int
    """The checkpoint after which it has to begin; 0: the beginning."""

    def words(self) -> list[str]:
        """Return the arguments of `tidegate backfill`."""
        return ["--from", str(self.origin or "beginning"), "--cuts", "recorded", "--swap"]

    def document(self) -> Json:
        """For scripts."""
        return {"rows": self.rows, "left": self.unreachable, "from": self.origin or "beginning"}


def in_place(ledger: Ledger, quarantine: QuarantinedRows, request: Request) -> InPlaceRelease:
    """Return where rows that wait could be let out in their place."""
    held = _count_rows_held_by_checkpoint(quarantine, request)
    plans = RecordedPlans(ledger, 0)
    missing, retained = plans.missing(), {plan.id for plan in plans.counting()}
    found: list[int] = []
    origin = 0
    for checkpoint in sorted(retained & held.keys()):
        if not found:
            origin = checkpoint_before(ledger, checkpoint)
            if not (ledger.is_retained(origin) if origin else missing is None):
                continue
        found.append(checkpoint)
    rows = sum(held[checkpoint] for checkpoint in found)
    return InPlaceRelease(rows, held.total() - rows, origin)


def refuse_without_place(quarantine: QuarantinedRows, found: InPlaceRelease) -> None:
    """Raise Rejected if no backfill could let a row out where it was held back."""
    if found.rows:
        return
    raise Rejected(
        f"no backfill comes to where these rows of gate {quarantine.gate!r} were held back: the checkpoints that did "
        "that are not retained, with one before them; or a backfill has held them back itself",
        expected="rows that were held back since a checkpoint that is retained",
        help="correct the input or the suite, and compute again with a backfill; num_retained keeps more checkpoints",
        reason="NOT_RETAINED",
    )


def outlook_in_place(recorded: RecordedPlans, graph: Graph, place: Place) -> Iterator[str]:
    """Yield what a backfill that repeats these checkpoints does with requests to let rows out where they were held
    back."""
    ledger, replayed = recorded.ledger, {plan.id for plan in recorded.counting()}
    for gated in graph.gates:
        requests = requests_in_place(ledger, gated.name) if gated.quarantine else []
        quarantine = open_quarantine(ledger.home, gated.name, place.options) if requests else None
        for request in requests if quarantine is not None else []:
            assert quarantine is not None
            held = _count_rows_held_by_checkpoint(quarantine, request)
            subject = f"request {request.number} of gate {gated.name!r}"
            rows = sum(count for checkpoint, count in held.items() if checkpoint in replayed)
            if rows:
                left = held.total() - rows
                others = f"; {_rows(left)} not, held back at another place" if left else ""
                yield f"{subject}: {_rows(rows)} let out where the gate has held them back{others}"


def _count_rows_held_by_checkpoint(quarantine: QuarantinedRows, request: Request) -> Counter[int]:
    """Return how many rows of a request wait, by the checkpoints that have held them back."""
    held: Counter[int] = Counter()
    for batch in quarantine.chosen(request, [q.CHECKPOINT]):
        held.update(batch.column(0).to_pylist())
    return held


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"
