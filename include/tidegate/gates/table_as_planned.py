"""A Delta table that a gate compares rows with, in the version that the plan has fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.connectors.delta.source.delta_table import DeltaTable
from tidegate.connectors.source import SourceContext
from tidegate.delta import TableLog, locate
from tidegate.errors import Invalid
from tidegate.gates.base import GateContext
from tidegate.records.place import Place
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["TableAsPlanned", "refuse_type_mismatch"]

EVERY_FILE = 1_000_000_000
"""More files than any table has, so that a version is read as a whole."""


class TableAsPlanned:
    """The table. Errors name the gate, and say what to do about it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.table = DeltaTable(path, max_files=EVERY_FILE)

    def problems(self, parameter: str) -> list[str]:
        """Return what is wrong with the declaration. parameter: the argument that names the table."""
        return [f"{parameter}: {problem}" for problem in self.table.problems()]

    def fix(self, columns: Sequence[str], context: SourceContext) -> Json:
        """Return the version to read. Raise Invalid unless the table exists and has these columns."""
        try:
            splits = self.table.plan(None, context).splits
        except Invalid as error:
            raise self._of_gate(error, context.source) from error
        self._need_columns(splits["schema"], columns, context.source)
        return splits

    def lost_versions(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterator[str]:
        """Yield a text for each version that checkpoints have read and that can no longer be read."""
        return self.table.lost_versions(recorded, context)

    def check_types(self, frame: DataFrame, pairs: Mapping[str, str], context: GateContext) -> None:
        """Raise Invalid unless the table, as it is now, has columns to compare with those of the rows.

        pairs: columns of the rows, each with the table's.
        """
        from pyspark.sql.types import StructType

        log = TableLog(locate(context.place, self.path))
        head = log.head
        if head is None:
            raise self._no_table(context.gate, context.place)
        schema = log.layout(head).schema
        self._need_columns(schema, list(pairs.values()), context.gate)
        refuse_type_mismatch(frame, StructType.fromJson(schema), pairs, self.path, context.gate)

    def read(self, frame: DataFrame, pairs: Mapping[str, str], context: GateContext) -> DataFrame:
        """Return the table's rows in the planned version. Raise Invalid if columns cannot be compared, see above."""
        assert context.planned_inputs is not None, "the plan has fixed the version"
        splits, source_context = context.planned_inputs
        try:
            self.table.verify(splits, source_context)
        except Invalid as error:
            raise self._of_gate(error, context.gate) from error
        rows = self.table.read(frame.sparkSession, splits, source_context)
        refuse_type_mismatch(frame, rows.schema, pairs, self.path, context.gate)
        return rows

    @staticmethod
    def version_of(context: GateContext) -> int | None:
        """Return the number of the planned version."""
        assert context.planned_inputs is not None
        commits = context.planned_inputs[0]["commits"]
        return int(commits[-1][0]) if commits else None

    def _need_columns(self, schema: Json, columns: Sequence[str], gate: str) -> None:
        names = [field["name"] for field in schema["fields"]]
        missing = [name for name in columns if name not in names]
        if missing:
            raise Invalid(
                f"gate {gate!r}: {self.path} has no column {', '.join(missing)}",
                expected=f"columns of the table: {', '.join(names)}",
                help="name the table's columns as they are called there, or restore them",
                reason="BAD_GATE",
            )

    def _of_gate(self, error: Invalid, gate: str) -> Invalid:
        """Return the table's error in terms of the gate: its own advice is about sources."""
        what = error.what.replace(f"source {gate!r}: ", "")
        if error.reason == "NO_TABLE":
            help = "create the table first, without rows if it has none yet; or correct the path"
        else:
            help = "restore the table, or trigger again: the next checkpoint reads its current version"
        return Invalid(f"gate {gate!r}: {what}", expected=error.expected, help=help, reason=error.reason)

    def _no_table(self, gate: str, place: Place) -> Invalid:
        return Invalid(
            f"gate {gate!r}: no Delta table exists at {place.url(self.path)}",
            expected="a folder with a _delta_log",
            help="create the table first, without rows if it has none yet; or correct the path",
            reason="NO_TABLE",
        )


def refuse_type_mismatch(frame: DataFrame, other: StructType, pairs: Mapping[str, str], of: str, gate: str) -> None:
    """Raise Invalid unless columns of the rows have the types of those to compare them with.

    pairs: columns of the rows, each with the other one. of: where the others are, for the error.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    other_types = {field.name: field.dataType for field in other.fields}
    for name, other_name in pairs.items():
        ours, theirs = types[name], other_types[other_name]
        if unfit := [kind for kind in (ours, theirs) if _kind(kind) is None]:
            raise Invalid(
                f"gate {gate!r}: {name} is {unfit[0].simpleString()}, whose values have no plain equality",
                expected="columns that can be compared: no maps, variants, or nulls without a type",
                help="compute a column from it in an upstream stage, such as one of its fields, and name that",
                reason="BAD_GATE",
            )
        if _kind(ours) != _kind(theirs):
            raise Invalid(
                f"gate {gate!r}: {name} is {ours.simpleString()}, but {other_name} of {of} is {theirs.simpleString()}",
                expected="columns of the same type: values of different types are not compared",
                help=f"convert it in an upstream stage, such as CAST({name} AS {theirs.simpleString()})",
                reason="BAD_GATE",
            )


def _kind(data_type: DataType) -> str | None:
    """Return a word for the types whose values can be compared with each other, or None if they have no equality."""
    import re

    from pyspark.sql import types as T

    text = data_type.simpleString()
    if re.search(r"\b(map<|variant|void)", text):
        return None
    if isinstance(data_type, T.IntegralType | T.DecimalType):
        return "number"
    if isinstance(data_type, T.VarcharType | T.CharType):
        return "string"
    return text
