"""In front of a sink by key: what the sink shows of several rows that share its key, and when the key is gone.

A stream that replaces rows takes each of them back by all that it holds. If two rows that hold share the sink's key,
one of them is shown, and the key goes only when the last one is taken back. So all rows that hold are kept under the
sink's key, with how many copies there are, and the first of each key, in an order that the rows themselves have, is
passed on: the table is the same however the input was cut into checkpoints.

Where every row has a sink's key of its own (`operators/retractions/key.py`) nothing is kept, and rows pass as they are.
What the plan of a stage says of that is only known when it runs. An operator that has begun to keep rows continues to.

It begins with the rows that were emitted before, if there are any: those that the operators upstream show as of the
base, by today's stages. So it may come to a pipeline that had none, and stages in front of it may change. What it shows
of these rows is then passed on once more, all of it: rows that a table has lost come back.
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
    """`by`: the keys of the sink. One of the rows that share them is passed on: that with the least id, which is a hash
    of all that the row holds."""

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
        """told_apart_by: the key of the stream's changelog, as far as the declaration tells. certain: it tells all that
        there is to know. forgetting: operators upstream that forget rows without taking them back."""
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
                f"sink {self.sink!r} goes by {keys}, and only the plans of the stages in front of it will show whether "
                f"these tell rows of {self.stream!r} apart; if not, all that hold are kept, and one of each key is "
                "shown"
            )
        told = "nothing" if self.told_apart_by is None else key_text(self.told_apart_by)
        return (
            f"sink {self.sink!r} goes by {keys}, and rows of {self.stream!r} are told apart by {told}: so all rows "
            "that hold are kept, and one of each key is shown; with keys that contain those of the stream nothing "
            "would be"
        )

    def describe(self) -> Json:
        return {"by": self.by, "sink": self.sink}

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "in front of sink": self.sink}

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows, upstream = inputs[0], context.upstream
        assert upstream is not None
        withdrawn = context.retractions[0] if context.retractions else None
        withdrawn = rows.where("false") if withdrawn is None else withdrawn
        if not set(self.by) <= set(rows.columns):
            return {"": rows, "-": withdrawn}  # the sink says which one it misses
        before = context.memory.get(WAY)
        if before is None and keys_contain(self.by, upstream.key()):
            return {"": rows, "-": withdrawn}
        self._refuse_forgetting(context)
        need_keys(rows, self.by, "keys", context)
        refuse_reserved_columns(rows, context)
        context.remember[WAY] = upstream.path_hash
        begins = before != upstream.path_hash or self._cannot_continue(rows, upstream.state_columns(HELD))
        if begins:
            upstream.reset_state()
            if upstream.has_emitted_rows():
                withdrawn = context.persist(withdrawn)
                rows = upstream.current_output().unionByName(rows)
        now, gone = ranked(rows, withdrawn, self.by, _ORDER, 1, context, part=HELD, number=_TOP)
        # As it begins it passes on all that it shows; a key that is not among that may be in the table all the same.
        return {"": now.drop(_TOP), "-": withdrawn if begins else gone.drop(_TOP)}

    def _cannot_continue(self, rows: DataFrame, kept: Json | None) -> bool:
        """Return whether rows that are kept have a column that rows no longer have, or one of a type that cannot become
        theirs: then none of those that are taken back would be found. kept: the columns of those that are kept."""
        if kept is None:
            return False
        gone = {field["name"] for field in kept["fields"]} - {*rows.columns, *STATE_COLUMNS, "_row", "_n"}
        return bool(gone or refusals(kept, from_spark(msgspec.json.decode(rows.schema.json())), self.by))

    def _refuse_forgetting(self, context: OperatorContext) -> None:
        if self.forgetting:
            raise Invalid(
                forgotten(self.sink, self.by, self.stream, self.forgetting),
                expected="rows that are taken back once they no longer hold",
                help="leave out state_ttl there, or let the sink go by keys that tell all rows of the stream apart",
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
    """Return what is wrong if operators forget rows that a materializer would keep forever."""
    return (
        f"sink {sink!r} goes by {', '.join(by)}, which do not tell the rows of {stream!r} apart, and "
        f"{', '.join(forgetting)} forgets rows (state_ttl) without taking them back, so they would hold forever"
    )
