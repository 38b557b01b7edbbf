"""A contract from a table: its columns, key, rules and promise, as a file to start from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.gates.contracts.types import logical_type_of, spelled
from tidegate.gates.expectations.suite import Rule
from tidegate.gates.expectations.yaml_lines import dump_yaml
from tidegate.records.records import Json

__all__ = ["exported"]

_HEAD: Final = """# A data contract of the Open Data Contract Standard 3 (https://bitol.io), exported by tidegate.
# Say what is missing: purpose, owner, and a description of each column. Then: tidegate contract check {file}
"""
_CHECK: Final = "delta.constraints."
_SIZED: Final = "__CHAR_VARCHAR_TYPE_STRING"


def exported(
    name: str,
    columns: Json,
    *,
    file: str,
    pipeline: str,
    key: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    rules: Sequence[Rule] = (),
    fresh_s: float | None = None,
    description: str = "",
) -> str:
    """Return the text of a contract.

    columns: the table's schema in the log's form, or that of its rows in Spark's JSON form. properties: the table's,
    which have its constraints. rules: of suites that judge the rows.
    """
    table: Json = {"name": name, "physicalType": "table"}
    if description:
        table["description"] = description
    table["properties"] = [_property(field, key) for field in columns["fields"]]
    quality = [*_constraints(properties or {}), *(_custom(rule) for rule in rules)]
    if quality:
        table["quality"] = quality
    contract: Json = {
        "apiVersion": "v3.1.0",
        "kind": "DataContract",
        "id": f"{pipeline}-{name}",
        "name": name,
        "version": "1.0.0",
        "status": "draft",
        "schema": [table],
    }
    if fresh_s is not None:
        contract["slaProperties"] = [{"property": "latency", **_duration(fresh_s)}]
    return _HEAD.format(file=file) + dump_yaml(contract)


def _property(field: Json, key: Sequence[str]) -> Json:
    described = {"name": field["name"], **_typed(field["type"], field.get("metadata", {}))}
    if field["name"] in key:
        described |= {"primaryKey": True, "primaryKeyPosition": list(key).index(field["name"]) + 1}
    if not field.get("nullable", True):
        described["required"] = True
    comment = field.get("metadata", {}).get("comment")
    if comment:
        described["description"] = comment
    return described


def _typed(kind: Any, metadata: Mapping[str, Any]) -> Json:
    """Return what a property says about its type, and about what is in it."""
    logical = logical_type_of(kind)
    typed: Json = {"logicalType": logical} if logical else {}
    if isinstance(kind, str):
        return typed | {"physicalType": metadata.get(_SIZED) or spelled(kind)}
    if kind["type"] == "struct":
        return typed | {"properties": [_property(field, ()) for field in kind["fields"]]}
    if kind["type"] == "array":
        return typed | {"items": _typed(kind["elementType"], {})}
    return typed | {"physicalType": spelled(kind)}


def _constraints(properties: Mapping[str, str]) -> list[Json]:
    rules = []
    for name, condition in sorted(properties.items()):
        if name.startswith(_CHECK):
            query = f"SELECT COUNT(*) FROM {{object}} WHERE NOT ({condition})"
            id = re.sub(r"[^A-Za-z0-9_-]", "-", name.removeprefix(_CHECK))
            rules.append({"id": id, "type": "sql", "query": query, "mustBe": 0})
    return rules


def _custom(rule: Rule) -> Json:
    written = {"type": rule.type, "kwargs": dict(rule.kwargs)}
    return {
        "id": re.sub(r"[^A-Za-z0-9_-]+", "-", rule.name).strip("-"),
        "type": "custom",
        "engine": "greatExpectations",
        "implementation": written,
        **({} if rule.severity == "critical" else {"severity": rule.severity}),
    }


def _duration(seconds: float) -> Json:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds % size == 0:
            return {"value": int(seconds // size), "unit": unit}
    return {"value": seconds, "unit": "s"}
