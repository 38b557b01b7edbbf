"""Orders: events in, checked events, the present state of each order, and what was rejected out.

    landing/orders/*.json ──▶ checked ──good──▶ tables/order_events      every good event, as it came
                                      ──good──▶ tables/orders            each order as of its latest event
                                      ──bad───▶ tables/orders_rejected   what is not taken, and why

Run it with `make run`. Every checkpoint takes some files through to all three tables, or through to none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pipeline = Pipeline("orders", interval="1 min")

events = pipeline.source(
    "events",
    Files(
        "landing/orders/*.json",
        schema="event_id long, order_id long, customer_id long, country string, status string,"
        " amount decimal(12,2), at timestamp",
        on_corrupt="keep",  # a line that is no JSON is rejected like any other bad row, with its text
        max_files=2,  # per checkpoint
    ),
)

WHY_BAD = """
    CASE WHEN _corrupt_record IS NOT NULL THEN 'not readable'
         WHEN order_id IS NULL THEN 'no order id'
         WHEN at IS NULL THEN 'no time'
         WHEN amount IS NULL OR amount < 0 THEN 'bad amount'
    END"""


@pipeline.stage(events, outputs=["good", "bad"])
def checked(events: DataFrame) -> dict[str, DataFrame]:
    judged = events.selectExpr("*", f"{WHY_BAD} AS why")
    return {
        "good": judged.where("why IS NULL").drop("why", "_corrupt_record"),
        "bad": judged.where("why IS NOT NULL"),
    }


checked["good"].sink("order_events", DeltaAppend("tables/order_events"))
# Events come late and twice. An order's row is its event with the highest `at`, in whatever order they come.
checked["good"].sink("orders", DeltaUpsert("tables/orders", keys=["order_id"], order_by="at"))
checked["bad"].sink("orders_rejected", DeltaAppend("tables/orders_rejected"))
