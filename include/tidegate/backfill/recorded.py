"""The pipeline's recorded plans that a backfill replays: how far each checkpoint had read, and its clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from tidegate.checkpoint.quarantine_requests import LiveQuarantine
from tidegate.checkpoint.references import blobs_within
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.protocol.clock import clock_of_replay
from tidegate.records.records import Blob, Json, Plan, Request

if TYPE_CHECKING:
    from tidegate.checkpoint.planning import CheckpointOptions
    from tidegate.connectors.source import SourceContext
    from tidegate.ledger.ledger import Ledger
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["RecordedPlans", "repeating", "side_files_of"]

Ends = Mapping[str, "Json | None"]
"""By source, how far it was read."""


@dataclass
class RecordedPlans:
    """The plans of the live checkpoints above a backfill's origin."""

    ledger: Ledger
    origin: int
    _chain: list[Plan] = field(default_factory=list, init=False)
    """The plans that counted as of `_last`, ascending."""
    _missing: str | None = field(default=None, init=False)
    """Why the chain does not reach down to the origin, or None if it does."""
    _last: int = field(default=0, init=False)
    """The last live checkpoint when the chain was read."""
    _passed: int = field(default=0, init=False)
    """The live checkpoint that the backfill's last plan had reached: the next plan is not before it."""

    def counting(self) -> list[Plan]:
        """Return the retained plans whose input counts, ascending: the last one, the one that it rests on, and so on.
        Below a plan that is not retained, nothing is known."""
        last = self.ledger.view().last_completed
        if last is not None and last.id != self._last:
            self._collect_live_below(last.plan)
            self._last = last.id
        return self._chain

    def between(self, after: int, until: int) -> list[Plan]:
        """Return the plans of `counting` with ids after `after`, up to `until`."""
        plans = self.counting()
        return plans[bisect_right(plans, after, key=_id) : bisect_right(plans, until, key=_id)]

    def _collect_live_below(self, above: Plan | None) -> None:
        """Find the plans that count as of a checkpoint, down to one that the chain already contains."""
        index_by_id = {plan.id: index for index, plan in enumerate(self._chain)}
        new: list[Plan] = []
        missing = None
        while above is not None and above.id > self.origin and above.id not in index_by_id:
            if above.kind == "fork":
                missing = "the input of the pipeline that it was forked from is not in its log"
                break
            rollback = above.rollback
            if rollback is None:
                new.append(above)
            # For input, a swap undoes nothing: it rests on the checkpoints that it replaces.
            id = rollback.target if rollback is not None and rollback.line is None else above.base
            below = self.ledger.plan(id) if id else None
            if id is not None and id > self.origin and below is None:
                missing = f"checkpoint {id}, on which {above.id} rests, is not retained"
                break
            above = below
        if missing is None and above is not None and above.id in index_by_id:
            # The rest of the chain is unchanged, and so is the reason why it may not reach the origin.
            self._chain = [*self._chain[: index_by_id[above.id] + 1], *reversed(new)]
        else:
            self._chain, self._missing = new[::-1], missing

    def missing(self) -> str | None:
        """Return why the plans do not reach down to the origin, or None if they do."""
        self.counting()
        return self._missing

    def manual_edits(self) -> list[Plan]:
        """Return the plans with which a person changed the state of an operator."""
        return [plan for plan in self.counting() if plan.is_manual_edit]

    def problems(self, sources: Iterable[str]) -> Iterator[str]:
        """Yield why the live checkpoints cannot be replayed one by one, with their recorded ranges."""
        plans = self.counting()
        if self._missing is not None:
            yield f"{self._missing}: its recorded ranges are not known any more"
        read = dict(_ends(self.ledger.plan(self.origin) if self.origin else None))
        for plan in plans:
            for name, part in plan.sources.items():
                if name.startswith(QUARANTINE):
                    continue
                if name not in sources:
                    if not part.empty:
                        yield f"checkpoint {plan.id} has read source {name!r}, which the code does not have"
                elif name in read and part.start != read[name]:
                    yield (
                        f"checkpoint {plan.id} begins source {name!r} elsewhere than where the one before it ended: "
                        "the source was moved between them, or another backfill was swapped in"
                    )
                read[name] = part.end

    def clock(
        self,
        plan: Plan,
        base: Plan | None,
        graph: Graph,
        context_of: Callable[[str], SourceContext],
        until: int | None,
    ) -> str:
        """Return the clock of a backfill's plan: that of the last live checkpoint whose input it reads, by the sources'
        positions. If it reads more than any live checkpoint, its own creation time.

        base: the backfill's plan that it rests on. until: the live checkpoint up to which the backfill reads; None:
        all.
        """
        plans = self.counting()
        if until is not None:
            plans = plans[: bisect_right(plans, until, key=_id)]
        if not plans:
            return clock_of_replay(plan.created, base)
        covers = _Coverage(graph, context_of)
        last, ends = plans[-1], _ends(plan)
        if covers(ends, _ends(last)):
            reads_no_more = covers(_ends(last), ends)
            return clock_of_replay(last.time if reads_no_more else plan.created, base)
        candidates = plans[bisect_left(plans, self._passed, key=_id) :]
        reached = next((index for index, live in enumerate(candidates) if covers(_ends(live), ends)), None)
        if reached is None:  # the sources cannot compare these positions
            return clock_of_replay(last.time, base)
        while reached + 1 < len(candidates) and covers(ends, _ends(candidates[reached + 1])):
            reached += 1  # that checkpoint had no new input
        self._passed = candidates[reached].id
        return clock_of_replay(candidates[reached].time, base)


def _id(plan: Plan) -> int:
    return plan.id


def _ends(plan: Plan | None) -> Ends:
    if plan is None:
        return {}
    return {name: part.end for name, part in plan.sources.items()}


def side_files_of(plan: Plan) -> set[Blob]:
    """Return the side files that a checkpoint's plan names. Another ledger needs copies of them to repeat it."""
    payloads = [*(part.splits for part in plan.sources.values()), *plan.fixed_inputs.values()]
    blobs = {payload.blob for payload in payloads if payload.blob is not None}
    for part in plan.sources.values():
        blobs |= {*blobs_within(part.start), *blobs_within(part.end)}
    return blobs


@dataclass(frozen=True)
class _Coverage:
    """Tells whether the input up to some positions includes all input up to others."""

    graph: Graph
    context_of: Callable[[str], SourceContext]

    def __call__(self, ends: Ends, other_ends: Ends) -> bool:
        for name, sourcing in self.graph.sources.items():
            if not sourcing.source.covers(ends.get(name), other_ends.get(name), self.context_of(name)):
                return False
        return True


def repeating(
    options: CheckpointOptions,
    plan: Plan | None,
    ledger: Ledger,
    live: Ledger,
    origin: int,
    in_place: Mapping[str, list[Request]] = MappingProxyType({}),
) -> CheckpointOptions:
    """Return the options of a checkpoint that reads the same input as a recorded one, whose side files are copied from
    the pipeline's ledger `live` to its own; of one that reads nothing, if there is none."""
    if plan is None:
        return replace(options, standing=True)
    for blob in sorted(side_files_of(plan), key=lambda blob: blob.path):
        ledger.copy_blob(blob, live.get_blob(blob))
    return replace(options, repeats=plan, quarantine=LiveQuarantine(live.home, origin, in_place))
