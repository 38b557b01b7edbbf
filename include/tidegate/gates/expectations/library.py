"""The adapter to Great Expectations, and the only module that imports it.

Great Expectations' metrics form a graph, which tidegate walks itself. A metric that only names a condition or an
aggregate is taken as it is. A metric that would read rows becomes a leaf, and all leaves of a round are read at the
same time. Derived metrics and the result are computed by Great Expectations from these numbers, so the numbers are its
own.

Metrics that cannot be read in this way, such as a quantile, are left to Great Expectations, with `persist=False`.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import math
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.gates.expectations import own_metrics
from tidegate.gates.expectations.checking import Problems
from tidegate.gates.expectations.sql_rows import row_condition_of
from tidegate.gates.expectations.suite import Rule, Suite
from tidegate.gates.judging.aggregates import Count, Distinct, GuardedAggregate, Guards, Leaf, MostCommon, Repeats
from tidegate.gates.judging.row_marks import MarkColumns, Uniqueness
from tidegate.gates.judging.samples import SAMPLES
from tidegate.records.records import Json
from tidegate.versions.ranges import RANGES_BY_PACKAGE, installed_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Compiled", "Walk", "compiled", "import_modules", "warm"]

_FORMAT = {"result_format": "BASIC", "partial_unexpected_count": SAMPLES}
_BATCH = "staged"
_RETURNED_ROWS = "unexpected_rows_query.row_count"
_IN_PYTHON = (
    *("column_values.json_parseable", "column_values.match_json_schema", "column_values.match_strftime_format"),
    *own_metrics.IN_PYTHON,
)
"""Metrics whose conditions are Python functions."""


def warm() -> None:
    """Import Great Expectations now, as it takes seconds: in the parent process of many jobs, or in a thread while
    Spark works."""
    if importlib.util.find_spec("great_expectations") is None:
        known = RANGES_BY_PACKAGE["great-expectations"]
        raise Invalid(
            "Great Expectations is not installed, and judges this pipeline's rows.",
            expected=f"great-expectations {known.text}",
            help=known.command,
            reason="GATES_MISSING",
        )
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations.expectations.core
        import great_expectations.expectations.metrics  # noqa: F401
    own_metrics.register()


def expectations_of(suite: Suite) -> list[Any]:
    """Return the suite as Great Expectations' objects. Raise Invalid, with lines, for all that it does not accept."""
    warm()
    import_modules(suite.modules)
    problems = Problems(suite.path)
    expectations = [expectation_of(rule, problems) for rule in suite.rules]
    problems.raise_if_any()
    return expectations


def import_modules(modules: Iterable[str]) -> None:
    """Import the modules that define expectations of the user's own: Great Expectations then knows their types."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise Invalid(
                f"modules: {module} cannot be imported: {type(error).__name__}: {error}",
                expected="a module that defines expectations",
                help="correct it; `tidegate suite check` imports it, too",
                reason="BAD_SUITE",
            ) from error


def expectation_of(rule: Rule, problems: Problems) -> Any:
    """Return one rule as Great Expectations' object. None: it is not accepted, which is added to `problems`."""
    from great_expectations.compatibility.pydantic import ValidationError
    from great_expectations.exceptions.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.registry import get_expectation_impl

    try:
        kind = get_expectation_impl(rule.type)
        kwargs: dict[str, Any] = {**copy.deepcopy(dict(rule.kwargs)), "severity": rule.severity}
        expectation = kind(**kwargs)
    except ExpectationNotFoundError:
        installed = f"Great Expectations {installed_version('great-expectations')}, which is installed"
        problems.add(rule.line, f"{rule.type}: {installed}, has no such expectation")
        return None
    except ValidationError as error:
        for detail in error.errors():
            location = ".".join(str(part) for part in detail["loc"] if part != "__root__")
            problems.add(rule.line, f"{rule.type}: {location + ': ' if location else ''}{detail['msg']}")
        return None
    except (Invalid, TypeError, ValueError) as error:
        problems.add(rule.line, f"{rule.type}: {error}")
        return None
    expectation.id = rule.name
    return expectation


class _NeedsRows(Exception):
    """Raised by a metric that is more than a condition, an aggregate or a fact of the schema."""


