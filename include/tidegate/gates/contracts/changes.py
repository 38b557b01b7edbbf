"""The changes between two versions of a contract, and which of them break those who rely on it.

The severities are those that datacontract-cli, the standard's usual tool, had in its command `breaking`, as long as it
had one. What it did not know, such as service levels, is never more than a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidegate.gates.contracts.document import OPERATORS, ContractDocument

__all__ = ["Change", "changes_between"]

Effect = Literal["breaking", "warning", "info"]
Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True)
class Change:
    """One change of a contract."""

    path: str
    """What is changed, such as orders.amount.logicalType."""
    kind: Kind
    effect: Effect
    before: Any = None
    after: Any = None

    @property
    def text(self) -> str:
        """The change in words."""
        if self.kind == "added":
            return f"{self.path} is new" + (f": {_short(self.after)}" if self.after is not None else "")
        if self.kind == "removed":
            return f"{self.path} is gone" + (f"; it was {_short(self.before)}" if self.before is not None else "")
        return f"{self.path}: {_short(self.before)} was, {_short(self.after)} is"


_OF_LIMITS: Final[tuple[Effect, Effect, Effect]] = ("warning", "warning", "breaking")
_EFFECTS: Final[Mapping[str, tuple[Effect, Effect, Effect]]] = {
    # key of an element: the effect if it is added, removed, changed
    "physicalName": ("breaking", "breaking", "breaking"),
    "logicalType": ("warning", "warning", "breaking"),
    "physicalType": ("warning", "warning", "breaking"),
    "required": ("breaking", "breaking", "breaking"),
    "unique": ("breaking", "breaking", "breaking"),
    "primaryKey": ("warning", "warning", "warning"),
    "primaryKeyPosition": ("warning", "warning", "warning"),
    "relationships": ("warning", "warning", "warning"),
    "classification": ("warning", "breaking", "breaking"),
    "pattern": ("warning", "breaking", "breaking"),
    **dict.fromkeys(("format", "timezone", "defaultTimezone", "multipleOf", "uniqueItems"), _OF_LIMITS),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _OF_LIMITS),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _OF_LIMITS),
}
_INFO: Final[tuple[Effect, Effect, Effect]] = ("info", "info", "info")
_QUALITY: Final[tuple[Effect, Effect, Effect]] = ("info", "warning", "warning")
_SERVICE_LEVEL: Final[tuple[Effect, Effect, Effect]] = ("info", "warning", "warning")
_DEFAULTS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("required", "unique", "primaryKey", "partitioned", "criticalDataElement"), False),
    **dict.fromkeys(("primaryKeyPosition", "partitionKeyPosition"), -1),
}
"""What it means if such a key is not there."""
_KINDS: Final[tuple[Kind, Kind, Kind]] = ("added", "removed", "changed")
_RULE_KEYS: Final = ("type", "metric", "rule", "arguments", "unit", "query", "engine", "implementation", *OPERATORS)


def changes_between(before: ContractDocument, after: ContractDocument) -> list[Change]:
    """Return all changes, those that break something first."""
    old, new = before.plain, after.plain
    changes = [
        *_of_elements(_index_named(old.get("schema")), _index_named(new.get("schema")), ""),
        *_of_levels(old.get("slaProperties"), new.get("slaProperties")),
    ]
    for key in (*old, *(key for key in new if key not in old)):
        if key not in ("schema", "slaProperties"):
            changes += _of_value(key, key, old.get(key), new.get(key), _INFO)
    order = ("breaking", "warning", "info")
    return sorted(changes, key=lambda change: order.index(change.effect))


def _of_elements(old: Mapping[str, Any], new: Mapping[str, Any], above: str) -> Iterator[Change]:
    """Yield the changes of schema objects, or of the properties of one."""
    for name in new:
        if name not in old:
            yield Change(f"{above}{name}", "added", "info")
    for name, element in old.items():
        if name in new:
            yield from _of_element(element, new[name], f"{above}{name}")
        else:
            yield Change(f"{above}{name}", "removed", "breaking")


def _of_element(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[Change]:
    yield from _of_elements(_index_named(old.get("properties")), _index_named(new.get("properties")), f"{path}.")
    yield from _of_rules(old.get("quality"), new.get("quality"), path)
    if old.get("items") and new.get("items"):
        yield from _of_element(old["items"], new["items"], f"{path}[]")
    elif old.get("items") or new.get("items"):
        yield from _of_value(f"{path}[]", "logicalType", old.get("items"), new.get("items"))
    before, after = old.get("logicalTypeOptions") or {}, new.get("logicalTypeOptions") or {}
    for key in (*before, *(key for key in after if key not in before)):
        yield from _of_value(f"{path}.{key}", key, before.get(key), after.get(key))
    for key in (*old, *(key for key in new if key not in old)):
        if key not in ("properties", "quality", "items", "logicalTypeOptions", "name"):
            default = _DEFAULTS.get(key)
            yield from _of_value(f"{path}.{key}", key, old.get(key, default), new.get(key, default))


def _of_value(
    path: str, key: str, old: Any, new: Any, effects: tuple[Effect, Effect, Effect] | None = None
) -> Iterator[Change]:
    if old == new or (not old and not new and old is not False and new is not False):
        return
    number = 0 if old is None else 1 if new is None else 2
    yield Change(path, _KINDS[number], (effects or _EFFECTS.get(key, _INFO))[number], old, new)


def _of_rules(old: Any, new: Any, path: str) -> Iterator[Change]:
    before, after = _name_rules(old), _name_rules(new)
    for name in (*before, *(name for name in after if name not in before)):
        yield from _of_value(f"{path}.quality.{name}", "", before.get(name), after.get(name), _QUALITY)


def _name_rules(rules: Any) -> dict[str, Any]:
    """Return what quality rules ask by their ids, or by what they are about."""
    named: dict[str, Any] = {}
    for rule in rules or ():
        if rule.get("type") == "text":
            continue
        name = str(rule.get("id") or rule.get("name") or rule.get("metric") or rule.get("rule") or rule.get("type"))
        number, unique = 2, name
        while unique in named:
            unique, number = f"{name}#{number}", number + 1
        named[unique] = {
            key: rule[key] for key in _RULE_KEYS if key in rule and (key, rule[key]) != ("type", "library")
        }
    return named


def _of_levels(old: Any, new: Any) -> Iterator[Change]:
    before, after = _name_levels(old), _name_levels(new)
    for name in (*before, *(name for name in after if name not in before)):
        yield from _of_value(f"slaProperties.{name}", "", before.get(name), after.get(name), _SERVICE_LEVEL)


def _name_levels(levels: Any) -> dict[str, str]:
    named: dict[str, str] = {}
    for level in levels or ():
        name = str(level.get("id") or " of ".join(filter(None, [level.get("property"), level.get("element")])))
        named[name] = " ".join(str(level[key]) for key in ("value", "unit") if key in level)
    return named


def _index_named(elements: Any) -> dict[str, Any]:
    return {str(element.get("name")): element for element in elements or ()}


def _short(value: Any) -> str:
    text = {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
