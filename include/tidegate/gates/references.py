"""A gate that looks up keys in a Delta table, as a foreign key would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from tidegate.connectors.source import SourceContext
from tidegate.gates.base import GateContext, Judgement, Policy
from tidegate.gates.by_key import BROADCAST_KEYS, BROKEN, TIMES, KeyGate, has_no_null, key_names, split_bad_keys
from tidegate.gates.table_as_planned import TableAsPlanned
from tidegate.operators.inputs import key_problems, null_safe_equality
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.connectors.delta.source.delta_table import DeltaTable

__all__ = ["References"]

MISSING: Final = "missing"
NULL_KEY: Final = "null_key"


class References(KeyGate):
    """Check that each row's key is in a Delta table.

        checked = orders.gate(References("customer_id", to="tables/customers", key="id", on_failure="quarantine"))

    All attempts at a checkpoint read the version of the table that was current when it was planned; so does a backfill
    with recorded cuts. If a sink of the same pipeline writes the table, this is the table before the checkpoint, which
    is planned once earlier checkpoints are published.

    by: the key columns of the rows.
    to: the table's path, relative to the setting `data`, or a URL.
    key: the table's columns, in the same order. By default they have the names of the rows' columns.
    nulls: whether a row with a null in a key column may "pass", as in SQL, or breaks the rule "null_key" ("break").
    on_failure: "abort" the checkpoint, "hold" it for a person, "quarantine" the bad rows, or only "warn".
    at_most: the largest share of rows that may go to quarantine. If more are bad, the checkpoint is aborted.
    hold_for: with "hold", how long to wait for a person. None waits without limit.
    unanswered: with "hold", whether to "approve" or "reject" if nobody answers in time.
    """

    kind: ClassVar[str] = "references"

    def __init__(
        self,
        by: str | Sequence[str],
        *,
        to: str,
        key: str | Sequence[str] | None = None,
        nulls: Literal["pass", "break"] = "pass",
        on_failure: Policy = "abort",
        at_most: float = 1.0,
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        super().__init__(by, on_failure, at_most, hold_for, unanswered)
        self.to = to
        self.key = listed(key) if key is not None else self.by
        self.nulls = nulls
        self.table = TableAsPlanned(to)

    def describe(self) -> Json:
        return super().describe() | {"to": self.to, "key": self.key, "nulls": self.nulls}

    def problems(self) -> list[str]:
        problems = [*super().problems(), *self.table.problems("to")]
        if self.key is not self.by:
            problems += key_problems(self.key, "key")
            if len(self.key) != len(self.by):
                problems.append(f"by and key have {len(self.by)} and {len(self.key)} names: expected as many")
        if self.nulls not in ("pass", "break"):
            problems.append(f'nulls is {self.nulls!r}: expected "pass" or "break"')
        return problems

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        return ["as of when it reads its table"]

    def fix_inputs(self, context: SourceContext) -> Json:
        """Return the table's version. Raise Invalid if the table or a column does not exist."""
        return self.table.fix(self.key, context)

    @property
    def input_table(self) -> DeltaTable:
        return self.table.table

    def lost_inputs(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterable[str]:
        return self.table.lost_versions(recorded, context)

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:
        super().check_columns(frame, context)
        self.table.check_types(frame, self._pairs, context)

    @property
    def _pairs(self) -> dict[str, str]:
        return dict(zip(self.by, self.key, strict=True))

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from pyspark.sql import functions as f

        super().check_columns(frame, context)
        table = self.table.read(frame, self._pairs, context)
        keys = materialize(frame.groupBy(*map(quoted, self.by)).agg(f.count(f.lit(1)).alias(TIMES)))
        bounded = _bounded_columns(frame, self.by)
        has_key = has_no_null(self.by)
        bounds = []
        for name in bounded:
            bounds += [f.min(f.when(has_key, f.col(quoted(name)))), f.max(f.when(has_key, f.col(quoted(name))))]
        null_times = f.sum(f.when(~has_key, f.col(TIMES)))
        rows, null_rows, key_count, *limits = keys.agg(
            f.coalesce(f.sum(TIMES), f.lit(0)), f.coalesce(null_times, f.lit(0)), f.count_if(has_key), *bounds
        ).collect()[0]
        bounds_by_column = dict(zip(bounded, zip(limits[::2], limits[1::2], strict=True), strict=True))
        bad_keys = materialize(self._find_bad_keys(keys, key_count, table, bounds_by_column))
        missing_rows, missing_keys, bad_count = bad_keys.agg(
            f.coalesce(f.sum(f.when(has_key, f.col(TIMES))), f.lit(0)), f.count_if(has_key), f.count(f.lit(1))
        ).collect()[0]
        version = self.table.version_of(context)
        what = "a key" if missing_keys == 1 else f"one of {missing_keys:,} keys"
        found = {
            MISSING: (missing_rows, f"{missing_rows:,} rows have {what} that {self.to} lacks in version {version}"),
            NULL_KEY: (null_rows if self.nulls == "break" else 0, f"{null_rows:,} rows have a null in their key"),
        }
        broken = self.rules_broken(found, context)
        good_and_bad = None
        if broken and broken[0].policy == "quarantine":
            good_and_bad = split_bad_keys(frame, self.by, bad_keys, bad_count, nulls=True)
        results: Json = {
            "success": not broken,
            "rows": rows,
            "keys": key_count,
            "missing": missing_rows,
            "missing_keys": missing_keys,
            "null_keys": null_rows,
            "table": self.to,
            "version": version,
        }
        return Judgement(rows, broken, results, good_and_bad, (keys, bad_keys))

    def _find_bad_keys(
        self, keys: DataFrame, key_count: int, table: DataFrame, limits: Mapping[str, tuple[object, object]]
    ) -> DataFrame:
        """Return the keys that break a rule, each with its number of rows and the rules.

        The batch's keys are sent to the table's rows, not the other way round: only its key columns are read, once, and
        of its files only the parts that may have keys between the batch's least and greatest.

        limits: the least and greatest value of columns, by their names in the rows.
        """
        from pyspark.sql import functions as f

        has_key = has_no_null(self.by)
        sought_names, found_names = key_names(self.by), [f"_tidegate_found{place}" for place in range(len(self.by))]
        stored = table.select(*map(quoted, self.key)).toDF(*found_names)
        for name, found_name in zip(self.by, found_names, strict=True):
            low, high = limits.get(name, (None, None))
            if low is not None:
                stored = stored.where(f.col(found_name).between(f.lit(low), f.lit(high)))
        sought = keys.where(has_key).select(*map(quoted, self.by)).toDF(*sought_names)
        if key_count <= BROADCAST_KEYS:
            sought = f.broadcast(sought)
        found = stored.join(sought, null_safe_equality(found_names, sought_names, nulls=False), "left_semi").distinct()
        missing = keys.where(has_key).join(found, null_safe_equality(self.by, found_names, nulls=False), "left_anti")
        bad_keys = missing.withColumn(BROKEN, f.array(f.lit(MISSING)))
        if self.nulls == "break":
            bad_keys = bad_keys.unionByName(keys.where(~has_key).withColumn(BROKEN, f.array(f.lit(NULL_KEY))))
        return bad_keys


def _bounded_columns(frame: DataFrame, by: Sequence[str]) -> list[str]:
    """Return the key columns whose least and greatest value Python represents exactly."""
    from pyspark.sql import types as T

    types = {field.name: field.dataType for field in frame.schema.fields}
    return [name for name in by if isinstance(types[name], T.IntegralType | T.DecimalType | T.DateType)]