class _CannotBeJudged(Exception):
    """Raised for an expectation of the user's own whose metrics Great Expectations cannot find, or not for Spark."""

    def __init__(self, expectation: Any) -> None:
        self.expectation = expectation
        super().__init__(expectation)


class _NeedsCount(Exception):
    """Raised by a metric that depends on the number of rows."""


def _raise_needs_count(*_: Any) -> Any:
    raise _NeedsCount


class _Unknown:
    """A placeholder for the number of rows, until it is known. Nearly all metrics request it, but few use it."""

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
    setattr(_Unknown, f"__{_name}__", _raise_needs_count)


class _Spy:
    """A placeholder for the rows while conditions are built. It has their schema, and records filter conditions."""

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
    """A suite prepared for rows of one schema: all that is known before a row is read."""

    expectations: list[Any]
    metrics: dict[Any, Any]
    row_leaves: dict[Any, Leaf]
    first: dict[Any, Leaf]
    """The leaves to read first."""
    edges: list[Any]
    walk: frozenset[Any]
    session: object
    """Conditions belong to the session in which they were made. While it is referenced here, no other session has its
    id."""
    result_metrics: dict[int, dict[str, Any]]
    """The metrics that each result is computed from, by the expectation's `id(…)`."""
    mark_columns: dict[Uniqueness, MarkColumns] = field(default_factory=dict)
    """The mark columns of these rows, by how they mark uniqueness."""

    @property
    def identifies_all(self) -> bool:
        """True: the conditions of all rules that can identify rows are already known. That is not so if a condition
        needs an aggregate first, such as that of a z-score."""
        metrics = [metric for by_name in self.result_metrics.values() for metric in by_name.values()]
        counts = [metric for metric in metrics if metric.metric_name.endswith(".unexpected_count")]
        return all(count.id in self.row_leaves for count in counts)


_compiled: dict[tuple[str, str, int], Compiled] = {}
_COMPILED_LIMIT = 64


def compiled(suite: Suite, frame: DataFrame) -> Compiled:
    """Return the suite's conditions for rows of this schema. They are made once per process for each suite and
    schema."""
    key = (suite.fingerprint, frame.schema.json(), id(frame.sparkSession))
    if key not in _compiled:
        suite.check_columns(frame.columns)
        result = compile_suite(suite, frame)
        while len(_compiled) >= _COMPILED_LIMIT:
            _compiled.pop(next(iter(_compiled)))
        _compiled[key] = result
    return _compiled[key]


def compile_suite(suite: Suite, frame: DataFrame) -> Compiled:
    """Build the suite's conditions and aggregates for rows of this schema, without reading rows."""
    expectations = expectations_of(suite)
    try:
        walk = Walk(expectations, frame)
    except _CannotBeJudged as wrong:
        place = next(place for place, each in enumerate(expectations) if each is wrong.expectation)
        problems = Problems(suite.path)
        problems.add(suite.rules[place].line, f"{suite.rules[place].type} cannot be judged: {wrong.__cause__}")
        problems.raise_if_any()
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
        walk.result_metrics,
    )


