"""Values that are in this process, as the texts that Spark makes of them (`CAST(… AS STRING)`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["shown"]


def shown(values: pa.ChunkedArray, zone: Callable[[], str], most: int) -> list[str | None]:
    """Of each value at most so many letters. ValueError: Spark must be asked, for nobody else knows its word for them.

    zone: the session's, in which times are shown.
    """
    import pyarrow as pa

    kind = values.type
    if pa.types.is_timestamp(kind):
        text: Callable[[Any], str] = partial(_time, zone=ZoneInfo(zone()) if kind.tz else None)
    else:
        text = next((made for fits, made in _TEXTS if getattr(pa.types, f"is_{fits}")(kind)), _unknown)
    try:
        return [None if value is None else text(value)[:most] for value in values.to_pylist()]
    except (OverflowError, LookupError, OSError) as error:
        raise ValueError(str(error)) from error


def _unknown(value: object) -> str:
    raise ValueError(f"{type(value).__name__} is shown by Spark")


def _time(value: datetime, zone: ZoneInfo | None) -> str:
    local = value.astimezone(zone) if zone is not None else value
    whole, _, part = local.replace(tzinfo=None).isoformat(" ", "microseconds").partition(".")
    return f"{whole}.{part.rstrip('0')}" if part.strip("0") else whole


def _single(value: float) -> str:
    import numpy as np

    return _float(value, str(np.float32(value)))


def _float(value: float, digits: str) -> str:
    """As Java does: with a point, and with an exponent if it is very large or small."""
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = f"{Decimal(digits):f}"
        return plain if "." in plain else f"{plain}.0"
    sign, figures, exponent = Decimal(digits).normalize().as_tuple()
    first, *rest = map(str, figures)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{len(rest) + int(exponent)}"


_TEXTS: list[tuple[str, Callable[[Any], str]]] = [
    ("string", str),
    ("boolean", lambda value: "true" if value else "false"),
    ("integer", str),
    ("date", date.isoformat),
    ("decimal", lambda value: f"{value:f}"),
    ("float32", _single),
    ("float64", lambda value: _float(value, repr(value))),
    ("binary", lambda value: value.hex().upper()),
]
