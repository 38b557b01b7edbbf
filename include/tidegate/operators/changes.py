"""What may change about an operator that goes on from its state, as far as its declaration tells.

A state holds partial results of what was declared: of another key, another window or another sum they would be numbers
that mean nothing, without anybody noticing. So each setting stays what it is, but for those that an operator names as
`free`; results may be added (nothing is known of them before), and left out.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.model.records import Json
from tidegate.operators.base import Operator

__all__ = ["changes", "declared"]

RESULTS: Final = "functions"


def declared(operator: Operator) -> Json:
    """The declaration, for the plan."""
    return {"kind": operator.kind, **_plain(operator.describe())}


def changes(before: Json, operator: Operator) -> list[str]:
    """What has changed about an operator so that it cannot go on from the state of `before`."""
    now = declared(operator)
    if before["kind"] != now["kind"]:
        return [f"it was {before['kind']}"]
    told, results = before.get(RESULTS, {}), now.get(RESULTS, {})
    found = [
        f"{name} is {results[name]} now, and was {text}"
        for name, text in told.items()
        if name in results and results[name].split() != text.split()
    ]
    fixed = sorted((set(before) | set(now)) - {RESULTS} - operator.free)
    return found + [
        f"{name} is {now.get(name)!r} now, and was {before.get(name)!r}"
        for name in fixed
        if before.get(name) != now.get(name)
    ]


def _plain(value: Json) -> Json:
    """As it comes back from a record: a tuple is a list there."""
    plain: Json = msgspec.json.decode(msgspec.json.encode(value))
    return plain
