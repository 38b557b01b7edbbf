"""What the pipeline has recorded of the checkpoints that a line replays: how far each had read, and by which clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.checkpoint.references import blobs_within
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.protocol.clock import clock_of_replay
from tidegate.records.records import Blob, Json, Plan

if TYPE_CHECKING:
    from tidegate.ledger.ledger import Ledger
    from tidegate.pipeline.graph.graph import Graph
    from tidegate.sources.base import SourceContext

__all__ = ["RecordedPlans", "side_files_of"]

Ends = Mapping[str, "Json | None"]
"""By source, how far it was read."""


@dataclass
class RecordedPlans:
    """The plans of the live checkpoints above a line's origin."""

    ledger: Ledger
    origin: int
    _plans: dict[int, Plan] = field(default_factory=dict, init=False)
    _passed: int = field(default=0, init=False)
    """The last one that was found behind a plan of the line: the next plan is not before it."""

    def counting(self) -> list[Plan]:
        """Return those whose input counts and that are retained, ascending: the last one, what it rests on, and so on.
        Below one that is not retained nothing is known."""
        return self._counting()[0]

    def _counting(self) -> tuple[list[Plan], str | None]:
        """Return them, and why they do not go down to the origin, if they do not."""
        last = self.ledger.view().last_completed
        above, plans = last.plan if last is not None else None, list[Plan]()
        while above is not None and above.id > self.origin:
            if above.kind == "fork":
                return plans[::-1], "what the pipeline that it was forked from had read is not in its log"
            rollback = above.rollback
            if rollback is None:
                plans.append(above)
            # As to input a swap undoes nothing: it stands on the checkpoints in whose place it comes.
            id = rollback.target if rollback is not None and rollback.line is None else above.base
            below = self._plan(id) if id else None
            if id is not None and id > self.origin and below is None:
                return plans[::-1], f"checkpoint {id}, on which {above.id} rests, is not retained"
            above = below
        return plans[::-1], None

    def _plan(self, id: int) -> Plan | None:
        if id not in self._plans:
            plan = self.ledger.plan(id)
            if plan is None:
                return None
            self._plans[id] = plan
        return self._plans[id]

    def by_hand(self) -> list[Plan]:
        """Return those in which a person has changed the state of an operator."""
        return [plan for plan in self.counting() if plan.is_by_hand]

    def problems(self, sources: Iterable[str]) -> Iterator[str]:
        """Yield why the live checkpoints cannot be replayed one by one, with the ranges that they have recorded."""
        plans, missing = self._counting()
        if missing is not None:
            yield f"{missing}: its recorded ranges are not known any more"
        read = dict(_ends(self._plan(self.origin) if self.origin else None))
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
        is_wanted: Callable[[int], bool],
    ) -> str:
        """Return the clock of a line's plan: that of the last live checkpoint whose input it reads, as the sources tell
        by their positions. If it has read more than any live checkpoint, it is now.

        base: the line's plan that it rests on. is_wanted: whether the line is to read up to a live checkpoint.
        """
        plans = [recorded for recorded in self.counting() if is_wanted(recorded.id)]
        if not plans:
            return clock_of_replay(plan.created, base)
        reaches = _Reaches(graph, context_of)
        last, ends = plans[-1], _ends(plan)
        if reaches(ends, _ends(last)):
            return clock_of_replay(last.time if reaches(_ends(last), ends) else plan.created, base)
        ahead = [recorded for recorded in plans if recorded.id >= self._passed]
        reached = next((place for place, each in enumerate(ahead) if reaches(_ends(each), ends)), None)
        if reached is None:  # its sources cannot tell
            return clock_of_replay(last.time, base)
        while reached + 1 < len(ahead) and reaches(ends, _ends(ahead[reached + 1])):
            reached += 1  # nothing was new in that one
        self._passed = ahead[reached].id
        return clock_of_replay(ahead[reached].time, base)


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
class _Reaches:
    """Whether whoever has read up to some positions has read all that one at others has."""

    graph: Graph
    context_of: Callable[[str], SourceContext]

    def __call__(self, ends: Ends, others: Ends) -> bool:
        return all(
            sourcing.source.covers(ends.get(name), others.get(name), self.context_of(name))
            for name, sourcing in self.graph.sources.items()
        )
