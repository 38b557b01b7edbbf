"""Finds, in records of JSON, what does not fit the schema, and keeps it as JSON beside the row.

A misfit has a path, such as `customer.vip`, a kind and a value:

    new    a key that the schema lacks
    case   a key that differs from a column in nothing but case: Spark's reader takes the two for different
    type   a value that its column cannot hold

A list or a map with a misfit in any of its elements is one misfit as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate.connectors.files.formats.exact_values import as_declared, doubt, doubt_of, inner_types
from tidegate.connectors.files.formats.plain_records import is_plain_record
from tidegate.connectors.schema.ddl import Column as Field
from tidegate.connectors.schema.drift import MAX_KNOWN_COLUMNS, SchemaPolicy, Survey, common_type, type_of_variant
from tidegate.connectors.schema.widening import wider_type
from tidegate.records.names import field_of, free_name, quoted
from tidegate.records.records import Drift, FoundColumn
from tidegate.spark.refusals.malformed_record import MISFIT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "EXACT_IN_DOUBLES",
    "NO_MISFITS",
    "Names",
    "is_plain_for",
    "rescued_json",
    "rounds",
    "rows_without_misfits",
    "sql_literal",
    "summarize",
    "with_misfits",
]


@dataclass(frozen=True)
class Names:
    """The names of the columns with the results of each record's checks. They differ from all columns of the rows."""

    text: str
    why: str
    misfits: str
    place: str
    """The column with the record's file."""

    @staticmethod
    def beside(columns: Sequence[Field]) -> Names:
        """Return names that none of these columns has."""
        used = [column.name for column in columns]
        return Names(*(free_name(f"_{name}_", used) for name in ("text", "why", "misfits", "place")))


_MEMBERS: Final = "map<string,variant>"
_MISFITS: Final = "array<struct<path:string,kind:string,value:variant>>"
NO_MISFITS: Final = f"cast(array() AS {_MISFITS})"


def with_misfits(
    frame: DataFrame, columns: Sequence[Field], policy: SchemaPolicy, parser: Mapping[str, str], names: Names
) -> DataFrame:
    """Add the misfits of each record that the policy rescues. Why it is malformed is null then, unless it is more.

    frame: the result of `parse_records`, whose keys were not judged.
    """
    from pyspark.sql import functions as F

    text, why, misfits = (quoted(name) for name in (names.text, names.why, names.misfits))
    found = _misfits_of(text, columns, parser, policy)
    is_odd = F.col(why).isNull() & ~is_plain_for(text, columns, policy, parser)
    is_fine = F.col(why).isNull() & F.col(text).isNotNull()
    all_misfits = F.when(is_odd | (F.col(why) == ""), F.expr(found)).when(is_fine, F.expr(NO_MISFITS))
    frame = frame.withColumn(names.misfits, all_misfits)
    # Its members cannot be named, for example if an object in it has a key twice, so they cannot be kept.
    is_unnamed = f"{why} IS NULL AND {text} IS NOT NULL AND {misfits} IS NULL"
    frame = frame.withColumn(names.why, F.expr(f"CASE WHEN {is_unnamed} THEN '' ELSE {why} END"))
    if policy.rescues_types:
        # Spark's parser calls a record malformed if one of its values does not fit. If such values can be named, it is
        # not.
        has_types = f"exists({misfits}, e -> e.kind = 'type')"
        frame = frame.withColumn(names.why, F.expr(f"CASE WHEN {why} = '' AND {has_types} THEN NULL ELSE {why} END"))
    else:
        flaw = f"CASE WHEN {doubt(list(columns))} THEN '{MISFIT}' END"
        frame = frame.withColumn(names.why, F.expr(f"coalesce({why}, {flaw})"))
    if not policy.rescues_keys:
        strange = "e.kind = 'case'" if policy.on_new_column == "ignore" else "e.kind != 'type'"
        flaw = f"CASE WHEN {why} IS NULL AND exists({misfits}, e -> {strange}) THEN 'keys' ELSE {why} END"
        frame = frame.withColumn(names.why, F.expr(flaw))
        frame = frame.withColumn(names.misfits, F.expr(f"filter({misfits}, e -> e.kind = 'type')"))
    return frame.withColumn(names.misfits, F.when(F.col(why).isNull(), F.col(misfits)))


