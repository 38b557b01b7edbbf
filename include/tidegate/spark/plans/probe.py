"""A frame whose rows cannot be computed, with a unique name in plans.

What a function makes of its columns can be seen in the plan of the function's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.spark.frame_facts import with_fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PROBE", "make_probe"]

PROBE: Final = "_tidegate_probe"
_REFUSED: Final = "tidegate checks which columns a stage passes on: it must not compute rows here."


def make_probe(like: DataFrame) -> DataFrame:
    """Return a frame with the columns of this one. Every query fails that depends on its rows."""
    from pyspark.sql import functions as F

    fields = like.schema
    refused = F.raise_error(F.lit(_REFUSED))
    # The values fail, too, otherwise Spark could evaluate a condition on a constant without computing the row.
    row = like.sparkSession.range(1).where(refused.cast("boolean")).select(refused.cast(fields).alias("row"))
    return with_fields(row.select("row.*").alias(PROBE), fields.fields)
