"""Orders and payments: each paid order once, revenue per minute, spending per customer.

    landing/orders/*.json ──▶ checked ──▶ clean ──▶ once ──┐
                                 │                         ├─▶ paid ──▶ revenue ──▶ tables/revenue  per minute, country
    landing/payments/*.json ─────│─────────────────────────┘     └────▶ totals ───▶ tables/totals   per customer
                                 │
                                 └──▶ quarantine: orders that break include/expectations/orders.yaml, with the reason

`revenue` gets a minute when it is complete, two and a half minutes after its end; `totals` are always current.

Run it with `make run`. A checkpoint applies its files to all tables and to all operators' state, or to none of them.
`tidegate state orders` shows the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Rows may come up to 90 seconds later than newer ones.
pipeline = Pipeline("orders", interval="1 min", watermark="90 s")

orders = pipeline.source(
    "orders",
    Files(
        "landing/orders/*.json",
        schema="order_id long, customer_id long, country string, amount decimal(12,2), at timestamp",
        on_corrupt="keep",  # a line that is not JSON goes to quarantine like any other bad row, with its text
        max_files=20,  # per checkpoint
    ),
    event_time="at",
)
payments = pipeline.source(
    "payments",
    Files("landing/payments/*.json", schema="order_id long, method string, at timestamp", max_files=20),
    event_time="at",
)

checked = orders.gate(Expectations("orders", on_failure="quarantine", at_most=0.2), name="checked")


@pipeline.stage(checked)
def clean(checked: DataFrame) -> DataFrame:  # DataFrame in, DataFrame out
    return checked.drop("_corrupt_record")


once = clean.deduplicate(by=["order_id"], within="1 day", uid="once")
paid = once.join(payments, on=["order_id"], within="1 min", prefix="paid_", uid="paid")
revenue = paid.window(tumbling="1 min", by=["country"], revenue="sum(amount)", orders="count(*)", uid="revenue")
totals = paid.aggregate(by=["customer_id"], spent="sum(amount)", orders="count(*)", last="max(paid_at)", uid="totals")

revenue.sink("revenue", DeltaAppend("tables/revenue"))
totals.sink("totals", DeltaUpsert("tables/totals", keys=["customer_id"]))
