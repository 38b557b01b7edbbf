"""A contract's rules as expectations, which the gates' own machinery judges.

Rules about single rows are judged in every checkpoint: if every row keeps them, the table does. Rules about all rows,
such as uniqueness, a share or a number of rows, are only right for the whole table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

from tidegate.gates.contracts.document import (
    ContractDocument,
    ObjectSchema,
    Property,
    QualityRule,
    is_number,
)
from tidegate.gates.contracts.types import physical_type_of, unknown_type
from tidegate.gates.expectations.catalogue import CATALOGUE, ColumnSource
from tidegate.gates.expectations.checking import Problems, ValueOnLine
from tidegate.gates.expectations.sql_rows import row_condition_of
from tidegate.gates.expectations.suite import Severity
from tidegate.gates.expectations.yaml_lines import load_yaml
from tidegate.records.names import quoted, quoted_text

__all__ = ["ContractRule", "ContractRules", "rules_of"]


@dataclass(frozen=True)
class ContractRule:
    """One rule as an expectation."""

    name: str
    type: str
    kwargs: Mapping[str, Any]
    line: int
    severity: Severity = "critical"
    about_all_rows: bool = False
    """Whether it is only right for the whole table."""
    says: str = ""
    """The contract's own words about it."""
    key: tuple[str, ...] = ()
    """For the uniqueness of the primary key: its columns."""

    @property
    def as_written(self) -> ValueOnLine:
        """The expectation as a suite's file would have it, all on the contract's line."""
        parts = {"type": self.type, "kwargs": dict(self.kwargs), "severity": self.severity, "id": self.name}
        if self.says:
            parts["description"] = self.says
        return _on_line(parts, self.line)


@dataclass
class ContractRules:
    """All that a contract asks of one table."""

    rules: list[ContractRule] = field(default_factory=list)
    refused: list[tuple[str, int, str]] = field(default_factory=list)
    """What cannot be judged: its name, its line, and the reason."""
    told_only: list[tuple[str, str]] = field(default_factory=list)
    """What is documentation, and is not judged, with the reason."""

    def add(self, rule: ContractRule) -> None:
        """Add a rule, unless another one says the same: `required` and a metric nullValues, say."""
        for index, other in enumerate(self.rules):
            if (other.type, other.kwargs) == (rule.type, rule.kwargs):
                if _SEVERITIES.index(rule.severity) < _SEVERITIES.index(other.severity):
                    self.rules[index] = replace(other, severity=rule.severity)
                return
        self.rules.append(rule)

    def refuse(self, name: str, line: int, why: str) -> None:
        """Note what cannot be judged."""
        self.refused.append((name, line, why))


_SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")
_SEVERITY_WORDS: Final[Mapping[str, Severity]] = {
    **dict.fromkeys(("", "critical", "error", "high", "major", "blocker", "fatal"), "critical"),
    **dict.fromkeys(("warning", "warn", "medium", "minor", "low"), "warning"),
    **dict.fromkeys(("info", "information", "notice"), "info"),
}
_ROWS_QUERY: Final = "unexpected_rows_expectation"


def rules_of(document: ContractDocument, schema: ObjectSchema, problems: Problems) -> ContractRules:
    """Translate all rules of one table. Mistakes in them are added to `problems`."""
    found = ContractRules()
    for each in schema.properties:
        _add_property(each, found, problems)
    _add_key(schema, found)
    columns = {each.name: each.column for each in schema.properties}
    for each in schema.properties:
        for quality in each.quality:
            _Quality(quality, schema, each, columns, found, problems).add()
    for quality in schema.quality:
        _Quality(quality, schema, None, columns, found, problems).add()
    if schema.has_relationships or any(each.has_relationships for each in schema.properties):
        found.told_only.append(("relationships", "a contract does not say where the other table is: add References"))
    _note_formats(schema.properties, found)
    return found


def _note_formats(properties: tuple[Property, ...], found: ContractRules) -> None:
    for each in properties:
        if "format" in each.options and each.logical_type in ("string", "date", "timestamp", "time"):
            found.told_only.append((f"format({each.column})", "it describes how texts look, and is documentation"))


def _on_line(value: Any, line: int) -> ValueOnLine:
    if isinstance(value, Mapping):
        return ValueOnLine({key: _on_line(item, line) for key, item in value.items()}, line)
    if isinstance(value, list | tuple):
        return ValueOnLine([_on_line(item, line) for item in value], line)
    return ValueOnLine(value, line)


