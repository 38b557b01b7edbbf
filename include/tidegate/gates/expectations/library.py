"""Great Expectations, asked for what it knows: conditions, aggregates, results. The only module that imports it.

Its metrics form a graph. Tidegate walks the graph itself: what only names a condition or an aggregate is taken from
Great Expectations as it is; what would read rows becomes a leaf, and all leaves of a round are read at once; what is
derived is computed by Great Expectations from these numbers, and so is the result. So the numbers are its own.

What cannot be read so (a quantile, say) Great Expectations reads itself, with `persist=False`.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.gates.expectations.checking import Problems
from tidegate.gates.expectations.suite import Rule, Suite
from tidegate.gates.judging.aggregates import Count, Distinct, GuardedAggregate, Guards, Leaf, Repeats
from tidegate.gates.judging.row_marks import MarkColumns, Uniqueness
from tidegate.gates.judging.samples import SAMPLES
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Compiled", "Walk", "compiled", "warm"]

_FORMAT = {"result_format": "BASIC", "partial_unexpected_count": SAMPLES}
_BATCH = "staged"
_IN_PYTHON = ("column_values.json_parseable", "column_values.match_json_schema", "column_values.match_strftime_format")
"""Metrics whose conditions are Python functions."""


def warm() -> None:
    """Import Great Expectations now: it takes seconds. In a parent of many jobs, or in a thread beside Spark's work."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations.expectations.core
        import great_expectations.expectations.metrics  # noqa: F401


def expectations_of(suite: Suite) -> list[Any]:
    """The suite as Great Expectations has it; Invalid tells, with lines, what it does not take."""
    warm()
    problems = Problems(suite.path)
    made = [expectation_of(rule, problems) for rule in suite.rules]
    problems.raise_if_any()
    return made


def expectation_of(rule: Rule, problems: Problems) -> Any:
    """One rule as Great Expectations has it."""
    from great_expectations.compatibility.pydantic import ValidationError
    from great_expectations.expectations.registry import get_expectation_impl

    try:
        kwargs: dict[str, Any] = {**copy.deepcopy(dict(rule.kwargs)), "severity": rule.severity}
        made = get_expectation_impl(rule.type)(**kwargs)
    except ValidationError as error:
        for each in error.errors():
            where = ".".join(str(part) for part in each["loc"] if part != "__root__")
            problems.add(rule.line, f"{rule.type}: {where + ': ' if where else ''}{each['msg']}")
        return None
    except (Invalid, TypeError, ValueError) as error:
        problems.add(rule.line, f"{rule.type}: {error}")
        return None
    made.id = rule.name
    return made


class _NeedsRows(Exception):
    """A metric that is more than a condition, an aggregate or a fact of the schema."""


class _NeedsCount(Exception):
    """A metric that goes by how many rows there are."""


def _how_many(*_: Any) -> Any:
    raise _NeedsCount


class _Unknown:
    """Stands for how many rows there are, as long as nobody knows: nearly all metrics ask for it, few look at it."""

    __slots__ = ()


for _name in (
    *(
        "add",
        "radd",
        "sub",
        "rsub",
        "mul",
        "rmul",
        "truediv",
        "rtruediv",
        "floordiv",
        "rfloordiv",
        "mod",
        "rmod",
        "neg",
    ),
    *("eq", "ne", "lt", "le", "gt", "ge", "bool", "int", "float", "index", "hash", "str", "repr", "format", "iter"),
    *("getattr", "deepcopy", "reduce_ex"),
):
    setattr(_Unknown, f"__{_name}__", _how_many)


class _Spy:
    """Stands for the rows where only conditions are built: has their schema, and notes by what they are filtered."""

    def __init__(self, frame: DataFrame, guards: Guards = ()) -> None:
        self.frame = frame
        self.guards = guards

    def filter(self, condition: Any) -> _Spy:
        return _Spy(self.frame, (*self.guards, condition))

    where = filter

    def __getitem__(self, names: Any) -> Any:
        return self.frame[names]

    def __getattr__(self, name: str) -> Any:
        if name in ("schema", "columns", "dtypes", "sparkSession"):
            return getattr(self.frame, name)
        raise _NeedsRows(name)


@dataclass(frozen=True)
class Compiled:
    """A suite on rows of one schema: all that is known before a row is read."""

    expectations: list[Any]
    metrics: dict[Any, Any]
    row_leaves: dict[Any, Leaf]
    first: dict[Any, Leaf]
    """What is to be read first."""
    edges: list[Any]
    through: frozenset[Any]
    session: object
    """Conditions belong to the session that they were made in; while we hold it, no other has its id."""
    wanted: dict[int, dict[str, Any]]
    """The metrics that each result is made of, by the expectation's `id(…)`."""
    beside: dict[Uniqueness, MarkColumns] = field(default_factory=dict)
    """What is noted beside rows."""

    @property
    def tells_all(self) -> bool:
        """Whether it is known already how the rows that break a rule are told. Not so if a condition needs an aggregate
        first, as that of a z-score does."""
        counting = [each for wanted in self.wanted.values() for each in wanted.values()]
        return all(each.id in self.row_leaves for each in counting if each.metric_name.endswith(".unexpected_count"))


