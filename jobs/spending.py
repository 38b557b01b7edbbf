"""Spending per customer, from the files of orders that `make run` feeds. README shows this code."""

from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("spending", interval="1 min")

SCHEMA = "order_id long, customer_id long, country string, amount decimal(12,2), at timestamp"
orders = pipeline.source("orders", Files("landing/orders/*.json", schema=SCHEMA, on_corrupt="keep"))
checked = orders.gate(Expectations("orders", on_failure="quarantine", at_most=0.2), name="checked")


@pipeline.stage(checked)
def clean(rows):  # DataFrame in, DataFrame out
    return rows.drop("_corrupt_record")


once = clean.deduplicate(by="order_id", uid="once")
totals = once.aggregate(by="customer_id", spent="sum(amount)", orders="count(*)", uid="totals")

once.sink("accepted", DeltaAppend("tables/accepted"))
totals.sink("spending", DeltaUpsert("tables/spending", keys=["customer_id"]))