# -- the schema -----------------------------------------------------------------------------------------------


def _add_property(each: Property, found: ContractRules, problems: Problems) -> None:
    column, line = each.column, each.line
    if (why := unknown_type(each)) is not None:
        found.refuse(f"type({column})", line, why)
    if _has_odd_name(column):
        found.refuse(f"rules({column})", line, _ODD_NAME)
        return
    if each.required and not each.primary_key:
        found.add(ContractRule(f"required({column})", _NOT_NULL, {"column": column}, line))
    if each.unique:
        kwargs = {"column": column}
        rule = ContractRule(f"unique({column})", _UNIQUE, kwargs, line, about_all_rows=True)
        found.add(rule)
    low, high = each.options.get("minLength"), each.options.get("maxLength")
    physical = physical_type_of(each.physical_type) if each.physical_type else None
    if physical is not None and physical.length is not None:
        high = min(high, physical.length) if high is not None else physical.length
    if low is not None or high is not None:
        lengths = {key: value for key, value in (("min_value", low), ("max_value", high)) if value is not None}
        type = "expect_column_value_lengths_to_be_between"
        found.add(ContractRule(f"length({column})", type, {"column": column, **lengths}, line))
    if "pattern" in each.options:
        kwargs = {"column": column, "regex": each.options["pattern"]}
        found.add(ContractRule(f"pattern({column})", "expect_column_values_to_match_regex", kwargs, line))
    if each.logical_type in ("integer", "number"):
        _add_numeric_range(each, found)
    for name, where, broken in _conditions(each, quoted(column), column, found, problems, top=True):
        found.add(ContractRule(name, _ROWS_QUERY, {"unexpected_rows_query": _rows_where(broken)}, where))


_NOT_NULL: Final = "expect_column_values_to_not_be_null"
_UNIQUE: Final = "expect_column_values_to_be_unique"
_COMPOUND: Final = "expect_compound_columns_to_be_unique"


_ODD_NAME: Final = "Great Expectations cannot read a column with ` or . in its name: rename it in a stage"


def _has_odd_name(column: str) -> bool:
    return "`" in column or "." in column


def _add_key(schema: ObjectSchema, found: ContractRules) -> None:
    key = schema.key
    if any(_has_odd_name(each.column) for each in key):
        return  # which is refused
    for each in key:
        found.add(ContractRule(f"primaryKey({each.column})", _NOT_NULL, {"column": each.column}, each.line))
    if not key:
        return
    columns = tuple(each.column for each in key)
    name = f"primaryKey({', '.join(columns)}) is unique"
    type, kwargs = _uniqueness(columns)
    found.add(ContractRule(name, type, kwargs, key[0].line, about_all_rows=True, key=columns))