_compiled: dict[tuple[str, str, int], Compiled] = {}
_COMPILED_LIMIT = 64


def compiled(suite: Suite, frame: DataFrame) -> Compiled:
    """The suite's conditions for rows of this schema. Made once in a process for each suite and schema."""
    key = (suite.fingerprint, frame.schema.json(), id(frame.sparkSession))
    if key not in _compiled:
        suite.check_columns(frame.columns)
        made = compile_suite(suite, frame)
        while len(_compiled) >= _COMPILED_LIMIT:
            _compiled.pop(next(iter(_compiled)))
        _compiled[key] = made
    return _compiled[key]


def compile_suite(suite: Suite, frame: DataFrame) -> Compiled:
    """The suite's conditions and aggregates on rows of this schema; reads none of them."""
    walk = Walk(expectations_of(suite), frame)
    first = walk.step(reading=False)
    counts = [id for id, leaf in first.items() if id.metric_name == "table.row_count" and isinstance(leaf, Count)]
    walk.metrics |= dict.fromkeys(counts, _Unknown())
    first |= walk.step(reading=False)
    for id in counts:
        del walk.metrics[id]
    return Compiled(
        walk.expectations,
        walk.metrics,
        walk.row_leaves,
        first,
        walk.graph.edges,
        frozenset(walk.through),
        getattr(frame, "sparkSession", None),
        walk.wanted,
    )


