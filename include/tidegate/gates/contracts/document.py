"""Contracts of the Open Data Contract Standard 3, read strictly: schema, rules, service levels, team.

    apiVersion: v3.1.0
    kind: DataContract
    id: orders
    version: 1.0.0
    status: active
    schema:
      - name: orders
        properties:
          - {name: order_id, logicalType: integer, required: true, primaryKey: true}

What the standard does not know is an error with file and line. Sections that nothing here uses, such as servers and
prices, are not looked into.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import Invalid
from tidegate.gates import declared_files
from tidegate.gates.expectations.checking import Problems, ValueOnLine
from tidegate.gates.expectations.yaml_lines import load_yaml
from tidegate.records.place import Place

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = [
    "LOGICAL_TYPES",
    "OPERATORS",
    "ContractDocument",
    "ContractProblems",
    "ObjectSchema",
    "Property",
    "QualityRule",
    "ServiceLevel",
    "contract_path",
    "every_property",
    "is_number",
    "read_contract",
    "read_contract_text",
]

LOGICAL_TYPES: Final = ("string", "date", "timestamp", "time", "number", "integer", "object", "array", "boolean")
OPERATORS: Final = (
    *("mustBe", "mustNotBe", "mustBeGreaterThan", "mustBeGreaterOrEqualTo", "mustBeLessThan", "mustBeLessOrEqualTo"),
    *("mustBeBetween", "mustNotBeBetween"),
)
METRICS: Final = ("nullValues", "missingValues", "invalidValues", "duplicateValues", "rowCount")
_VERSIONS: Final = ("v3.0.0", "v3.0.1", "v3.0.2", "v3.1.0")
_TYPES: Final = ("library", "sql", "custom", "text")

_CONTRACT: Final = (
    *("version", "kind", "apiVersion", "id", "name", "tenant", "tags", "status", "servers", "dataProduct"),
    *("description", "domain", "schema", "support", "price", "team", "roles", "slaDefaultElement", "slaProperties"),
    *("authoritativeDefinitions", "customProperties", "contractCreatedTs"),
)
_ELEMENT: Final = (
    *("id", "name", "physicalName", "physicalType", "description", "businessName", "authoritativeDefinitions", "tags"),
    *("customProperties", "logicalType", "properties", "relationships", "quality"),
)
_OBJECT: Final = (*_ELEMENT, "dataGranularityDescription")
_PROPERTY: Final = (
    *(*_ELEMENT, "primaryKey", "primaryKeyPosition", "logicalTypeOptions", "required", "unique", "partitioned"),
    *("partitionKeyPosition", "classification", "encryptedName", "transformSourceObjects", "transformLogic"),
    *("transformDescription", "examples", "criticalDataElement", "items"),
)
_QUALITY: Final = (
    *("id", "name", "description", "type", "metric", "rule", "arguments", *OPERATORS, "unit", "query", "engine"),
    *("implementation", "dimension", "method", "severity", "businessImpact", "customProperties", "tags"),
    *("authoritativeDefinitions", "scheduler", "schedule"),
)
_SERVICE_LEVEL: Final = (
    *("id", "property", "value", "valueExt", "unit", "element", "driver", "description", "scheduler", "schedule"),
)
_TEAM: Final = ("id", "name", "description", "members", "tags", "customProperties", "authoritativeDefinitions")
_MEMBER: Final = (
    *("id", "username", "name", "description", "role", "dateIn", "dateOut", "replacedByUsername", "tags"),
    *("customProperties", "authoritativeDefinitions"),
)
_ABOUT: Final = ("usage", "purpose", "limitations", "authoritativeDefinitions", "customProperties")

_RANGE: Final = ("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum")
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "date": ("format", *_RANGE),
    "timestamp": ("format", "timezone", "defaultTimezone", *_RANGE),
    "time": ("format", "timezone", "defaultTimezone", *_RANGE),
    "integer": ("multipleOf", "format", *_RANGE),
    "number": ("multipleOf", "format", *_RANGE),
    "object": ("maxProperties", "minProperties", "required"),
    "array": ("maxItems", "minItems", "uniqueItems"),
    "boolean": (),
}
_SIZES: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


class ContractProblems(Problems):
    """The problems of one contract."""

    expected = "a contract of the Open Data Contract Standard 3, in which every word is understood"
    help = "correct the file; `tidegate contract check` reads it alone"
    reason = "BAD_CONTRACT"


@dataclass(frozen=True)
class QualityRule:
    """One entry of a `quality` list."""

    name: str
    """Its id, or else its name. Empty: it has neither."""
    type: str
    metric: str
    arguments: Mapping[str, Any]
    operator: str
    """One of OPERATORS. Empty: it has none."""
    bound: Any
    unit: str
    query: str
    engine: str
    implementation: ValueOnLine | None
    severity: str
    description: str
    line: int


@dataclass(frozen=True)
class Property:
    """A column, a field of one, or what an array holds."""

    name: str
    """Empty for what an array holds."""
    column: str
    """Its physical name, or else its name."""
    logical_type: str
    physical_type: str
    options: Mapping[str, Any]
    required: bool
    unique: bool
    primary_key: bool
    key_position: int
    description: str
    business_name: str
    classification: str
    properties: tuple[Property, ...]
    items: Property | None
    quality: tuple[QualityRule, ...]
    has_relationships: bool
    line: int


@dataclass(frozen=True)
class ObjectSchema:
    """One entry of `schema`: a table."""

    name: str
    physical_name: str
    description: str
    business_name: str
    properties: tuple[Property, ...]
    quality: tuple[QualityRule, ...]
    has_relationships: bool
    line: int

    @property
    def key(self) -> tuple[Property, ...]:
        """The properties of the primary key, in its order."""
        return tuple(sorted((each for each in self.properties if each.primary_key), key=lambda each: each.key_position))


@dataclass(frozen=True)
class ServiceLevel:
    """One entry of `slaProperties`."""

    property: str
    value: Any
    unit: str
    element: str
    line: int


@dataclass(frozen=True)
class ContractDocument:
    """One contract."""

    path: str
    id: str
    version: str
    status: str
    name: str = ""
    domain: str = ""
    purpose: str = ""
    usage: str = ""
    limitations: str = ""
    team: str = ""
    owner: str = ""
    """The member of the team whose role is owner."""
    schemas: tuple[ObjectSchema, ...] = ()
    service_levels: tuple[ServiceLevel, ...] = ()
    plain: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """All that the file says."""

    def schema(self, name: str | None) -> ObjectSchema:
        """Return the schema object with this name, or the only one. Raise Invalid if there is none."""
        names = [each.name for each in self.schemas]
        if name is None and len(self.schemas) == 1:
            return self.schemas[0]
        for each in self.schemas:
            if name is not None and name in (each.name, each.physical_name):
                return each
        if not names:
            what = f"{self.path} has no schema, so there is nothing to keep"
        elif name is None:
            what = f"{self.path} has {len(names)} schema objects"
        else:
            what = f"{self.path} has no schema object {name!r}"
        raise Invalid(
            what,
            expected=f"one of {', '.join(names)}" if names else "a schema with at least one object",
            help=f'name it, as in Contract("…", schema={names[0]!r})' if names else "write the table under `schema`",
            reason="BAD_CONTRACT",
        )


def contract_path(place: Place, path: str) -> Path:
    """Return where a contract's file is. Raise Invalid if it is not on this machine."""
    return declared_files.local_path(place, path, f"contract {path!r}", "BAD_CONTRACT")


