"""Check that NOT NULL columns of a Delta target hold no null, before the rows count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.connectors.sink import SinkContext
from tidegate.delta import Snapshot, StagedFile, required_columns
from tidegate.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["checked_not_null"]


def checked_not_null(
    frame: DataFrame | None, snapshot: Snapshot | None, files: Sequence[StagedFile], context: SinkContext
) -> list[str]:
    """Return the table's NOT NULL columns. Raise Invalid unless Spark's schema or the files' statistics prove that they
    hold no null.

    frame: None if the rows are not in Spark.
    """
    required = sorted(required_columns(snapshot.schema)) if snapshot else []
    if not required:
        return []
    declared = set()
    if frame is not None:
        fields = msgspec.json.decode(frame.schema.json())["fields"]
        declared = {field["name"] for field in fields if not field["nullable"]}
    unproven = [name for name in required if name not in declared]
    doubtful = [name for name in unproven if not all(_has_no_null(file, name) for file in files)]
    if doubtful:
        raise Invalid(
            f"sink {context.sink}: {', '.join(map(repr, doubtful))} may be null, which the table does not allow",
            expected=f"no null in {', '.join(map(repr, doubtful))}",
            help="filter or fill them in a stage before the sink",
            reason="NULL_VALUES",
        )
    return required


def _has_no_null(file: StagedFile, name: str) -> bool:
    if name in file.partition:
        return file.partition[name] is not None
    nulls = msgspec.json.decode(file.stats or b"{}", type=dict[str, Any]).get("nullCount", {})
    return bool(nulls.get(name) == 0)
