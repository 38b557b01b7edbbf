"""What a contract's service levels promise about the age of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidegate.gates.contracts.document import ContractDocument, ObjectSchema, ServiceLevel
from tidegate.gates.expectations.checking import Problems

__all__ = ["promised_freshness"]

_FRESHNESS: Final = ("latency", "ly", "freshness")
_UNITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600),
    **dict.fromkeys(("", "d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400),
    **dict.fromkeys(("y", "yr", "year", "years"), 365 * 86400),
}


def promised_freshness(
    document: ContractDocument, schema: ObjectSchema, told_only: list[tuple[str, str]], problems: Problems
) -> float | None:
    """Return within how many seconds the table is promised to be fresh: the least of all. None: it is not.

    told_only: receives the service levels that nothing here measures, with the reason.
    """
    seconds: list[float] = []
    for level in document.service_levels:
        name = f"{level.property} of {level.element}" if level.element else level.property
        if level.property.casefold() not in _FRESHNESS:
            told_only.append((name, "nothing here measures it: it is documentation"))
        elif not _is_about(level.element, document, schema):
            told_only.append((name, f"it is not about {schema.name}"))
        elif (promised := _seconds(level)) is None:
            known = ", ".join(unit for unit in _UNITS if unit)
            what = f"{level.property} is {level.value!r} {level.unit}".strip()
            problems.add(level.line, f"{what}: write a number above 0, and one of the units {known}")
        else:
            seconds.append(promised)
    return min(seconds, default=None)


def _is_about(element: str, document: ContractDocument, schema: ObjectSchema) -> bool:
    """Return whether a service level is about the table. Without an element it is about all tables."""
    if not element:
        return True
    tables = {name for each in document.schemas for name in (each.name, each.physical_name) if name}
    for part in element.split(","):
        table, _, column = part.strip().partition(".")
        if table in (schema.name, schema.physical_name):
            return True
        if not column and table not in tables and len(document.schemas) == 1:
            return True  # a column: if there is only one table, its name is not required
    return False


def _seconds(level: ServiceLevel) -> float | None:
    number: Any = level.value
    if isinstance(number, str):
        try:
            number = float(number)
        except ValueError:
            return None
    unit = _UNITS.get(level.unit.strip().casefold())
    if unit is None or isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
        return None
    return float(number * unit)