def read_contract_text(path: Path) -> str:
    """Return the text of a contract's file. Raise Invalid if it cannot be read."""
    return declared_files.read_text(
        path,
        "contract",
        expected="a YAML file of the Open Data Contract Standard",
        help="correct the path, or start one: `tidegate contract export`",
        reason="BAD_CONTRACT",
    )


def read_contract(text: str, path: str) -> ContractDocument:
    """Read a contract from a text. Raise Invalid with all problems of it. Messages call it by `path`."""
    problems = ContractProblems(path)
    loaded = load_yaml(text, problems)
    document = None
    if not problems and not _is_of_another_version(loaded, problems):
        document = _PartsReader(problems).contract(loaded, path)
    problems.raise_if_any()
    assert document is not None
    return document


def _is_of_another_version(loaded: ValueOnLine, problems: Problems) -> bool:
    """Add the problem that the file is not a contract of a version that is read here."""
    if not isinstance(loaded.value, dict):
        problems.add(loaded.line, "it is no contract: it has no apiVersion and no schema")
        return True
    contract = loaded.value
    if "apiVersion" not in contract:
        if "dataContractSpecification" in contract:
            what = "it is of the Data Contract Specification, not of the Open Data Contract Standard"
            problems.add(contract["dataContractSpecification"].line, f"{what}: convert it with `datacontract export`")
        else:
            problems.add(loaded.line, f"it has no apiVersion: write apiVersion: {_VERSIONS[-1]}")
        return True
    version, line = contract["apiVersion"].plain(), contract["apiVersion"].line
    if version in _VERSIONS:
        return False
    if str(version).lstrip("v").startswith("2"):
        problems.add(line, f"apiVersion {version} is the old form, with `dataset` and `columns`: migrate it to v3")
    else:
        problems.add(line, f"apiVersion {version!r} is not read here; known are {', '.join(_VERSIONS)}")
    return True


