"""The operators of the guide, docs/guides/writing-an-operator.md."""

from __future__ import annotations

from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators import Clock, KeyedOperator, StepResult

__all__ = ["Alerts", "Carts", "Streaks"]


class Streaks(KeyedOperator):
    """How many days in a row each customer has ordered: the longest time so far, replaced when it grows."""

    by = ("customer",)
    state = "days array<date>"
    emits = "customer string, longest int"

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        days = {row["customer"]: set(row["days"]) for row in stored.to_pylist()}
        for row in arrived.to_pylist():
            days.setdefault(row["customer"], set()).add(row["day"])
        rows = [{"customer": customer, "days": sorted(of_it)} for customer, of_it in days.items()]
        return StepResult(state=pa.Table.from_pylist(rows, stored.schema))

    def shows(self, state: pa.Table) -> pa.Table:
        lengths = [_longest(days) for days in state["days"].to_pylist()]
        return pa.table({"customer": state["customer"], "longest": pa.array(lengths, pa.int32())})


def _longest(days: list[date]) -> int:
    longest = length = 0
    for place, day in enumerate(days):
        follows = place > 0 and day - days[place - 1] == timedelta(days=1)
        length = length + 1 if follows else 1
        longest = max(longest, length)
    return longest


class Carts(KeyedOperator):
    """Carts in which nothing has been put for some time: one row each, with what is in them."""

    by = ("cart",)
    state = "items array<string>, until timestamp"
    emits = "cart string, items array<string>"
    event_time = "at"
    due = "until"

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        held = {row["cart"]: (row["items"], row["until"]) for row in stored.to_pylist()}
        abandoned = []
        for row in arrived.to_pylist():
            items, until = held.get(row["cart"], ([], None))
            if until is not None and row["at"] > until:
                abandoned.append({"cart": row["cart"], "items": sorted(items)})
                items, until = [], None
            later = row["at"] + timedelta(minutes=self.minutes)
            held[row["cart"]] = [*items, row["item"]], later if until is None else max(until, later)
        over = [cart for cart, (_, until) in held.items() if clock.watermark is not None and until < clock.watermark]
        abandoned += [{"cart": cart, "items": sorted(held.pop(cart)[0])} for cart in over]
        keys = {row["cart"] for row in stored.to_pylist()}
        state = [{"cart": cart, "items": items, "until": until} for cart, (items, until) in held.items()]
        return StepResult(
            state=pa.Table.from_pylist(state, stored.schema),
            forgotten=pa.table({"cart": pa.array([cart for cart in over if cart in keys], pa.string())}),
            rows=pa.Table.from_pylist(abandoned, pa.schema([("cart", pa.string()), ("items", pa.list_(pa.string()))])),
        )


class Alerts(KeyedOperator):
    """Sensors that were above a limit for three readings in a row, and since when; shown until one is below it."""

    by = ("sensor",)
    state = "waiting array<struct<at timestamp, level double>>, in_a_row int, since timestamp, next timestamp"
    emits = "sensor string, since timestamp"
    event_time = "at"
    due = "next"

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        sensors = {row["sensor"]: row for row in stored.to_pylist()}
        for row in arrived.to_pylist():
            sensor = sensors.setdefault(row["sensor"], {"sensor": row["sensor"], "waiting": [], "in_a_row": 0})
            sensor["waiting"].append({"at": row["at"], "level": row["level"]})
        for sensor in sensors.values():
            waiting = sorted(sensor["waiting"], key=lambda reading: (reading["at"], reading["level"]))
            ready = [reading for reading in waiting if clock.watermark is not None and reading["at"] < clock.watermark]
            for reading in ready:
                sensor["in_a_row"] = sensor["in_a_row"] + 1 if reading["level"] > self.limit else 0
                if sensor["in_a_row"] == 3:
                    sensor["since"] = reading["at"]
            sensor["waiting"] = waiting[len(ready) :]
            sensor["next"] = min((reading["at"] for reading in sensor["waiting"]), default=None)
        return StepResult(state=pa.Table.from_pylist(list(sensors.values()), stored.schema))

    def shows(self, state: pa.Table) -> pa.Table:
        return state.filter(pc.greater_equal(state["in_a_row"], 3)).select(["sensor", "since"])