class Walk:
    """The graph of metrics that some expectations need, resolved round by round.

    metrics: what is known so far, by Great Expectations' ids. failed: what cannot be known, and why.
    """

    def __init__(
        self,
        expectations: list[Any],
        frame: DataFrame,
        known: Compiled | None = None,
        rows: Callable[[], DataFrame] | None = None,
    ) -> None:
        """known: of the same expectations on rows of the same schema. rows: what is read, if anything must be; else it
        is `frame`."""
        from great_expectations.validator.validation_graph import ValidationGraph

        self.expectations = expectations
        self.metrics: dict[Any, Any] = dict(known.metrics) if known else {}
        self.failed: dict[Any, Exception] = {}
        self.row_leaves: dict[Any, Leaf] = dict(known.row_leaves) if known else {}
        """Those that count the rows that break a rule."""
        self.through: set[Any] = set(known.through) if known else set()
        """What Great Expectations must read itself."""
        self._spied = _engine(frame, spied=True)
        self._rows = rows or (lambda: frame)
        self.wanted = known.wanted if known else {id(each): _wanted(each) for each in expectations}
        self.graph = ValidationGraph(self._spied, edges=known.edges if known else None)
        if known is None:
            for expectation in expectations:
                for metric in self.wanted[id(expectation)].values():
                    self.graph.build_metric_dependency_graph(metric, {"result_format": dict(_FORMAT)})

    def step(self, *, reading: bool) -> dict[Any, Leaf]:
        """Resolve all that needs no leaf; the leaves that are needed next. reading: run what must be run through.

        They come in the suite's order, so all processes ask Spark the same, and a server compiles it once.
        """
        places = {edge.left.id: place for place, edge in enumerate(self.graph.edges)}
        leaves: dict[Any, Leaf] = {}
        waiting: set[Any] = set()
        while True:
            pending = sorted(self.graph._parse(self.metrics)[0], key=lambda each: places[each.id])
            ready = [each for each in pending if each.id not in self.failed and each.id not in waiting]
            new = [each for each in ready if each.id not in leaves and (reading or each.id not in self.through)]
            if not new:
                return leaves
            for metric in new:
                try:
                    found = self._resolve(metric)
                except _NeedsRows:
                    self.through.add(metric.id)
                except _NeedsCount:
                    waiting.add(metric.id)
                except Exception as error:  # as Great Expectations does: the rule has failed, not the suite
                    self.failed[metric.id] = error
                else:
                    if isinstance(found, Count | GuardedAggregate | Distinct | Repeats):
                        leaves[metric.id] = found
                    else:
                        self.metrics[metric.id] = found

    def take(self, id: Any, value: Any) -> None:
        """What a leaf was found to be."""
        from great_expectations.util import convert_to_json_serializable

        self.metrics[id] = convert_to_json_serializable(value)

    def row_leaf(self, expectation: Any) -> Leaf | None:
        """The leaf that counts the rows that break an expectation; None if they cannot be told."""
        name = f"{getattr(expectation, 'map_metric', None)}.unexpected_count"
        metric = self.wanted[id(expectation)].get(name)
        leaf = self.row_leaves.get(metric.id) if metric is not None else None
        return None if isinstance(leaf, Count) and leaf.alone else leaf

    def result(self, expectation: Any) -> Json:
        """Great Expectations' result from the metrics; if they could not be had, what it says itself."""
        wanted = self.wanted[id(expectation)].values()
        if all(metric.id in self.metrics for metric in wanted):
            said = expectation.metrics_validate(self.metrics, {"result_format": dict(_FORMAT)}, self._spied)
            found: Json = _plain(said.to_json_dict())
            return found
        error = self._why_failed([metric.id for metric in wanted])
        return {
            "success": False,
            "expectation_config": expectation.configuration.to_json_dict(),
            "result": {},
            "meta": {},
            "exception_info": {"raised_exception": True, "exception_traceback": None, "exception_message": str(error)},
        }

    def _why_failed(self, ids: list[Any]) -> Exception:
        """The failure that the metrics with these ids lack their values for."""
        seen: set[Any] = set()
        while ids:
            id = ids.pop()
            if id in self.failed:
                return self.failed[id]
            if id not in seen and id not in self.metrics:
                ids += [edge.right.id for edge in self.graph.edges if edge.left.id == id and edge.right is not None]
            seen.add(id)
        raise AssertionError("a metric is neither known nor failed")

    def _resolve(self, metric: Any) -> Any:
        name = metric.metric_name
        if name.endswith(".unexpected_values") or name == "unexpected_rows_query.table":
            return []  # samples are taken apart, and few
        if name.endswith(".filtered_row_count"):
            return Count(self._guards(metric.metric_domain_kwargs), None)
        if metric.id in self.through:
            return self._computed(self._reading, metric)
        if name.endswith(".unexpected_count"):
            return self._row_leaf(metric)
        return self._computed(self._spied, metric)

    def _row_leaf(self, metric: Any) -> Leaf:
        partial = metric.metric_dependencies.get("metric_partial_fn")
        of = partial or metric
        condition, compute, accessor = self.metrics[of.metric_dependencies["unexpected_condition"].id]
        guards = self._guards(compute if partial else {**compute, **accessor})
        alone = bool(guards) and metric.metric_name.startswith(_IN_PYTHON)
        leaf: Leaf = Count(guards, condition, none_of_none=partial is not None, alone=alone)
        if metric.metric_name == "column_values.unique.unexpected_count":
            leaf = Repeats(guards, (accessor["column"],))
        elif metric.metric_name == "compound_columns.unique.unexpected_count":
            leaf = Repeats(guards, tuple(accessor["column_list"]))
        self.row_leaves[metric.id] = leaf
        return leaf

    @cached_property
    def _reading(self) -> Any:
        """For what Great Expectations must read itself."""
        return _engine(self._rows())

    def _computed(self, engine: Any, metric: Any) -> Any:
        """A metric as Great Expectations computes it; of an aggregate only what it is."""
        plan = engine._build_direct_and_bundled_metric_computation_configurations
        direct, bundled = plan([metric], self.metrics, {"result_format": dict(_FORMAT)})
        if direct:
            return direct[0].metric_fn(**direct[0].metric_provider_kwargs)
        domain = dict(bundled[0].compute_domain_kwargs)
        guards = self._guards(domain)
        if metric.metric_name == "table.row_count":
            return Count(guards, None)
        if metric.metric_name == "column.distinct_values.count":
            return Distinct(guards, metric.metric_domain_kwargs["column"])
        return GuardedAggregate(guards, bundled[0].metric_fn, repr(sorted(domain.items(), key=repr)))

    def _guards(self, domain: Any) -> Guards:
        guards: Guards = self._spied.get_domain_records(dict(domain)).guards
        return guards


def _plain(told: Any) -> Any:
    """What Great Expectations tells, as JSON can hold it: no numbers of numpy's; and what is not finite is a text."""
    if isinstance(told, dict):
        return {key: _plain(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [_plain(each) for each in told]
    if type(told).__module__ == "numpy":
        return _plain(told.tolist())
    if isinstance(told, float) and not math.isfinite(told):
        return "NaN" if math.isnan(told) else "Infinity" if told > 0 else "-Infinity"
    return told


def _engine(frame: DataFrame, *, spied: bool = False) -> Any:
    from great_expectations.execution_engine.sparkdf_batch_data import SparkDFBatchData
    from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine

    engine = SparkDFExecutionEngine(persist=False, spark=frame.sparkSession)
    engine.load_batch_data(_BATCH, SparkDFBatchData(engine, _Spy(frame) if spied else frame))
    return engine


def _wanted(expectation: Any) -> dict[str, Any]:
    """The metrics that an expectation's result is made of, by name."""
    needs = expectation.get_validation_dependencies(None, {"result_format": dict(_FORMAT)})
    found: dict[str, Any] = needs.metric_configurations
    return found
