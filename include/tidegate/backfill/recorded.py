"""What the pipeline has recorded of the checkpoints that a line replays: how far each had read, and by which clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.checkpoint.references import blobs_within
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.protocol.clock import clock_of_replay
from tidegate.records.records import Blob, Json, Plan

if TYPE_CHECKING:
    from tidegate.connectors.source import SourceContext
    from tidegate.ledger.ledger import Ledger
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["RecordedPlans", "side_files_of"]

Ends = Mapping[str, "Json | None"]
"""By source, how far it was read."""


@dataclass
class RecordedPlans:
    """The plans of the live checkpoints above a line's origin."""

    ledger: Ledger
    origin: int
    _chain: list[Plan] = field(default_factory=list, init=False)
    """What counted when it was last looked at, ascending."""
    _missing: str | None = field(default=None, init=False)
    """Why that does not go down to the origin, if it does not."""
    _last: int = field(default=0, init=False)
    """The last live checkpoint then."""
    _passed: int = field(default=0, init=False)
    """The last one that was found behind a plan of the line: the next plan is not before it."""

    def counting(self) -> list[Plan]:
        """Return those whose input counts and that are retained, ascending: the last one, what it rests on, and so on.
        Below one that is not retained nothing is known."""
        last = self.ledger.view().last_completed
        if last is not None and last.id != self._last:
            self._collect_live_below(last.plan)
            self._last = last.id
        return self._chain

    def between(self, after: int, until: int) -> list[Plan]:
        """Return those of `counting` with ids in this range, without the first."""
        plans = self.counting()
        return plans[bisect_right(plans, after, key=_id) : bisect_right(plans, until, key=_id)]

    def _collect_live_below(self, above: Plan | None) -> None:
        """Find what counts as of a checkpoint. Of what counted before, the part that it stands on is known."""
        known = {plan.id: place for place, plan in enumerate(self._chain)}
        new, missing = list[Plan](), None
        while above is not None and above.id > self.origin and above.id not in known:
            if above.kind == "fork":
                missing = "what the pipeline that it was forked from had read is not in its log"
                break
            rollback = above.rollback
            if rollback is None:
                new.append(above)
            # As to input a swap undoes nothing: it stands on the checkpoints in whose place it comes.
            id = rollback.target if rollback is not None and rollback.line is None else above.base
            below = self.ledger.plan(id) if id else None
            if id is not None and id > self.origin and below is None:
                missing = f"checkpoint {id}, on which {above.id} rests, is not retained"
                break
            above = below
        reaches_known = missing is None and above is not None and above.id in known
        under = self._chain[: known[above.id] + 1] if above is not None and reaches_known else []
        self._chain, self._missing = [*under, *reversed(new)], self._missing if reaches_known else missing

    def missing(self) -> str | None:
        """Return why not all of them are known down to the origin. None: they are."""
        self.counting()
        return self._missing

    def manual_edits(self) -> list[Plan]:
        """Return those in which a person has changed the state of an operator."""
        return [plan for plan in self.counting() if plan.is_by_hand]

    def problems(self, sources: Iterable[str]) -> Iterator[str]:
        """Yield why the live checkpoints cannot be replayed one by one, with the ranges that they have recorded."""
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
                        f"checkpoint {plan.id} has read source {name!r} from elsewhere than the one before it had read "
                        "to: a source was moved between them, or another backfill was swapped in"
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
        """Return the clock of a line's plan: that of the last live checkpoint whose input it reads, as the sources tell
        by their positions. If it has read more than any live checkpoint, it is now.

        base: the line's plan that it rests on. until: the live checkpoint up to which the line is to read; None: all.
        """
        plans = self.counting()
        wanted = bisect_right(plans, until, key=_id) if until is not None else len(plans)
        if not wanted:
            return clock_of_replay(plan.created, base)
        reaches = _Coverage(graph, context_of)
        last, ends = plans[wanted - 1], _ends(plan)
        if reaches(ends, _ends(last)):
            return clock_of_replay(last.time if reaches(_ends(last), ends) else plan.created, base)
        ahead = plans[bisect_left(plans, self._passed, key=_id) : wanted]
        reached = next((place for place, each in enumerate(ahead) if reaches(_ends(each), ends)), None)
        if reached is None:  # its sources cannot tell
            return clock_of_replay(last.time, base)
        while reached + 1 < len(ahead) and reaches(ends, _ends(ahead[reached + 1])):
            reached += 1  # nothing was new in that one
        self._passed = ahead[reached].id
        return clock_of_replay(ahead[reached].time, base)


def _id(plan: Plan) -> int:
    return plan.id


def _ends(plan: Plan | None) -> Ends:
    return {name: part.end for name, part in plan.sources.items()} if plan is not None else {}


def side_files_of(plan: Plan) -> set[Blob]:
    """Return the side files that the plan of a checkpoint names, of which another ledger needs copies to repeat it."""
    payloads = [*(part.splits for part in plan.sources.values()), *plan.fixed_inputs.values()]
    blobs = {payload.blob for payload in payloads if payload.blob is not None}
    for part in plan.sources.values():
        blobs |= {*blobs_within(part.start), *blobs_within(part.end)}
    return blobs


@dataclass(frozen=True)
class _Coverage:
    """Whether whoever has read up to some positions has read all that one at others has."""

    graph: Graph
    context_of: Callable[[str], SourceContext]

    def __call__(self, ends: Ends, others: Ends) -> bool:
        return all(
            sourcing.source.covers(ends.get(name), others.get(name), self.context_of(name))
            for name, sourcing in self.graph.sources.items()
        )