def is_plain_for(text: str, columns: Sequence[Field], policy: SchemaPolicy, parser: Mapping[str, str]) -> Column:
    """Return whether it is certain, by the shape of a record, that there is nothing to rescue. text: a quoted name."""
    from pyspark.sql import functions as F

    if policy.rescues_types and parser:
        return F.lit(False)  # options, such as dateFormat, change what a column can hold
    all_keys_known = policy.on_new_column != "ignore"
    return is_plain_record(
        F.col(text),
        columns,
        all_keys_known=all_keys_known,
        values_fit=policy.rescues_types,
        doubles_are_exact=policy.on_type == "widen",
    )


def _misfits_of(text: str, columns: Sequence[Field], parser: Mapping[str, str], policy: SchemaPolicy) -> str:
    """Return SQL for the misfits of a record in the order of their paths, or null if the text is no JSON object.

    text: SQL for the record. The frame also has the columns as they were read.
    """
    options = ", ".join(f"'{_escaped(key)}', '{_escaped(value)}'" for key, value in parser.items())
    members = f"from_json({text}, '{_MEMBERS}', map('mode', 'PERMISSIVE'{', ' + options if options else ''}))"
    variables = _Variables.beside(columns)
    m = variables.at("m", 0)
    found = _misfits_of_object(m, [(column, quoted(column.name)) for column in columns], "", policy, variables, 1)
    # A lambda over a list of one element computes the members once.
    return f"CASE WHEN {members} IS NOT NULL THEN element_at(transform(array({members}), {m} -> {found}), 1) END"


@dataclass(frozen=True)
class _Variables:
    """The names of lambdas' variables. A column of the same name would be hidden in the lambda."""

    prefix: str

    @staticmethod
    def beside(columns: Sequence[Field]) -> _Variables:
        """Return names that begin with more underscores than any of these columns."""
        most = max(len(column.name) - len(column.name.lstrip("_")) for column in columns)
        return _Variables("_" * (most + 1))

    def at(self, name: str, depth: int) -> str:
        """Return the name of a variable in a lambda that is nested in so many others."""
        return f"{self.prefix}{name}{depth}"


def rescued_json(misfits: str) -> str:
    """Return SQL for one JSON object with the values of these misfits by path, or null if there are none."""
    members = f"transform({misfits}, e -> to_json(map(e.path, e.value)))"
    inner = f"array_join(transform({members}, j -> substring(j, 2, length(j) - 2)), ',')"
    return f"CASE WHEN size({misfits}) > 0 THEN concat('{{', {inner}, '}}') END"


def rows_without_misfits(columns: Sequence[Field], policy: SchemaPolicy, names: Names) -> list[str]:
    """Return SQL for the declared columns, with null in place of each value that its column cannot hold."""
    misfits, selected = quoted(names.misfits), []
    for column, sql in zip(columns, as_declared(list(columns)), strict=True):
        condition = doubt_of(column)
        if rounds(column, policy):  # the value that was read does not show it
            is_misfit = f"e -> e.kind = 'type' AND e.path = {sql_literal(column.name)}"
            condition = f"coalesce(exists({misfits}, {is_misfit}), false)"
        name = quoted(column.name)
        value = sql.removesuffix(f" AS {name}")
        selected.append(f"CASE WHEN NOT {condition} THEN {value} END AS {name}" if condition else f"{value} AS {name}")
    return selected


