"""Chooses one row for each key of a sink, if several current rows of a stream may share it.

A stream retracts a row by its whole content. If two current rows share the sink's key, one of them is passed to the
sink, and the key is only deleted when the last one is retracted. So the state has all current rows by the sink's key,
with their numbers of copies, and the first row of each key, by the rows' content, is passed on. So the table does not
depend on how the input was cut into checkpoints.

If the sink's keys contain the key of the changelog (`operators/retractions/key.py`), no state is kept, and rows pass
unchanged. Whether they do may depend on the plan of a stage, which is only known when it runs. Once the operator has
kept rows, it continues to.

It starts with the rows that have been emitted before: the current output of the operators upstream as of the base,
through today's stages. So a materializer may be added to a pipeline, and the stages in front of it may change. Then it
passes on all of its chosen rows again, so that rows missing from the table reappear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from tidegate.delta import from_spark
from tidegate.errors import Invalid
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.inputs import need_keys, refuse_reserved_columns
from tidegate.operators.latest import first_stored_rows
from tidegate.operators.ranking import OrderTerm, ranked
from tidegate.operators.retractions.key import HELD, ChangelogKey, key_of, key_text, keys_contain
from tidegate.operators.spec import Changelog, Inputs, OperatorSpec, StateSpec, Updates
from tidegate.records.records import Json
from tidegate.state.columns import OWN as STATE_COLUMNS
from tidegate.state.evolution import refusals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["WAY", "Materializer", "forgotten"]

WAY: Final = "way"
_TOP: Final = "_top"
"""The column with the number of the first row, which is dropped: users may have a `rank`."""
_ORDER: Final = [OrderTerm("_row", ascending=True)]


class Materializer(Operator):
    """`by`: the keys of the sink. Of the rows that share them, the one with the least id is passed on. The id is a hash
    of the row's content."""

    kind: ClassVar[str] = "materializer"

    def __init__(
        self,
        by: Sequence[str],
        sink: str,
        stream: str,
        *,
        told_apart_by: ChangelogKey | None = None,
        certain: bool = True,
        forgetting: Sequence[str] = (),
    ) -> None:
        """told_apart_by: the key of the stream's changelog by the declaration. certain: plans of stages cannot show
        another key. forgetting: operators upstream whose rows expire without retractions."""
        self.by = list(by)
        self.sink = sink
        self.stream = stream
        self.told_apart_by = told_apart_by
        self.certain = certain
        self.forgetting = list(forgetting)

    def spec(self) -> OperatorSpec:
        return OperatorSpec(
            identity=self.by,
            inputs=Inputs(retractions=True),
            changelog=Changelog(updates=Updates.ALWAYS, key=key_of(self.by), is_kept=True),
            states=[StateSpec(HELD)],
            note=self._note(),
        )

    def _note(self) -> str:
        keys = ", ".join(self.by)
        if not self.certain:
            return (
                f"sink {self.sink!r} has the keys {keys}, and only the plans of its upstream stages will show whether "
                f"they are unique among current rows of {self.stream!r}; if not, all current rows are kept as state, "
                "and one row of each key is written"
            )
        if self.told_apart_by is None:
            stream_key = "unknown"
        else:
            stream_key = key_text(self.told_apart_by)
        return (
            f"sink {self.sink!r} has the keys {keys}, but the key of {self.stream!r} is {stream_key}: so all current "
            "rows are kept as state, and one row of each key is written; with keys that contain those of the stream, "
            "no state would be kept"
        )

    def describe(self) -> Json:
        return {"by": self.by, "sink": self.sink}

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "in front of sink": self.sink}

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows, upstream = inputs[0], context.upstream
        assert upstream is not None
        retractions = context.retractions[0] if context.retractions else None
        if retractions is None:
            retractions = rows.where("false")
        if not set(self.by) <= set(rows.columns):
            return {"": rows, "-": retractions}  # the sink reports the missing column
        path_before = context.memory.get(WAY)
        if path_before is None and keys_contain(self.by, upstream.key()):
            return {"": rows, "-": retractions}
        self._refuse_forgetting()
        need_keys(rows, self.by, "keys", context)
        refuse_reserved_columns(rows, context)
        context.remember[WAY] = upstream.path_hash
        starts = path_before != upstream.path_hash or self._cannot_continue(rows, upstream.state_columns(HELD))
        if starts:
            upstream.reset_state()
            if upstream.has_emitted_rows():
                retractions = context.persist(retractions)
                rows = upstream.current_output().unionByName(rows)
        now, before = ranked(rows, retractions, self.by, _ORDER, 1, context, part=HELD, number=_TOP)
        # When it starts, the table may have a key that none of its rows has: the input's retractions may delete it.
        return {"": now.drop(_TOP), "-": retractions if starts else before.drop(_TOP)}

    def _cannot_continue(self, rows: DataFrame, stored: Json | None) -> bool:
        """Return whether retractions would not match stored rows, because a column was dropped, or has an incompatible
        type. stored: the columns of stored rows."""
        if stored is None:
            return False
        dropped = {field["name"] for field in stored["fields"]} - {*rows.columns, *STATE_COLUMNS, "_row", "_n"}
        return bool(dropped or refusals(stored, from_spark(msgspec.json.decode(rows.schema.json())), self.by))

    def _refuse_forgetting(self) -> None:
        """Raise Invalid if rows expire upstream without retractions, because they would stay current forever."""
        if self.forgetting:
            raise Invalid(
                forgotten(self.sink, self.by, self.stream, self.forgetting),
                expected="rows that are retracted when they are no longer current",
                help="leave out state_ttl there, or choose keys of the sink that are unique among the stream's rows",
                reason="FORGOTTEN_ROWS",
            )

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        stored = states[HELD]
        if stored is None:
            return None
        return first_stored_rows(stored, inputs[0], self.by, _ORDER, 1, context, part=HELD, number=_TOP).drop(_TOP)


def forgotten(sink: str, by: Sequence[str], stream: str, forgetting: Sequence[str]) -> str:
    """Return the problem that rows expire upstream of a materializer, which would keep them forever."""
    return (
        f"sink {sink!r} has the keys {', '.join(by)}, which are not unique among the rows of {stream!r}, and rows of "
        f"{', '.join(forgetting)} expire (state_ttl) without retractions, so they would stay current forever"
    )
