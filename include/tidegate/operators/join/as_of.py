"""The as-of join: joins each row with the version that was valid at its time, the newest one that is not newer.

    versions   all rows of the right side, except those that no future row can match because a newer one replaces them
    waiting    rows of the left side, until the watermark has passed them: an earlier version may still arrive

Emitted rows are final. A version is valid from its own time on, inclusive. Ties in time take the version with the
greater content. Versions are never too late, but they do not change rows that have been emitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.event_time_buffer import WAITING
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.join.driver import joined_as_of
from tidegate.operators.join.join import How, join_problems, sides_in
from tidegate.operators.join.sides import JoinKeys, check_sides
from tidegate.operators.join.time_bounds import LATE_OUTPUT, need_time, side_time_problems, side_times
from tidegate.operators.spec import EventTime, Growth, OperatorSpec, OutputSpec, StateSpec, joined
from tidegate.records.records import Json
from tidegate.spark.frame_facts import is_known_empty
from tidegate.state.lateness import Lateness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AsOfJoin"]

VERSIONS: Final = "versions"


class AsOfJoin(Operator):
    """`event_time`: one column, or one for each side. Rows that are late, or have no time, are the output "late"."""

    kind: ClassVar[str] = "join"

    def __init__(
        self,
        on: str | Sequence[str] | Mapping[str, str],
        how: How = "inner",
        prefix: str | None = None,
        event_time: str | tuple[str | None, str | None] | None = None,
        expiry: Expiry = NEVER,
    ) -> None:
        self.keys = JoinKeys.from_declaration(on)
        self.on = self.keys.left
        self.how = how
        self.prefix = prefix
        self.times = side_times(event_time)
        self.expiry = expiry

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            identity=self.on,
            event_time=EventTime(inputs=sides_in(self.times, [Lateness(), None], [LATE_OUTPUT, LATE_OUTPUT])),
            output=OutputSpec(others=[LATE_OUTPUT], inputs_of_any_age=[1]),
            states=[StateSpec(WAITING), StateSpec(VERSIONS, self.expiry)],
            growth=Growth(keeps=f"a version for each {joined(self.on)}" if self.expiry.is_never else None),
        )

    def describe(self) -> Json:
        described = {"on": self.keys.texts, "as_of": True, "how": self.how, "prefix": self.prefix}
        return described | {"times": list(self.times)} | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        return {"on": self.keys.texts, "as of": "event time", "how": self.how, "event_time": list(self.times)}

    def problems(self) -> list[str]:
        problems = join_problems(self.keys, self.how, ("inner", "left"))
        return problems + side_time_problems(self.times) + self.expiry.problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        times = [need_time(name, place, context) for place, name in enumerate(self.times)]
        times[1] = self.keys.right_names(inputs[1].columns).get(times[1], times[1])
        is_empty = all(map(is_known_empty, inputs))
        inputs = [inputs[0], self.keys.rename_right(inputs[1], context)]
        check_sides(inputs, self.on, self.prefix, context)
        states = []
        for state in self.spec().states:
            states.append(context.state([*self.on, "_row"], state.name, grouped_by=self.on))
        return joined_as_of(inputs, self.on, self.prefix, states, times, context, is_empty=is_empty, how=self.how)
