"""Orders whose amounts are in a text: all go to quarantine, and one SQL corrects nearly all of them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from tests.crash.gated import GatedWorld, ask

SUITE = """
expectations:
  - {type: expect_column_values_to_not_be_null, kwargs: {column: amount}, id: known}
  - {type: expect_column_values_to_be_between, kwargs: {column: amount, max_value: 10000000}, id: in_range}
"""
AMOUNT = "cast(regexp_substr(raw, '[0-9.]+') AS decimal(12,2))"
EVERY = 1000
FAILS = f"amount cannot be corrected: {AMOUNT} fails for this row"
BREAKS = "corrected, it breaks in_range"


def raw_of(id: int) -> str:
    """Of a thousand orders, the SQL fails for one, and one breaks another rule once it is corrected."""
    if id % EVERY == 7:
        return f"{id}.1.2 EUR"
    return f"EUR {id + 20_000_000}" if id % EVERY == 13 else f"EUR {id}.50"


class OrdersWorld(GatedWorld):
    """One file of so many orders, without amounts."""

    def feed_orders(self, orders: int) -> None:
        self.root.mkdir(exist_ok=True)
        (self.root / "orders").touch()
        folder = self.root / "include" / "expectations"
        folder.mkdir(parents=True)
        (folder / "events.yaml").write_text(SUITE)
        landing = self.root / "landing"
        landing.mkdir()
        with (landing / "orders.json").open("w") as file:
            for id in range(orders):
                file.write(f'{{"id": {id}, "raw": "{raw_of(id)}"}}\n')

    def correct(self) -> None:
        """A person corrects all rows that broke the rule, by one SQL."""
        ask(self, rules=["known"], correct_sql={"amount": AMOUNT})

    def columns(self, path: str, *names: str) -> Iterator[tuple[Any, ...]]:
        """Some columns of a table."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self.root / path)).to_pyarrow_table(columns=list(names))
        yield from zip(*(table.column(name).to_pylist() for name in names), strict=True)


def check_orders(world: OrdersWorld, orders: int) -> None:
    """Each order is in the table, corrected, or waits with the reason; each is in quarantine once, as it was."""
    waiting = dict.fromkeys(range(7, orders, EVERY), FAILS) | dict.fromkeys(range(13, orders, EVERY), BREAKS)
    log = list(world.columns("tables/log", "id", "amount"))
    found = dict(log)
    assert len(found) == len(log), "each at most once"
    assert found.keys() == set(range(orders)) - waiting.keys(), "each that could be corrected"
    assert all(amount == Decimal(f"{id}.50") for id, amount in log)
    aside = list(
        world.columns(
            "ledger/crash/quarantine/checked", "id", "amount", "_tidegate_settled", "_tidegate_stays",
            "_tidegate_corrected", "_tidegate_settled_request",
        )
    )  # fmt: skip
    assert len(aside) == orders
    assert {id for id, *_ in aside} == set(range(orders))
    for id, amount, settled, stays, corrected, request in aside:
        assert amount is None, "the quarantine keeps it as it was"
        if id in waiting:
            assert (settled, stays, corrected, request) == (None, waiting[id], None, None)
        else:
            assert (settled, stays, corrected, request) == ("released", None, f'{{"amount":{id}.50}}', 1)
