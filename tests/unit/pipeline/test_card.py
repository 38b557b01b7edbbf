"""The card that a DAG leaves for pages: how the pipeline is built, and no secret."""

import pytest

from tidegate import Pipeline
from tidegate.config import load_settings
from tidegate.gates import Volume
from tidegate.pipeline.card import card_of, read_card
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Generator


def shop() -> Pipeline:
    pipeline = Pipeline("shop", interval="never")
    orders = pipeline.source("orders", Generator(rows=3))
    checked = orders.gate(Volume(least=1), name="enough")
    counted = checked.aggregate(by=["key"], n="count(*)", uid="counted")
    checked.sink("log", DeltaAppend("log"))
    counted.sink("counted", DeltaUpsert("counted", keys=["key"]))
    return pipeline


def card(overrides=None):
    pipeline = shop()
    settings = load_settings(overrides or {}, pipeline.settings)
    return card_of(pipeline.graph(settings.place()), settings, "project")


def test_each_part_says_what_it_is_and_what_it_takes():
    found = read_card(card())
    told = [(part.role, part.name, part.inputs) for part in found.parts]
    assert told == [
        ("source", "orders", []),
        ("gate", "enough", ["orders"]),
        ("operator", "counted", ["enough"]),
        ("sink", "log", ["enough"]),
        ("sink", "counted", ["counted"]),
    ]
    assert (found.pipeline, found.project, found.jobs, found.gates) == ("shop", "project", ["main"], {"enough": "main"})


def test_a_secret_is_on_no_card():
    planted = {"storage_options.aws_secret_access_key": "canary-1", "spark.conf.spark.my.password": "canary-2"}
    assert "canary" not in card(planted)


@pytest.mark.parametrize("text", [None, "", "no json", "{}", '{"title": "another"}', '{"title": "tidegate-card"}'])
def test_what_is_no_card_is_none(text):
    assert read_card(text) is None