def summarize(
    frame: DataFrame, columns: Sequence[Field], policy: SchemaPolicy, names: Names, *, types: str | None = None
) -> Survey:
    """Return what the records of a frame have that does not fit, in one query.

    frame: the result of `with_misfits`. types: SQL for the type of a column that holds a misfit `e`, if its value does
        not show it as JSON does.
    """
    from pyspark.sql import functions as F

    misfits, why = quoted(names.misfits), quoted(names.why)

    any_kind = f"if({why} IS NULL, 'any', 'malformed')"
    with_type = ", 'type', ''" if types else ""
    any_misfit = f"named_struct('path', '', 'kind', {any_kind}, 'value', parse_json('null'){with_type})"
    none = f"filter(array({any_misfit}), e -> false)"
    is_odd = f"{why} IS NOT NULL OR size({misfits}) > 0"
    with_any = f"CASE WHEN {is_odd} THEN concat(coalesce({misfits}, {none}), array({any_misfit})) ELSE {none} END"
    rows = (
        frame.select(F.explode(F.expr(with_any)).alias("e"), F.col(quoted(names.place)).alias("file"))
        .selectExpr(
            "e.path AS path",
            "e.kind AS kind",
            f"{types or _type_name('e.value')} AS type",
            "file",
            *(f"{sql} AS {name}" for name, sql in _figures("e.value").items()),
        )
        .groupBy("path", "kind", "type")
        .agg(
            F.count("*").alias("records"),
            F.min("file").alias("file"),
            F.max("digits").alias("digits"),
            F.max("places").alias("places"),
            F.max("rounded").alias("rounded"),
        )
        .orderBy(F.expr("path = ''").desc(), F.desc("records"), "path", "kind", "type")
        .limit(MAX_KNOWN_COLUMNS + 1)
        .collect()
    )
    records = malformed = 0
    found: dict[tuple[str, str], FoundColumn] = {}
    widened: dict[str, str] = {}
    declared = {column.name: column.type for column in columns} if policy.on_type == "widen" else {}
    rounded = {row.path for row in rows if row.kind == "type" and row.rounded}
    # A double holds the whole numbers that were too large for an int, too, so it comes first.
    for row in sorted(rows, key=lambda row: row.type not in ("DOUBLE", "FRACTION", "double")):
        if not row.path and row.kind in ("any", "malformed"):
            records += row.records if row.kind == "any" else 0
            malformed += row.records if row.kind == "malformed" else 0
            continue
        kind = row.type if types else type_of_variant(row.type)
        column = FoundColumn(path=row.path, kind=row.kind, type=kind, records=row.records, file=row.file)
        known = found.get((row.path, row.kind))
        if known is not None:
            column = FoundColumn(
                path=row.path,
                kind=row.kind,
                type=common_type(known.type, column.type),
                records=known.records + column.records,
                file=min(known.file, column.file),
            )
        found[row.path, row.kind] = column
        if row.kind == "type" and row.path in declared:
            before = widened.get(row.path, declared[row.path])
            is_exact = row.type not in ("DOUBLE", "double")
            needed = _type_of_numbers(before, kind, row.digits, row.places) if is_exact else kind
            wider = wider_type(before, needed)
            if wider is not None and not (wider == "double" and row.path in rounded):
                widened[row.path] = wider
    for path, kind in widened.items():
        found[path, "type"] = msgspec.structs.replace(found[path, "type"], wider=kind)
    more = 1 if len(rows) > MAX_KNOWN_COLUMNS else 0
    drift = Drift(found=sorted(found.values(), key=_path_and_kind), records=records, more=more) if found else None
    return Survey(drift, is_clean=not found and not malformed)


def _path_and_kind(column: FoundColumn) -> tuple[str, str]:
    return column.path, column.kind


def _type_name(value: str) -> str:
    """Return SQL for the type of a value, without the figures and fields that make many names of one type."""
    name = f"schema_of_variant({value})"
    plain = f"regexp_replace({name}, 'DECIMAL[(][0-9]+,0[)]', 'INTEGER')"
    plain = f"regexp_replace({plain}, 'DECIMAL[(][0-9]+,[0-9]+[)]', 'FRACTION')"
    return f"CASE WHEN rlike({name}, 'OBJECT|VARIANT') THEN 'OBJECT' ELSE {plain} END"


_NUMBER: Final = "^-?[0-9]+([.][0-9]+)?$"


def _figures(value: str) -> dict[str, str]:
    """Return SQL for how many figures a number has before its point, and how many behind it. Null if unknown.

    rounded: whether it is a whole number that a double might round.
    """
    text = f"to_json({value})"
    whole = f"length(regexp_extract({text}, '^-?0*([0-9]*)', 1))"
    places = f"length(regexp_extract({text}, '[.]([0-9]*[1-9])', 1))"
    is_number = f"rlike({text}, '{_NUMBER}')"
    return {
        "digits": f"CASE WHEN {is_number} THEN {whole} END",
        "places": f"CASE WHEN {is_number} THEN {places} END",
        "rounded": _is_rounded(value),
    }


EXACT_IN_DOUBLES: Final = 2**53
"""Doubles hold all whole numbers up to this one, and only some of the larger ones."""


def _is_rounded(value: str) -> str:
    """Return SQL that is true for a whole number that a double might round. value: SQL for a variant."""
    text = f"to_json({value})"
    number = f"try_cast({text} AS decimal(38,0))"
    return f"coalesce(rlike({text}, '^-?[0-9]+([.]0+)?$') AND abs({number}) > {EXACT_IN_DOUBLES}, false)"


def rounds(column: Field, policy: SchemaPolicy) -> bool:
    """Return whether whole numbers that a column might round are rescued: it may have been one of whole numbers."""
    return column.type == "double" and policy.on_type == "widen"


def _type_of_numbers(column: str, kind: str, digits: int | None, places: int | None) -> str:
    """Return the type of values of this kind for a column of a given type. For a decimal, their figures decide."""
    if not column.startswith("decimal") or digits is None or places is None:
        return kind
    return f"decimal({digits + places},{places})"


