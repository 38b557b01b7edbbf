"""Expectations of the user's own: what their classes say, read from the modules' source.

A suite is checked wherever a pipeline is, and a module of expectations imports Great Expectations, which takes six
seconds. So until rows are judged such modules are only read: which classes they have, which class of Great Expectations
each one extends, and what it adds.

    class ExpectKnownCountry(gxe.ExpectColumnValuesToBeInSet):
        value_set: list = ["AT", "DE", "CH"]
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidegate.errors import Invalid
from tidegate.gates.expectations.catalogue import CATALOGUE, ColumnSource, Kind

__all__ = ["kinds_with", "sources_of", "type_of"]

_ROWS: Final = "a class of yours; its condition runs with all others"
_WHOLE: Final = "a class of yours; Great Expectations runs it"


def _custom_kind(how: ColumnSource, *arguments: str, optional: tuple[str, ...] = ()) -> Kind:
    why = _ROWS if how is ColumnSource.ROWS else _WHOLE
    return Kind(how, arguments, optional, why=why, reads_any_column=True)


_BASES: Final[Mapping[str, Kind]] = {
    "ColumnMapExpectation": _custom_kind(ColumnSource.ROWS, "column", optional=("mostly",)),
    "ColumnPairMapExpectation": _custom_kind(
        ColumnSource.ROWS, "column_A", "column_B", optional=("mostly", "ignore_row_if")
    ),
    "MulticolumnMapExpectation": _custom_kind(ColumnSource.ROWS, "column_list", optional=("mostly", "ignore_row_if")),
    "ColumnAggregateExpectation": _custom_kind(ColumnSource.THROUGH, "column"),
    "BatchExpectation": _custom_kind(ColumnSource.THROUGH),
}
"""Classes of Great Expectations that are extended, and that are no expectations themselves."""
_SAY_WHAT_IS_READ: Final = ("column", "column_A", "column_B", "column_list", "unexpected_rows_query")
_FIXED: Final = ("map_metric", "metric_dependencies", "success_keys", "domain_keys", "args_keys", "description")


@dataclass(frozen=True)
class _Class:
    """One class, as its source says."""

    name: str
    where: str
    bases: tuple[str, ...]
    fields: Mapping[str, ast.expr | None]
    """Its fields, and their defaults, if they have any."""


def type_of(class_name: str) -> str:
    """Return the type of a class of this name, as Great Expectations forms it."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def sources_of(modules: Sequence[str]) -> dict[str, str]:
    """Return the source of each module, by its name. Raise Invalid if there is none."""
    return {name: _source_of(name).read_text(encoding="utf-8") for name in modules}


def kinds_with(modules: Sequence[str]) -> Mapping[str, Kind]:
    """Return the catalogue, with the expectations that these modules define. Raise Invalid for what cannot be read."""
    if not modules:
        return CATALOGUE
    classes: dict[str, _Class] = {}
    for module, source in sources_of(modules).items():
        for found in _classes_in(module, source):
            classes[found.name] = found
    kinds = dict(CATALOGUE)
    for name in classes:
        kind = _kind_of(name, classes, ())
        if kind is not None and type_of(name) not in CATALOGUE:
            kinds[type_of(name)] = kind
    if len(kinds) == len(CATALOGUE):
        raise _unreadable(
            f"{', '.join(modules)} defines no expectation",
            "classes that extend one of Great Expectations', at module level",
        )
    return kinds


def _source_of(module: str) -> Path:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError) as error:
        raise _unreadable(f"there is no module {module!r}: {error}", "a module that this project can import") from error
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise _unreadable(f"there is no module {module!r} of Python", "a module that this project can import")
    return Path(spec.origin)


def _classes_in(module: str, source: str) -> Iterator[_Class]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise _unreadable(f"{module} line {error.lineno}: {error.msg}", "a module that Python can read") from error
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields: dict[str, ast.expr | None] = {}
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                if "ClassVar" not in ast.unparse(each.annotation):
                    fields[each.target.id] = each.value
            elif isinstance(each, ast.Assign):
                fields |= {target.id: each.value for target in each.targets if isinstance(target, ast.Name)}
        bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
        yield _Class(node.name, f"{module} line {node.lineno}", bases, fields)


def _kind_of(name: str, classes: Mapping[str, _Class], within: tuple[str, ...]) -> Kind | None:
    """Return the kind of a class. None: it is no expectation."""
    if name not in classes:
        return _BASES.get(name) or CATALOGUE.get(type_of(name))
    if name in within:
        return None
    found = classes[name]
    inherited = (_kind_of(base, classes, (*within, name)) for base in found.bases)
    kind = next((each for each in inherited if each is not None), None)
    return _extended(kind, found) if kind is not None else None


def _extended(kind: Kind, found: _Class) -> Kind:
    """Return the kind of a class that extends one of this kind."""
    known = {*kind.arguments, *kind.optional}
    fields = {name: value for name, value in found.fields.items() if not name.startswith("_") and name not in _FIXED}
    defaults = dict(kind.defaults)
    for name in fields.keys() & set(_SAY_WHAT_IS_READ):
        value = fields[name]
        if value is None:
            continue
        try:
            defaults[name] = ast.literal_eval(value)
        except ValueError as error:
            raise _unreadable(
                f"{found.where}: {found.name} has a default for {name} that is not written out",
                "a plain text or a list of texts, since it says which rows and columns are read",
            ) from error
    optional = {name for name, value in fields.items() if value is not None}
    required = [name for name in kind.arguments if name not in optional]
    required += [name for name, value in fields.items() if value is None and name not in known]
    also = [name for name in (*kind.arguments, *kind.optional, *fields) if name not in required]
    why = kind.why or "as the class that yours extends"
    return replace(kind, arguments=tuple(required), optional=tuple(dict.fromkeys(also)), defaults=defaults, why=why)


def _unreadable(what: str, expected: str) -> Invalid:
    return Invalid(f"modules: {what}", expected=expected, help="correct modules=[…] of the gate", reason="BAD_SUITE")