def _uniqueness(columns: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return the expectation that these columns are unique together. As in SQL, a null in one of them passes."""
    if len(columns) == 1:
        return _UNIQUE, {"column": columns[0]}
    return _COMPOUND, {"column_list": list(columns), "ignore_row_if": "any_value_is_missing"}


_FORMATS: Final[Mapping[str, tuple[int, int]]] = {
    **{f"i{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)},
}


def _add_numeric_range(each: Property, found: ContractRules) -> None:
    column, options = each.column, each.options
    bounds: dict[str, Any] = {}
    for low, key, strict in (("minimum", "min_value", False), ("exclusiveMinimum", "min_value", True)):
        if low in options:
            bounds[key] = options[low]
            bounds["strict_min"] = strict
    for high, key, strict in (("maximum", "max_value", False), ("exclusiveMaximum", "max_value", True)):
        if high in options:
            bounds[key] = options[high]
            bounds["strict_max"] = strict
    type = "expect_column_values_to_be_between"
    if bounds:
        kwargs = {"column": column, **{key: value for key, value in bounds.items() if value is not False}}
        found.add(ContractRule(f"range({column})", type, kwargs, each.line))
    name = options.get("format")
    if each.logical_type != "integer" or name is None:
        return
    if name not in _FORMATS:
        found.refuse(f"format({column})", each.line, f"no type of Spark holds all numbers of the format {name!r}")
        return
    if name != "i64":
        low_bound, high_bound = _FORMATS[name]
        kwargs = {"column": column, "min_value": low_bound, "max_value": high_bound}
        found.add(ContractRule(f"format({column})", type, kwargs, each.line))


def _conditions(
    each: Property, value: str, path: str, found: ContractRules, problems: Problems, *, top: bool
) -> Iterator[tuple[str, int, str]]:
    """Yield the name, the line and the SQL condition of each rule that a row can break, at any depth.

    value: SQL for the property's value. top: it is a column, whose other rules are expectations of their own.
    """
    options = each.options
    if not top:
        if each.required:
            yield f"required({path})", each.line, f"{value} IS NULL"
        if each.unique or each.primary_key:
            found.refuse(f"unique({path})", each.line, "only columns can be unique, not fields in them")
        if each.quality:
            found.refuse(f"quality({path})", each.line, "only columns and tables have quality rules here, not fields")
        if "minLength" in options:
            yield f"length({path})", each.line, f"length({value}) < {options['minLength']}"
        if "maxLength" in options:
            yield f"length({path})", each.line, f"length({value}) > {options['maxLength']}"
        if "pattern" in options:
            yield f"pattern({path})", each.line, f"NOT {value} RLIKE {quoted_text(str(options['pattern']))}"
    if not top or each.logical_type not in ("integer", "number"):
        yield from _range_conditions(each, value, path, problems)
    if "multipleOf" in options:
        number = _number(options["multipleOf"])
        rest = f"try_cast({value} AS DECIMAL(38, 18)) % {number}"
        yield f"multipleOf({path})", each.line, f"{value} IS NOT NULL AND coalesce({rest} <> 0, true)"
    if "minItems" in options:
        yield f"minItems({path})", each.line, f"size({value}) < {options['minItems']} AND {value} IS NOT NULL"
    if "maxItems" in options:
        yield f"maxItems({path})", each.line, f"size({value}) > {options['maxItems']}"
    if options.get("uniqueItems") is True:
        yield f"uniqueItems({path})", each.line, f"size(array_distinct({value})) <> size({value})"
    for option in ("minProperties", "maxProperties"):
        if option in options:
            found.refuse(f"{option}({path})", each.line, "a struct always has all of its fields")
    for name in options.get("required") or ():
        if name not in [below.name for below in each.properties]:
            problems.add(each.line, f"property {path}: logicalTypeOptions require {name!r}, which it does not have")
    for below in each.properties:
        inner = f"{value}.{quoted(below.column)}"
        nested = _conditions(below, inner, f"{path}.{below.column}", found, problems, top=False)
        yield from ((name, line, f"{value} IS NOT NULL AND ({broken})") for name, line, broken in nested)
    if each.items is not None:
        item = f"item{path.count('[]')}"
        nested = _conditions(each.items, item, f"{path}[]", found, problems, top=False)
        yield from ((name, line, f"exists({value}, {item} -> {broken})") for name, line, broken in nested)


def _range_conditions(each: Property, value: str, path: str, problems: Problems) -> Iterator[tuple[str, int, str]]:
    signs = {"minimum": "<", "exclusiveMinimum": "<=", "maximum": ">", "exclusiveMaximum": ">="}
    for option, sign in signs.items():
        if option not in each.options:
            continue
        bound = each.options[option]
        literal = _literal_of(each.logical_type, bound)
        if literal is None:
            problems.add(each.line, f"property {path}: {option} is {bound!r}, which is no {each.logical_type}")
        elif each.logical_type in ("date", "timestamp"):
            kind = each.logical_type.upper()
            # A text that is no date is a bad row, not a failing query.
            cast = f"try_cast({value} AS {kind})"
            yield f"range({path})", each.line, f"{value} IS NOT NULL AND coalesce({cast} {sign} {literal}, true)"
        else:
            yield f"range({path})", each.line, f"{value} {sign} {literal}"


def _literal_of(logical: str, bound: Any) -> str | None:
    """Return a bound as SQL. None: it is not a value of the type."""
    try:
        if logical in ("integer", "number"):
            return _number(bound) if isinstance(bound, int | float) and not isinstance(bound, bool) else None
        text = str(bound)
        if logical == "date":
            return f"DATE '{date.fromisoformat(text).isoformat()}'"
        if logical == "timestamp":
            return f"TIMESTAMP '{datetime.fromisoformat(text.replace('Z', '+00:00')).isoformat(' ')}'"
        return f"'{time.fromisoformat(text).isoformat()}'" if logical == "time" else None
    except ValueError:
        return None


def _number(value: float) -> str:
    """Return a number as SQL, exactly as it is written."""
    text = format(Decimal(str(value)), "f")
    return f"({text})" if text.startswith("-") else text


def _rows_where(condition: str) -> str:
    """Return the query of the rows that break a rule, as Great Expectations takes it."""
    return f"select * from {{batch}} where {_braced(condition)}"


def _braced(sql: str) -> str:
    return sql.replace("{", "{{").replace("}", "}}")


# -- quality --------------------------------------------------------------------------------------------------

_PERCENT: Final = ("percent", "percentage", "%")
_PLACEHOLDER: Final = re.compile(r"\"?'?\$?\{(\w+)\}'?\"?")
_TABLE_WORDS: Final = ("object", "table", "model", "schema")
_COLUMN_WORDS: Final = ("property", "column", "field")
_COUNT_WHERE: Final = re.compile(
    r"\s*select\s+count\s*\(\s*(?:\*|1)\s*\)\s*(?:(?:as\s+)?\w+\s+)?from\s+\{batch\}\s+where\s+(.+?)[;\s]*",
    re.IGNORECASE | re.DOTALL,
)
_ENGINES: Final = ("greatexpectations", "gx")
_SIGNS: Final = {
    "mustBe": "=",
    "mustNotBe": "<>",
    "mustBeGreaterThan": ">",
    "mustBeGreaterOrEqualTo": ">=",
    "mustBeLessThan": "<",
    "mustBeLessOrEqualTo": "<=",
}


class _Quality:
    """One quality rule, of a column or of the table."""

    def __init__(
        self,
        quality: QualityRule,
        schema: ObjectSchema,
        of: Property | None,
        columns: Mapping[str, str],
        found: ContractRules,
        problems: Problems,
    ) -> None:
        """columns: the column of each property's name."""
        self.quality = quality
        self.schema = schema
        self.of = of
        self.columns = columns
        self.found = found
        self.problems = problems
        self.subject = of.column if of is not None else schema.name
        self.name = quality.name or f"{quality.metric or quality.type}({self.subject})"

    def add(self) -> None:
        """Add what the rule asks to what is found."""
        quality = self.quality
        if quality.type == "text":
            self.found.told_only.append((self.name, "a rule of type text is documentation"))
            return
        if self.of is not None and _has_odd_name(self.of.column):
            self.found.refuse(self.name, quality.line, _ODD_NAME)
            return
        severity = _SEVERITY_WORDS.get(quality.severity.strip().casefold())
        if severity is None:
            known = ", ".join(word for word in _SEVERITY_WORDS if word)
            self.found.refuse(self.name, quality.line, f"severity {quality.severity!r} says nothing here: use {known}")
            return
        if quality.unit and quality.unit.casefold() not in (*_PERCENT, "rows"):
            self.found.refuse(self.name, quality.line, f"unit {quality.unit!r} is neither rows nor percent")
            return
        self.severity = severity
        if quality.type == "sql":
            self._add_sql()
        elif quality.type == "custom":
            self._add_custom()
        else:
            self._add_metric()

    @property
    def in_percent(self) -> bool:
        return self.quality.unit.casefold() in _PERCENT

    @property
    def allows_none(self) -> bool:
        """Whether not a single row may be counted."""
        operator, bound = self.quality.operator, self.quality.bound
        if operator == "mustBe" or (operator == "mustBeLessOrEqualTo" and self.in_percent):
            return bound is not True and bound is not False and bound == 0
        if self.in_percent or not isinstance(bound, int | float):
            return False
        return (operator == "mustBeLessThan" and 0 < bound <= 1) or (
            operator == "mustBeLessOrEqualTo" and 0 <= bound < 1
        )

    def _add(self, type: str, kwargs: Mapping[str, Any], *, all_rows: bool = False) -> None:
        quality = self.quality
        says = quality.description
        self.found.add(ContractRule(self.name, type, kwargs, quality.line, self.severity, all_rows, says))

    def _add_rows(self, condition: str) -> None:
        self._add(_ROWS_QUERY, {"unexpected_rows_query": _rows_where(condition)})

    def _add_count(self, counted: str, source: str = "{batch}") -> None:
        """Add a rule about a number. counted: an SQL aggregate. source: a table as SQL."""
        whole = "(select count(*) from {batch})"
        found = f"(select {counted} as found from {source})"
        test = self._test("found")
        if self.in_percent:
            test = self._test("found * 100", f" * greatest({whole}, 1)")
        query = f"select * from {found} where not coalesce({test}, false)"
        self._add(_ROWS_QUERY, {"unexpected_rows_query": query}, all_rows=True)

    def _test(self, found: str, times: str = "") -> str:
        """Return SQL that is true if a number is as the rule asks."""
        operator, bound = self.quality.operator, self.quality.bound
        if operator in _SIGNS:
            return f"{found} {_SIGNS[operator]} {_literal(bound)}{times}"
        low, high = (f"{_literal(each)}{times}" for each in bound)
        between = f"{found} between {low} and {high}"
        return between if operator == "mustBeBetween" else f"not ({between})"

    def _add_metric(self) -> None:
        metric = self.quality.metric
        if metric == "rowCount":
            if self.of is not None:
                self._misplaced("a table")
            elif self.in_percent:
                self.found.refuse(self.name, self.quality.line, "a number of rows has no share of the rows")
            else:
                self._add_count("count(*)")
        elif metric == "duplicateValues":
            self._add_duplicates()
        elif self.of is None:
            self._misplaced("a property")
        else:
            self._add_bad_values(metric, self.of.column)

    def _misplaced(self, where: str) -> None:
        what = f"{self.quality.metric} of {self.subject}"
        self.problems.add(self.quality.line, f"{what}: the standard has this metric only for {where}")

    def _add_bad_values(self, metric: str, column: str) -> None:
        arguments, value = self.quality.arguments, quoted(column)
        allowed = {"missingValues": ("missingValues",), "invalidValues": ("validValues", "pattern")}.get(metric, ())
        for key in arguments:
            if key not in allowed:
                message = f"{metric} of {self.subject} takes no argument {key!r}"
                self.problems.unknown(self.quality.line, message, key, allowed)
            values = arguments[key]
            if key != "pattern" and not (isinstance(values, list) and all(map(_is_plain, values))):
                self.problems.add(self.quality.line, f"{metric} of {self.subject}: {key} is not a list of plain values")
                return
            if key == "pattern" and not isinstance(values, str):
                self.problems.add(self.quality.line, f"{metric} of {self.subject}: pattern is not a text")
                return
        if metric == "nullValues":
            if self.allows_none:
                self._add(_NOT_NULL, {"column": column})
            else:
                self._add_count(_braced(f"count_if({value} is null)"))
            return
        if metric == "missingValues":
            missing = [each for each in arguments.get("missingValues") or () if each is not None]
            condition = f"{value} IS NULL"
            if missing:
                condition += f" OR {value} IN ({', '.join(map(_literal, missing))})"
        else:
            valid = [each for each in arguments.get("validValues") or () if each is not None]
            pattern = arguments.get("pattern")
            if not valid and pattern is None:
                self.problems.add(self.quality.line, f"{metric} of {self.subject} needs validValues or pattern")
                return
            if self.allows_none and pattern is None:
                self._add("expect_column_values_to_be_in_set", {"column": column, "value_set": valid})
                return
            if self.allows_none and not valid:
                self._add("expect_column_values_to_match_regex", {"column": column, "regex": pattern})
                return
            wrong = [f"{value} NOT IN ({', '.join(map(_literal, valid))})"] if valid else []
            if pattern is not None:
                wrong.append(f"NOT {value} RLIKE {quoted_text(pattern)}")
            condition = " OR ".join(wrong)
        if self.allows_none:
            self._add_rows(condition)
        else:
            self._add_count(_braced(f"count_if({condition})"))

    def _add_duplicates(self) -> None:
        names = self.quality.arguments.get("properties")
        if self.of is not None:
            columns: tuple[str, ...] = (self.of.column,)
        elif isinstance(names, list) and names:
            unknown = [name for name in names if name not in self.columns]
            for name in unknown:
                message = f"duplicateValues of {self.subject}: there is no property {name!r}"
                self.problems.unknown(self.quality.line, message, name, self.columns)
            if unknown:
                return
            columns = tuple(self.columns[name] for name in names)
            if any(map(_has_odd_name, columns)):
                self.found.refuse(self.name, self.quality.line, _ODD_NAME)
                return
        else:
            self.problems.add(self.quality.line, f"duplicateValues of {self.subject} needs the argument properties")
            return
        if self.allows_none:
            type, kwargs = _uniqueness(columns)
            self._add(type, kwargs, all_rows=True)
            return
        listed = _braced(", ".join(map(quoted, columns)))
        known = _braced(" and ".join(f"{quoted(column)} is not null" for column in columns))
        repeated = f"select {listed} from {{batch}} where {known} group by {listed} having count(*) > 1"
        self._add_count("count(*)", f"({repeated})")

    def _add_sql(self) -> None:
        query = self._query()
        if query is None:
            return
        counted = _COUNT_WHERE.fullmatch(query)
        if counted is not None and self.allows_none:
            rows = f"select * from {{batch}} where {counted[1]}"
            if row_condition_of(rows) is not None:
                self._add(_ROWS_QUERY, {"unexpected_rows_query": rows})
                return
        query = query.strip().rstrip(";").strip()
        if re.match(r"(select|with)\b", query, re.IGNORECASE) is None or ";" in query:
            self.found.refuse(self.name, self.quality.line, "the query is not a single SELECT")
            return
        if self.in_percent:
            self.found.refuse(self.name, self.quality.line, "what a query returns has no share of the rows")
            return
        test = f"select * from (select ({query}) as found) where not coalesce({self._test('found')}, false)"
        self._add(_ROWS_QUERY, {"unexpected_rows_query": test}, all_rows=True)

    def _query(self) -> str | None:
        """Return the query as Great Expectations takes it. None: it has a placeholder that nothing can fill."""
        text, parts, at = self.quality.query, [], 0
        for match in _PLACEHOLDER.finditer(text):
            word = match[1].casefold()
            parts.append(_braced(text[at : match.start()]))
            at = match.end()
            if word in _TABLE_WORDS:
                parts.append("{batch}")
            elif word in _COLUMN_WORDS and self.of is not None:
                parts.append(_braced(quoted(self.of.column)))
            elif word in _COLUMN_WORDS:
                self.problems.add(
                    self.quality.line, f"{self.name}: {match[0]} is for rules of a property, not of a table"
                )
                return None
            elif word.isdigit():  # a regular expression in the query
                parts.append(_braced(match[0]))
            else:
                why = f"nothing here fills {match[0]}: use {{object}} and {{property}}"
                self.found.refuse(self.name, self.quality.line, why)
                return None
        parts.append(_braced(text[at:]))
        query = "".join(parts)
        if "{batch}" not in query:
            self.found.refuse(
                self.name, self.quality.line, "the query does not read {object}: it says nothing of these rows"
            )
            return None
        return query

    def _add_custom(self) -> None:
        quality = self.quality
        engine = re.sub(r"[-_ ]", "", quality.engine).casefold()
        if engine not in _ENGINES:
            why = f"engine {quality.engine!r} is not here: write it as a metric, as sql, or for greatExpectations"
            self.found.refuse(self.name, quality.line, why)
            return
        written = quality.implementation
        assert written is not None, "it is required for this type"
        if isinstance(written.value, str):
            inner = Problems(self.problems.path)
            written = _moved(load_yaml(written.value, inner), written.line)
            if inner:
                self.problems.add(quality.line, f"{self.name}: its implementation is not YAML")
                return
        expectations = written.value if isinstance(written.value, list) else [written]
        for expectation in expectations:
            self._add_expectation(expectation)

    def _add_expectation(self, item: ValueOnLine) -> None:
        plain = item.plain()
        if not isinstance(plain, dict) or not isinstance(plain.get("type"), str):
            self.problems.add(item.line, f"{self.name}: its implementation has no type, as in 'type: expect_…'")
            return
        kwargs = plain.get("kwargs") or {}
        if not isinstance(kwargs, dict):
            self.problems.add(item.line, f"{self.name}: its kwargs are not a mapping")
            return
        kind = CATALOGUE.get(plain["type"])
        if kind is not None and self.of is not None and "column" in kind.arguments and "column" not in kwargs:
            kwargs = {"column": self.of.column, **kwargs}
        per_row = kind is not None and kind.how in (ColumnSource.ROWS, ColumnSource.SCHEMA)
        per_row = per_row or row_condition_of(kwargs.get("unexpected_rows_query")) is not None
        self._add(plain["type"], kwargs, all_rows=not per_row or kwargs.get("mostly", 1) != 1)


def _moved(item: ValueOnLine, by: int) -> ValueOnLine:
    """Return a value of a text within a file, on its lines in the file."""
    value = item.value
    if isinstance(value, dict):
        value = {key: _moved(each, by) for key, each in value.items()}
    elif isinstance(value, list):
        value = [_moved(each, by) for each in value]
    return ValueOnLine(value, item.line + by)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | date) or is_number(value)


def _literal(value: Any) -> str:
    """Return a value of a contract as SQL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat(' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    return quoted_text(str(value))
