"""What must be in the tables of the example pipeline (jobs/orders.py), computed from the fed files without Spark."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from jobs import orders_feed

__all__ = ["Expected", "sent", "two_files_each_time", "why_bad"]

MINUTE = timedelta(minutes=1)
HELD_BACK = timedelta(seconds=90) + MINUTE
"""By the watermark, and by what the join may hold a row back."""


class Expected:
    """The tables after so many files of orders and of payments, with `rows` orders a file."""

    def __init__(self, orders: int, payments: int, rows: int) -> None:
        lines = list(sent(range(1, orders + 1), rows))
        made = [json.loads(line) for n in range(1, payments + 1) for line in orders_feed.payments(n, rows)]
        self.quarantine = Counter(why for _, why in lines if why is not None)
        self.good = {order["order_id"]: order for order, why in lines if why is None}
        self.paid = [(self.good[each["order_id"]], each) for each in made if each["order_id"] in self.good]
        seen = [max(map(at, found)) for found in ([order for order, _ in lines if "at" in order], made)]
        self.watermark = min(seen) - HELD_BACK

    @property
    def totals(self) -> dict[int, tuple[Decimal, int, datetime]]:
        """Per customer: spent, how many orders, the last payment."""
        found: dict[int, list[tuple[dict[str, Any], dict[str, Any]]]] = defaultdict(list)
        for order, payment in self.paid:
            found[order["customer_id"]].append((order, payment))
        return {
            customer: (sum((amount(o) for o, _ in pairs), Decimal(0)), len(pairs), max(at(p) for _, p in pairs))
            for customer, pairs in found.items()
        }

    @property
    def revenue(self) -> dict[tuple[datetime, str], tuple[Decimal, int]]:
        """Per complete minute and country: revenue, how many orders."""
        found: dict[tuple[datetime, str], list[Decimal]] = defaultdict(list)
        for order, _ in self.paid:
            start = at(order).replace(second=0, microsecond=0)
            if start + MINUTE <= self.watermark:
                found[start, order["country"]].append(amount(order))
        return {key: (sum(amounts, Decimal(0)), len(amounts)) for key, amounts in found.items()}


def two_files_each_time(project: Path) -> None:
    """Of a copy of the example: a checkpoint takes no more, so that a few files are some checkpoints."""
    code = project / "jobs" / "orders.py"
    text = code.read_text()
    assert text.count("max_files=20") == 2
    code.write_text(text.replace("max_files=20", "max_files=2"))


def sent(files: range, rows: int) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Each line of orders that was fed, parsed, and why it is bad."""
    for number in files:
        for line in orders_feed.lines(number, rows):
            try:
                order = json.loads(line)
            except ValueError:
                yield {}, "not readable"
                continue
            yield order, why_bad(order)


def why_bad(order: dict[str, Any]) -> str | None:
    """What of the suite an order breaks."""
    if order["order_id"] is None:
        return "no order id"
    if "at" not in order:
        return "no time"
    return "bad amount" if amount(order) < 0 else None


def at(row: dict[str, Any]) -> datetime:
    """When it was made."""
    return datetime.fromisoformat(row["at"]).astimezone(UTC)


def amount(order: dict[str, Any]) -> Decimal:
    """Exactly."""
    return Decimal(order["amount"])