def _misfits_of_object(
    members: str,
    columns: Sequence[tuple[Field, str]],
    prefix: str,
    policy: SchemaPolicy,
    variables: _Variables,
    depth: int,
) -> str:
    """Return SQL for the misfits of one object. columns: its fields, each with SQL for the value that was read."""
    names = [column.name for column, _ in columns]
    listed = f"array({', '.join(sql_literal(name) for name in names)})"
    in_lower_case = f"array({', '.join(sql_literal(name.lower()) for name in names)})"
    e = variables.at("e", depth)
    if policy.on_new_column == "ignore":  # then a key is dropped, unless it stands for a column that is not there
        n = variables.at("n", depth)
        missing = f"filter({listed}, {n} -> NOT map_contains_key({members}, {n}))"
        in_lower_case = f"transform({missing}, {n} -> lower({n}))"
    kind = f"if(array_contains({in_lower_case}, lower({e}.key)), 'case', 'new')"
    path = f"concat({sql_literal(prefix)}, {e}.key)"
    unknown = (
        f"transform(filter(map_entries({members}), {e} -> NOT array_contains({listed}, {e}.key)), "
        f"{e} -> named_struct('path', {path}, 'kind', {kind}, 'value', {e}.value))"
    )
    parts = [f"coalesce({unknown}, {NO_MISFITS})"]
    for column, read in columns:
        value = f"try_element_at({members}, {sql_literal(column.name)})"
        part = _misfits_of_value(value, column, read, f"{prefix}{column.name}", policy, variables, depth)
        if part:
            parts.append(part)
    return f"concat({', '.join(parts)})" if len(parts) > 1 else parts[0]


def _misfits_of_value(
    value: str, column: Field, read: str, path: str, policy: SchemaPolicy, variables: _Variables, depth: int
) -> str:
    outer, inner = inner_types(column.type)
    whole = f"array(named_struct('path', {sql_literal(path)}, 'kind', '%s', 'value', {value}))"
    is_there = f"{value} IS NOT NULL AND NOT is_variant_null({value})"
    cases = []
    if policy.rescues_types:
        doubt = doubt_of(column, read)
        unread = f"{read} IS NULL" + (f" OR {doubt}" if doubt else "")
        if depth == 1 and rounds(column, policy):
            unread += f" OR {_is_rounded(value)}"
        cases.append(f"WHEN {is_there} AND ({unread}) THEN {whole % 'type'}")
    if outer == "struct":
        m = variables.at("m", depth)
        fields = [(field, field_of(read, field.name)) for field in inner]
        found = _misfits_of_object(m, fields, f"{path}.", policy, variables, depth + 1)
        members = f"try_variant_get({value}, '$', '{_MEMBERS}')"
        cases.append(f"WHEN {is_there} THEN element_at(transform(array({members}), {m} -> {found}), 1)")
    elif outer in ("array", "map") and _has_fields(inner[-1].type):
        kinds = _kinds_in_elements(value, column, read, policy, variables, depth)
        cases.append(f"WHEN array_contains({kinds}, 'type') THEN {whole % 'type'}")
        cases.append(f"WHEN size({kinds}) > 0 THEN {whole % 'new'}")
    return f"CASE {' '.join(cases)} ELSE {NO_MISFITS} END" if cases else ""


def _kinds_in_elements(
    value: str, column: Field, read: str, policy: SchemaPolicy, variables: _Variables, depth: int
) -> str:
    """Return SQL for the kinds of all misfits in the elements of a list or map of objects.

    Spark reads such an element even if one of its fields does not fit, with null in its place.
    """
    outer, inner = inner_types(column.type)
    x, i, k = (variables.at(name, depth) for name in ("x", "i", "k"))
    if outer == "array":
        elements, element, read_element = f"try_variant_get({value}, '$', 'array<variant>')", x, f"get({read}, {i})"
    else:
        elements = f"map_entries(try_variant_get({value}, '$', '{_MEMBERS}'))"
        element, read_element = f"{x}.value", f"try_element_at({read}, {x}.key)"
    field = Field("element", inner[-1].type)
    found = _misfits_of_value(element, field, read_element, "", policy, variables, depth + 1)
    return f"flatten(transform({elements}, ({x}, {i}) -> transform({found}, {k} -> {k}.kind)))"


def _has_fields(kind: str) -> bool:
    outer, inner = inner_types(kind)
    return outer == "struct" or any(_has_fields(part.type) for part in inner)


def sql_literal(text: str) -> str:
    """Return a text as SQL."""
    return f"'{_escaped(text)}'"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