class _PartsReader:
    """Reads the parts of one contract, and collects their problems."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def contract(self, loaded: ValueOnLine, path: str) -> ContractDocument:
        parts = self._mapping(loaded, "the contract", _CONTRACT)
        for key in ("version", "kind", "id", "status"):
            if key not in parts:
                self.problems.add(loaded.line, f"it has no {key}, which the standard requires")
        if "kind" in parts and parts["kind"].plain() != "DataContract":
            self.problems.add(parts["kind"].line, f"kind is {parts['kind'].plain()!r}, not DataContract")
        about = self._mapping(parts["description"], "description", _ABOUT) if "description" in parts else {}
        team, owner = self._team(parts)
        schemas = tuple(self._object(item) for item in self._list(parts, "schema", "the contract"))
        self._refuse_twins([(each.name, each.line) for each in schemas], "schema object")
        levels = tuple(self._service_level(item) for item in self._list(parts, "slaProperties", "the contract"))
        return ContractDocument(
            path,
            self._text(parts, "id"),
            self._text(parts, "version"),
            self._text(parts, "status"),
            self._text(parts, "name"),
            self._text(parts, "domain"),
            self._text(about, "purpose"),
            self._text(about, "usage"),
            self._text(about, "limitations"),
            team,
            owner,
            schemas,
            levels,
            loaded.plain(),
        )

    def _team(self, parts: Mapping[str, ValueOnLine]) -> tuple[str, str]:
        """Return the names of the team and of its owner."""
        if "team" not in parts or parts["team"].plain() is None:
            return "", ""
        name, members = "", parts["team"]
        if isinstance(members.value, dict):
            team = self._mapping(members, "team", _TEAM)
            name = self._text(team, "name")
            members = team.get("members", ValueOnLine([], members.line))
        if not isinstance(members.value, list):
            self.problems.add(members.line, "team is neither a mapping nor a list of members")
            return name, ""
        owner = ""
        for item in members.value:
            member = self._mapping(item, "a member of the team", _MEMBER)
            role = self._text(member, "role").casefold()
            if "owner" in role and not self._text(member, "dateOut"):
                owner = owner or self._text(member, "name") or self._text(member, "username")
        return name, owner

    def _object(self, item: ValueOnLine) -> ObjectSchema:
        parts = self._mapping(item, "a schema object", _OBJECT)
        name = self._name(parts, item, "a schema object")
        title = f"schema object {name}"
        kind = self._text(parts, "logicalType")
        if kind not in ("", "object"):
            self.problems.add(parts["logicalType"].line, f"{title}: logicalType is {kind!r}; a schema holds objects")
        properties = self._properties(parts, title)
        return ObjectSchema(
            name,
            self._text(parts, "physicalName"),
            self._text(parts, "description"),
            self._text(parts, "businessName"),
            properties,
            tuple(self._quality(each, title) for each in self._list(parts, "quality", title)),
            bool(self._list(parts, "relationships", title)),
            item.line,
        )

    def _properties(self, parts: Mapping[str, ValueOnLine], title: str) -> tuple[Property, ...]:
        properties = tuple(self._property(each) for each in self._list(parts, "properties", title))
        self._refuse_twins([(each.column, each.line) for each in properties], f"{title}: property")
        return properties

    def _refuse_twins(self, names: list[tuple[str, int]], title: str) -> None:
        """Add a problem for each name that occurs twice, as Spark sees names."""
        lines: dict[str, int] = {}
        for name, line in names:
            before = lines.setdefault(name.casefold(), line)
            if before != line and name:
                self.problems.add(line, f"{title} {name!r} is there twice: line {before} has it, too")

    def _property(self, item: ValueOnLine, *, of_array: bool = False) -> Property:
        parts = self._mapping(item, "a property", _PROPERTY)
        name = "" if of_array and "name" not in parts else self._name(parts, item, "a property")
        title = f"property {name}" if name else "what the array holds"
        logical, physical = self._text(parts, "logicalType"), self._text(parts, "physicalType")
        if logical and logical not in LOGICAL_TYPES:
            message = f"{title}: logicalType {logical!r} is not known"
            self.problems.unknown(parts["logicalType"].line, message, logical, LOGICAL_TYPES)
            logical = ""
        items = None
        if "items" in parts:
            items = self._property(parts["items"], of_array=True)
            if logical not in ("array", ""):
                self.problems.add(parts["items"].line, f"{title} has items, but logicalType {logical}: only arrays do")
        properties = self._properties(parts, title)
        if properties and logical not in ("object", ""):
            line = parts["properties"].line
            self.problems.add(line, f"{title} has properties, but logicalType {logical}: only objects do")
        position = parts.get("primaryKeyPosition")
        if position is not None and (not isinstance(position.value, int) or isinstance(position.value, bool)):
            self.problems.add(position.line, f"{title}: primaryKeyPosition is {position.plain()!r}, not a whole number")
            position = None
        return Property(
            name,
            self._text(parts, "physicalName") or name,
            logical,
            physical,
            self._options(parts, logical, title),
            self._flag(parts, "required", title),
            self._flag(parts, "unique", title),
            self._flag(parts, "primaryKey", title),
            position.value if position is not None else -1,
            self._text(parts, "description"),
            self._text(parts, "businessName"),
            self._text(parts, "classification"),
            properties,
            items,
            tuple(self._quality(each, title) for each in self._list(parts, "quality", title)),
            bool(self._list(parts, "relationships", title)),
            item.line,
        )

    def _options(self, parts: Mapping[str, ValueOnLine], logical: str, title: str) -> dict[str, Any]:
        if "logicalTypeOptions" not in parts:
            return {}
        item = parts["logicalTypeOptions"]
        if not logical:
            self.problems.add(item.line, f"{title} has logicalTypeOptions, but no logicalType")
            return {}
        options = {}
        for key, value in self._mapping(item, f"logicalTypeOptions of {title}", _OPTIONS[logical]).items():
            plain = value.plain()
            plain = _as_text(plain) if isinstance(plain, date) else plain
            expected = _unlike(plain, key, logical)
            if expected:
                self.problems.add(value.line, f"{title}: {key} is {plain!r}, not {expected}")
            else:
                options[key] = plain
        return options

    def _quality(self, item: ValueOnLine, title: str) -> QualityRule:
        parts = self._mapping(item, f"a quality rule of {title}", _QUALITY)
        type = self._text(parts, "type") or "library"
        if type not in _TYPES:
            line = parts["type"].line
            self.problems.unknown(line, f"a quality rule of {title}: type {type!r} is not known", type, _TYPES)
        operators = [key for key in OPERATORS if key in parts]
        if len(operators) > 1:
            what = f"a quality rule of {title} has {' and '.join(operators)}"
            self.problems.add(item.line, f"{what}: the standard allows one, so write two rules")
        operator = operators[0] if operators else ""
        arguments = parts.get("arguments")
        if arguments is not None and not isinstance(arguments.value, dict | None):
            self.problems.add(arguments.line, f"a quality rule of {title}: arguments are not a mapping")
            arguments = None
        metric = self._text(parts, "metric") or self._text(parts, "rule")
        if type == "library":
            self._check_metric(metric, operators, parts, item, title)
        for key, needed_by in (("query", "sql"), ("engine", "custom"), ("implementation", "custom")):
            if type == needed_by and key not in parts:
                self.problems.add(item.line, f"a quality rule of {title} has type {type}, but no {key}")
        if type == "sql" and not operators:
            self.problems.add(item.line, f"a quality rule of {title} compares its result with nothing: add mustBe")
        for operator in operators if type == "sql" else ():
            self._check_bound(operator, parts[operator], f"a quality rule of {title}", of_query=True)
        return QualityRule(
            self._text(parts, "id") or self._text(parts, "name"),
            type,
            metric,
            (arguments.plain() or {}) if arguments is not None else {},
            operator,
            parts[operator].plain() if operator else None,
            self._text(parts, "unit"),
            self._text(parts, "query"),
            self._text(parts, "engine"),
            parts.get("implementation"),
            self._text(parts, "severity"),
            self._text(parts, "description"),
            item.line,
        )

    def _check_metric(
        self, metric: str, operators: list[str], parts: Mapping[str, ValueOnLine], item: ValueOnLine, title: str
    ) -> None:
        if not metric:
            self.problems.add(item.line, f"a quality rule of {title} has no metric: one of {', '.join(METRICS)}")
            return
        if metric not in METRICS:
            line = (parts.get("metric") or parts["rule"]).line
            self.problems.unknown(line, f"a quality rule of {title}: metric {metric!r} is not known", metric, METRICS)
        if not operators:
            self.problems.add(item.line, f"{metric} of {title} is compared with nothing: add mustBe, mustBeLessThan, …")
        for operator in operators:
            self._check_bound(operator, parts[operator], f"{metric} of {title}")

    def _check_bound(self, operator: str, bound: ValueOnLine, subject: str, *, of_query: bool = False) -> None:
        """of_query: it is compared with what a query returns, which may be true or false."""
        value = bound.plain()
        if operator.endswith("Between"):
            is_range = isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
            if not is_range or value[0] >= value[1]:
                message = f"{subject}: {operator} is {value!r}, not two numbers, the smaller first"
                self.problems.add(bound.line, message)
        elif not is_number(value) and not (of_query and isinstance(value, bool)):
            expected = "a number, true or false" if of_query else "a number"
            self.problems.add(bound.line, f"{subject}: {operator} is {value!r}, not {expected}")

    def _service_level(self, item: ValueOnLine) -> ServiceLevel:
        parts = self._mapping(item, "a service level", _SERVICE_LEVEL)
        for key in ("property", "value"):
            if key not in parts:
                self.problems.add(item.line, f"a service level has no {key}")
        return ServiceLevel(
            self._text(parts, "property"),
            parts["value"].plain() if "value" in parts else None,
            self._text(parts, "unit"),
            self._text(parts, "element"),
            item.line,
        )

    # -- single values ------------------------------------------------------------------------------------

    def _mapping(self, item: ValueOnLine, subject: str, keys: tuple[str, ...]) -> Mapping[str, ValueOnLine]:
        return self.problems.mapping(item, subject, keys) or {}

    def _list(self, parts: Mapping[str, ValueOnLine], key: str, title: str) -> list[ValueOnLine]:
        if key not in parts or parts[key].value is None:
            return []
        if not isinstance(parts[key].value, list):
            self.problems.add(parts[key].line, f"{title}: {key} is not a list")
            return []
        items: list[ValueOnLine] = parts[key].value
        return items

    def _name(self, parts: Mapping[str, ValueOnLine], item: ValueOnLine, subject: str) -> str:
        name = self._text(parts, "name")
        if not name:
            self.problems.add(item.line, f"{subject} has no name")
        return name

    def _text(self, parts: Mapping[str, ValueOnLine], key: str) -> str:
        if key not in parts:
            return ""
        value, line = parts[key].plain(), parts[key].line
        if isinstance(value, str):
            return value
        if value is None:
            return ""
        if isinstance(value, date):
            return _as_text(value)
        self.problems.add(line, f"{key} is {value!r}, not a text: put it in quotes")
        return ""

    def _flag(self, parts: Mapping[str, ValueOnLine], key: str, title: str) -> bool:
        if key not in parts:
            return False
        value = parts[key].value
        if not isinstance(value, bool):
            self.problems.add(parts[key].line, f"{title}: {key} is {parts[key].plain()!r}, not true or false")
        return value is True


def _unlike(value: object, option: str, logical: str) -> str:
    """Return what an option of a logical type should be. Empty: it is that."""
    if option in _SIZES:
        is_size = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return "" if is_size else "a whole number from 0 on"
    if option in ("uniqueItems", "timezone"):
        return "" if isinstance(value, bool) else "true or false"
    if option == "required":
        is_list = isinstance(value, list) and all(isinstance(name, str) for name in value)
        return "" if is_list else "a list of names"
    if option == "multipleOf":
        return "" if is_number(value) and value > 0 else "a number above 0"
    if option in _RANGE and logical in ("integer", "number"):
        return "" if is_number(value) else "a number"
    return "" if isinstance(value, str) else "a text"


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that SQL can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _as_text(value: date) -> str:
    """Return a date that YAML has read as one in the form in which it was probably written."""
    return value.isoformat()


def every_property(properties: tuple[Property, ...], above: str = "") -> Iterator[tuple[str, Property]]:
    """Yield all properties at any depth with their paths, such as address.city and lines[].price."""
    for each in properties:
        path = f"{above}.{each.column}" if above else each.column
        yield path, each
        yield from every_property(each.properties, path)
        if each.items is not None:
            yield from _in_array(each.items, f"{path}[]")


def _in_array(items: Property, path: str) -> Iterator[tuple[str, Property]]:
    yield path, items
    yield from every_property(items.properties, path)
    if items.items is not None:
        yield from _in_array(items.items, f"{path}[]")