class Walk:
    """The graph of metrics that some expectations need, resolved round by round.

    metrics: the values known so far, by Great Expectations' ids. failed: the errors of metrics without a value.
    """

    def __init__(
        self,
        expectations: list[Any],
        frame: DataFrame,
        base: Compiled | None = None,
        rows: Callable[[], DataFrame] | None = None,
    ) -> None:
        """base: the same expectations, compiled for rows of the same schema. rows: returns the rows to read, if any
        must be read. By default these are `frame`."""
        from great_expectations.validator.validation_graph import ValidationGraph

        self.expectations = expectations
        self.metrics: dict[Any, Any] = dict(base.metrics) if base else {}
        self.failed: dict[Any, Exception] = {}
        self.row_leaves: dict[Any, Leaf] = dict(base.row_leaves) if base else {}
        """The leaves that count the rows that break a rule."""
        self.through: set[Any] = set(base.walk) if base else set()
        """The metrics that Great Expectations must read itself."""
        self._spied = _make_engine(frame, spied=True)
        self._rows = rows or (lambda: frame)
        self.result_metrics: dict[int, dict[str, Any]] = base.result_metrics if base is not None else {}
        self.graph = ValidationGraph(self._spied, edges=base.edges if base else None)
        for expectation in expectations if base is None else ():
            try:
                self.result_metrics[id(expectation)] = _metrics_of_result(expectation)
                for metric in self.result_metrics[id(expectation)].values():
                    self.graph.build_metric_dependency_graph(metric, {"result_format": dict(_FORMAT)})
            except Exception as error:
                raise _CannotBeJudged(expectation) from error

    def step(self, *, reading: bool) -> dict[Any, Leaf]:
        """Resolve all metrics that need no leaf, and return the leaves that are needed next.

        reading: also run the metrics that Great Expectations must read itself. The leaves are in the suite's order, so
        that all processes send Spark the same query, and a server compiles it once.
        """
        places = {edge.left.id: place for place, edge in enumerate(self.graph.edges)}
        leaves: dict[Any, Leaf] = {}
        waiting: set[Any] = set()
        while True:
            pending = sorted(self.graph._parse(self.metrics)[0], key=lambda metric: places[metric.id])
            settled = self.failed.keys() | waiting | leaves.keys()
            if not reading:
                settled |= self.through
            new = [metric for metric in pending if metric.id not in settled]
            if not new:
                return leaves
            for metric in new:
                try:
                    value = self._resolve(metric)
                except _NeedsRows:
                    self.through.add(metric.id)
                except _NeedsCount:
                    waiting.add(metric.id)
                except Exception as error:  # as Great Expectations does: the rule has failed, not the suite
                    self.failed[metric.id] = error
                else:
                    if isinstance(value, Count | GuardedAggregate | Distinct | MostCommon | Repeats):
                        leaves[metric.id] = value
                    else:
                        self.metrics[metric.id] = value

    def record_leaf(self, id: Any, value: Any) -> None:
        """Record the value of a leaf."""
        from great_expectations.util import convert_to_json_serializable

        # The result's own values are compared with the suite's: they stay what they are.
        self.metrics[id] = value if isinstance(value, list) else convert_to_json_serializable(value)

    def bad_rows(self, expectation: Any) -> int | None:
        """Return the number of rows that break an expectation. None: it is not known."""
        metric = self._row_metric(expectation)
        count = self.metrics.get(metric.id) if metric is not None else None
        return int(count) if count is not None else None

    def _row_metric(self, expectation: Any) -> Any:
        """Return the metric that counts the rows that break an expectation, or None."""
        metrics = self.result_metrics[id(expectation)]
        name = f"{getattr(expectation, 'map_metric', None)}.unexpected_count"
        return metrics.get(name) or metrics.get(_RETURNED_ROWS)

    def row_leaf(self, expectation: Any) -> Leaf | None:
        """Return the leaf that counts the rows that break an expectation. None: these rows cannot be identified."""
        metric = self._row_metric(expectation)
        leaf = self.row_leaves.get(metric.id) if metric is not None else None
        return None if isinstance(leaf, Count) and leaf.alone else leaf

    def result(self, expectation: Any) -> Json:
        """Return Great Expectations' result, computed from the metrics. If a metric failed, the result says so."""
        metrics = self.result_metrics[id(expectation)].values()
        if all(metric.id in self.metrics for metric in metrics):
            try:
                validation = expectation.metrics_validate(self.metrics, {"result_format": dict(_FORMAT)}, self._spied)
                result: Json = _to_json(validation.to_json_dict())
            except Exception as failure:  # code of the user's own
                error = failure
            else:
                return result
        else:
            error = self._find_failure([metric.id for metric in metrics])
        return {
            "success": False,
            "expectation_config": expectation.configuration.to_json_dict(),
            "result": {},
            "meta": {},
            "exception_info": {"raised_exception": True, "exception_traceback": None, "exception_message": str(error)},
        }

    def _find_failure(self, ids: list[Any]) -> Exception:
        """Return the error because of which the metrics with these ids have no values."""
        visited: set[Any] = set()
        while ids:
            id = ids.pop()
            if id in self.failed:
                return self.failed[id]
            if id not in visited and id not in self.metrics:
                ids += [edge.right.id for edge in self.graph.edges if edge.left.id == id and edge.right is not None]
            visited.add(id)
        raise AssertionError("a metric is neither known nor failed")

    def _resolve(self, metric: Any) -> Any:
        name = metric.metric_name
        if name.endswith(".unexpected_values") or name == "unexpected_rows_query.table":
            return []  # samples are taken separately, and few
        if name.endswith(".filtered_row_count"):
            return Count(self._guards(metric.metric_domain_kwargs), None)
        if name == _RETURNED_ROWS:
            condition = row_condition_of(metric.metric_value_kwargs["unexpected_rows_query"])
            if condition is not None:
                self.row_leaves[metric.id] = Count(self._guards(metric.metric_domain_kwargs), _expression(condition))
                return self.row_leaves[metric.id]
        if name == "column.most_common_value":
            return MostCommon(self._guards(metric.metric_domain_kwargs), metric.metric_domain_kwargs["column"])
        if name == "column.value_counts" and self._is_for_most_common(metric):
            return None
        if metric.id in self.through:
            return self._compute(self._reading_engine, metric)
        if name.endswith(".unexpected_count"):
            return self._make_row_leaf(metric)
        return self._compute(self._spied, metric)

    def _is_for_most_common(self, metric: Any) -> bool:
        """Return whether the counts of all values serve only to find the most common ones, which we find ourselves."""
        users = {edge.left.metric_name for edge in self.graph.edges if edge.right and edge.right.id == metric.id}
        of_results = (each.id for by_name in self.result_metrics.values() for each in by_name.values())
        return users == {"column.most_common_value"} and metric.id not in of_results

    def _make_row_leaf(self, metric: Any) -> Leaf:
        partial = metric.metric_dependencies.get("metric_partial_fn")
        source = partial or metric
        condition, compute, accessor = self.metrics[source.metric_dependencies["unexpected_condition"].id]
        guards = self._guards(compute if partial else {**compute, **accessor})
        alone = bool(guards) and self._may_be_python(metric)
        leaf: Leaf = Count(guards, condition, none_of_none=partial is not None, alone=alone)
        if metric.metric_name == "column_values.unique.unexpected_count":
            leaf = Repeats(guards, (accessor["column"],))
        elif metric.metric_name == "compound_columns.unique.unexpected_count":
            leaf = Repeats(guards, tuple(accessor["column_list"]))
        self.row_leaves[metric.id] = leaf
        return leaf

    def _may_be_python(self, metric: Any) -> bool:
        """Return whether a condition is a Python function. One of the user's own may be."""
        from great_expectations.expectations.registry import get_metric_provider

        provider, _ = get_metric_provider(metric.metric_name, self._spied)
        is_users = not provider.__module__.startswith(("great_expectations.", "tidegate."))
        return is_users or metric.metric_name.startswith(_IN_PYTHON)

    @cached_property
    def _reading_engine(self) -> Any:
        """The engine for metrics that Great Expectations must read itself."""
        return _make_engine(self._rows())

    def _compute(self, engine: Any, metric: Any) -> Any:
        """Return a metric as Great Expectations computes it. For an aggregate, return a leaf that describes it."""
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


def _to_json(value: Any) -> Any:
    """Convert a value of Great Expectations to JSON types: numpy's numbers to Python's, and those that are not finite
    to text."""
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if type(value).__module__ == "numpy":
        return _to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _make_engine(frame: DataFrame, *, spied: bool = False) -> Any:
    from great_expectations.execution_engine.sparkdf_batch_data import SparkDFBatchData
    from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine

    engine = SparkDFExecutionEngine(persist=False, spark=frame.sparkSession)
    engine.load_batch_data(_BATCH, SparkDFBatchData(engine, _Spy(frame) if spied else frame))
    return engine


def _metrics_of_result(expectation: Any) -> dict[str, Any]:
    """Return the metrics that an expectation's result is computed from, by name."""
    needs = expectation.get_validation_dependencies(None, {"result_format": dict(_FORMAT)})
    metrics: dict[str, Any] = needs.metric_configurations
    return metrics


def _expression(condition: str) -> Any:
    from pyspark.sql import functions as f

    return f.expr(condition)
