"""Values of Avro as Arrow expects them, unchanged or not at all."""

from __future__ import annotations

import datetime
import decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Undecodable", "fitting"]


class Undecodable(Exception):
    """A record cannot be decoded as its schema and the declared columns require.

    why: one of `SENT_CAUSES`.
    plain: the message without the value, if the message contains it.
    """

    def __init__(self, text: str, why: str = "", plain: str = "") -> None:
        self.why = why
        self.plain = plain or text
        super().__init__(text)


def fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value of Avro as Arrow expects it for a column of this type.

    Raise ValueError or TypeError if that would change the value.
    """
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = _expect(dict, value)
        return {field.name: fitting(fields.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        items = []
        for key, item in _expect(dict, value).items():
            items.append((fitting(key, kind.key_type), fitting(item, kind.item_type)))
        return items
    if pa.types.is_list(kind):
        return [fitting(element, kind.value_type) for element in _expect(list, value)]
    if pa.types.is_string(kind):
        return str(value) if type(value).__name__ == "UUID" else _expect(str, value)
    if pa.types.is_binary(kind):
        return _expect(bytes, value)
    if pa.types.is_boolean(kind):
        return _expect(bool, value)
    if pa.types.is_decimal(kind):
        return _decimal(value, kind)
    if pa.types.is_timestamp(kind):
        if kind.tz is None and isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            # A column of dates has become one of times, and older producers still write dates.
            return datetime.datetime.combine(value, datetime.time())
        moment = _expect(datetime.datetime, value)
        if (moment.tzinfo is None) != (kind.tz is None):
            raise ValueError(value)
        return moment
    if pa.types.is_date(kind):
        if isinstance(value, datetime.datetime):
            raise TypeError(value)
        return _expect(datetime.date, value)
    if isinstance(value, bool):
        raise TypeError(value)
    if pa.types.is_floating(kind):
        return float(value if isinstance(value, float) else _expect(int, value))
    number = _expect(int, value)
    if not -(2 ** (kind.bit_width - 1)) <= number < 2 ** (kind.bit_width - 1):
        raise ValueError(value)
    return number


def _expect(kind: type, value: Any) -> Any:
    """Return the value. Raise TypeError if it is of another type."""
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


def _decimal(value: Any, kind: pa.DataType) -> decimal.Decimal:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    number = decimal.Decimal(value) if is_integer else _expect(decimal.Decimal, value)
    fitted = number.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=decimal.Context(prec=76))
    if fitted != number or len(fitted.as_tuple().digits) > kind.precision:
        raise ValueError(value)
    return fitted
